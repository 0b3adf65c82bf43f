"""The guests' listeners in systemd's store, and the names of holders and locks."""

import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dfmeta.cmd import keepers
from dfmeta.cmd.keepers import (
    FD_NAMES,
    HolderKeeper,
    HolderTerms,
    SystemdKeeper,
    make_keeper,
    notify,
)
from dfmeta.identity.key import PREFIX6
from dfmeta.wiring.process import lock_name
from tests.harness.activator import Manager

FD_NAME, FD_NAME6 = FD_NAMES[socket.AF_INET], FD_NAMES[socket.AF_INET6]
TERMS = HolderTerms(seconds=600, device="dfm-none")
OPTIONS = {
    "ovsdb_connection": "unix:/run/openvswitch/db.sock",
    "integration_bridge": "br-int",
    "metadata_interface": "lo",
    "host_ip": "127.0.0.1",
    "host_ip6": "::1",
    "ip6": [],
    "key_prefix6": str(PREFIX6),
    "route_table": 2,
    "port": 0,
    "listener_keep": 600,
}


def group(**options: object) -> Any:
    return SimpleNamespace(**OPTIONS | options)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def six() -> Iterator[socket.socket]:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as sock:
        yield sock


@pytest.fixture
def held() -> HolderKeeper:
    return HolderKeeper(uuid.uuid4().hex, TERMS)


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Manager]:
    with Manager(tmp_path / "notify") as manager:
        yield manager


def same(fds: Sequence[int], *socks: socket.socket) -> bool:
    """Whether the descriptors are of those sockets, in their order; closes them."""
    found = [os.fstat(fd).st_ino for fd in fds]
    for fd in fds:
        os.close(fd)
    return found == [os.fstat(sock.fileno()).st_ino for sock in socks]


def passing(monkeypatch: pytest.MonkeyPatch, *passed: tuple[str, socket.socket]) -> dict[str, str]:
    """Pass sockets to this process under names of systemd's store; the environment."""
    # Above all descriptors that other tests of this process have open.
    first = max(map(int, os.listdir("/proc/self/fd"))) + 10
    for number, (_name, sock) in enumerate(passed):
        os.dup2(sock.fileno(), first + number)
    monkeypatch.setattr("dfmeta.cmd.keepers.FIRST_FD", first)
    return {
        "LISTEN_PID": str(os.getpid()),
        "LISTEN_FDS": str(len(passed)),
        "LISTEN_FDNAMES": ":".join(name for name, _sock in passed),
    }


def test_the_latest_stored_listener_of_each_version_is_taken(
    monkeypatch: pytest.MonkeyPatch, held: HolderKeeper, listener: socket.socket, six: socket.socket
) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as spare:
        names = (FD_NAME6, spare), (FD_NAME, listener), (FD_NAME6, six)
        environ = passing(monkeypatch, *names)
    assert same(SystemdKeeper(environ, held).take(), listener, six)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(keepers.FIRST_FD)


def test_a_listener_for_another_process_or_name_is_not_taken(held: HolderKeeper) -> None:
    own = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": FD_NAME}
    for change in ({"LISTEN_PID": "1"}, {"LISTEN_FDNAMES": "another"}, {"LISTEN_FDS": "0"}):
        assert SystemdKeeper(own | change, held).take() == [], change
    assert SystemdKeeper({}, held).take() == []


def test_systemd_stores_each_listener_under_the_name_of_its_version(
    systemd: Manager, held: HolderKeeper, listener: socket.socket, six: socket.socket
) -> None:
    environ = {"NOTIFY_SOCKET": str(systemd.path)}
    SystemdKeeper(environ, held).keep([listener.fileno(), six.fileno()])
    assert systemd.heard(f"FDSTORE=1\nFDNAME={FD_NAME}")
    assert systemd.messages == [
        f"{word}=1\nFDNAME={name}"
        for word in ("FDSTOREREMOVE", "FDSTORE")
        for name in (FD_NAME, FD_NAME6)
    ]
    assert same([os.dup(fd) for fd in systemd.stored], listener, six)


def test_a_message_to_systemd_is_sent_where_its_socket_is(systemd: Manager) -> None:
    assert notify({}, "READY=1")
    assert not notify({"NOTIFY_SOCKET": "/nonexistent/notify"}, "READY=1")
    assert notify({"NOTIFY_SOCKET": str(systemd.path)}, "READY=1")
    assert systemd.heard("READY=1")
    assert isinstance(make_keeper(group(), {"NOTIFY_SOCKET": "/n"}), SystemdKeeper)
    assert isinstance(make_keeper(group(), {}), HolderKeeper)


def test_each_spelling_of_a_database_gives_one_name_to_lock_and_holder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    for spellings in (
        (
            "unix:{}/db.sock",
            "unix:{}/folder/../db.sock",
            "unix:{}/link/db.sock",
            "unix:/{}//db.sock",
        ),
        ("tcp:127.0.0.1:6640", "tcp:127.0.0.1:06640"),
        ("tcp:[::1]:6640", "tcp:[0:0::1]:6640"),
        ("tcp:ovsdb.example:6640", "tcp:OVSDB.example:6640"),
    ):
        names = set()
        for spelling in spellings:
            ovsdb = spelling.format(tmp_path)
            found: Any = make_keeper(group(ovsdb_connection=ovsdb), {})
            names.add((found.name, lock_name(ovsdb, "br-int")))
        assert len(names) == 1, spellings
    ovsdbs = ("tcp:127.0.0.1:6640", "tcp:127.0.0.1:6641", "tcp:127.0.0.2:6640", "tcp:[::1]:6640")
    assert len({lock_name(ovsdb, "br-int") for ovsdb in ovsdbs}) == len(ovsdbs)
