"""The guests' listener outlives the daemon: kept by systemd, or by a holder of our own."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dfmeta.cmd import holding
from dfmeta.cmd.holding import HolderKeeper, Terms
from dfmeta.cmd.keeping import FD_NAMES, SystemdKeeper, keeper, notify
from dfmeta.cmd.tap import TapKeeper
from dfmeta.exceptions import HostError
from dfmeta.flows.key import PREFIX6
from dfmeta.host.process import named_sockets
from dfmeta.proxy import holder
from dfmeta.state import State
from dfmeta.wiring.lock import lock_name
from tests.harness.poll import wait_for

NO_DEVICE = "dfm-none"
FD_NAME, FD_NAME6 = FD_NAMES[socket.AF_INET], FD_NAMES[socket.AF_INET6]
TERMS = Terms("192.0.2.1", port=0, inode=0, seconds=600, device=NO_DEVICE)
"""Under which no listener of these tests is known."""
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
    """The options ``[df_metadata]``."""
    return SimpleNamespace(**OPTIONS | options)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a holder take long to start and to answer, as it may on a busy machine."""
    monkeypatch.setattr(holding, "START_TRIES", 1500)
    monkeypatch.setattr(holding, "ANSWER_TIMEOUT", 30.0)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def six() -> Iterator[socket.socket]:
    """A listening socket for IPv6."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as sock:
        yield sock


@pytest.fixture
def held() -> Iterator[HolderKeeper]:
    """A keeper under a name of its own; its holder goes with the test."""
    one = HolderKeeper(uuid.uuid4().hex, TERMS)
    yield one
    one.drop()


@pytest.fixture
def later(listener: socket.socket) -> Iterator[HolderKeeper]:
    """The keeper of another configuration, whose listener is to stand at the same place."""
    known = replace(TERMS, address="127.0.0.1", port=listener.getsockname()[1])
    one = HolderKeeper(uuid.uuid4().hex, known)
    yield one
    one.drop()


class Systemd:
    """What is behind NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.environ = {"NOTIFY_SOCKET": str(path)}
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(str(path))

    def told(self) -> tuple[str, list[int]]:
        """The next message, and the descriptors that came with it."""
        message, fds, _flags, _address = socket.recv_fds(self.sock, 4096, 4)
        return message.decode(), fds


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    """A service manager."""
    one = Systemd(tmp_path / "notify")
    yield one
    one.sock.close()


def same(fds: Sequence[int], *socks: socket.socket) -> bool:
    """Whether the descriptors are of those sockets, in their order; closes them."""
    found = [os.fstat(fd).st_ino for fd in fds]
    for fd in fds:
        os.close(fd)
    return found == [os.fstat(sock.fileno()).st_ino for sock in socks]


def hold(name: str, listener: socket.socket, seconds: float) -> threading.Thread:
    """A holder of that name in a thread, with a descriptor of its own."""
    what = holder.Held([os.dup(listener.fileno())], seconds, NO_DEVICE)
    thread = threading.Thread(target=holder.serve, args=(name, what))
    thread.start()
    return thread


def connect(name: str) -> socket.socket:
    """A connection to the holder of that name, once it is there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wait_for(lambda: sock.connect_ex(holder.address(name)) == 0, "the holder")
    return sock


def met(sock: socket.socket, name: str, thread: threading.Thread) -> str:
    """Whether the holder in that thread can be connected to, or has ended; empty: neither yet."""
    if sock.connect_ex(holder.address(name)) == 0:
        return "there"
    return "" if thread.is_alive() else "ended"


def reach(listener: socket.socket, seconds: float) -> tuple[threading.Thread, socket.socket]:
    """A holder that waits for so long, and a connection to it before its end."""
    while True:
        name = uuid.uuid4().hex
        thread = hold(name, listener, seconds)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        look = partial(met, sock, name, thread)
        if wait_for(look, "the holder", interval=0.001) == "there":
            return thread, sock
        # The machine has been busy for longer: the holder was right to end.
        sock.close()


def test_systemd_gets_the_listener_of_a_daemon_that_ran_without_it(
    systemd: Systemd, held: HolderKeeper, listener: socket.socket
) -> None:
    held.keep([listener.fileno()])
    held.release()
    again = HolderKeeper(held.name, TERMS)
    assert same(SystemdKeeper(systemd.environ, again).take(), listener)
    for _ in FD_NAMES:
        systemd.told()
    message, fds = systemd.told()
    assert message.startswith("FDSTORE=1")
    assert same(fds, listener)
    assert not again.take()


def test_a_stored_listener_is_found_among_what_systemd_passes(
    monkeypatch: pytest.MonkeyPatch, held: HolderKeeper, listener: socket.socket
) -> None:
    first = os.dup(listener.fileno())
    monkeypatch.setattr("dfmeta.cmd.activation.FIRST_FD", first)
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": FD_NAME}
    assert same(SystemdKeeper(environ, held).take(), listener)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": FD_NAME},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "another"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0", "LISTEN_FDNAMES": FD_NAME},
    ],
)
def test_what_was_passed_to_another_is_left_alone(
    held: HolderKeeper, environ: dict[str, str]
) -> None:
    assert SystemdKeeper(environ, held).take() == []


def test_without_systemd_nothing_is_told(systemd: Systemd) -> None:
    notify({}, "READY=1")
    notify({"NOTIFY_SOCKET": "/nonexistent/notify"}, "READY=1")
    notify(systemd.environ, "READY=1")
    assert systemd.told() == ("READY=1", [])


def test_systemd_is_used_where_it_is() -> None:
    assert isinstance(keeper(group(), State(), {"NOTIFY_SOCKET": "/n"}), SystemdKeeper)
    assert isinstance(keeper(group(), State(), {}), HolderKeeper)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("unix:{}/db.sock", "unix:{}/folder/../db.sock"),
        ("unix:{}/db.sock", "unix:{}/link/db.sock"),
        ("unix:{}/db.sock", "unix:/{}//db.sock"),
        ("tcp:127.0.0.1:6640", "tcp:127.0.0.1:06640"),
        ("tcp:[::1]:6640", "tcp:[0:0::1]:6640"),
        ("tcp:ovsdb.example:6640", "tcp:OVSDB.example:6640"),
    ],
)
def test_lock_and_holder_of_a_bridge_have_one_name_each(
    tmp_path: Path, one: str, other: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    names = set()
    for spelt in (one, other):
        ovsdb = spelt.format(tmp_path)
        found = keeper(group(ovsdb_connection=ovsdb), State(), {})
        names.add((found.name, lock_name(ovsdb, "br-int")))  # type: ignore[attr-defined]  # a holder's
    assert len(names) == 1


def test_another_port_or_host_of_a_database_has_another_name() -> None:
    ovsdbs = ("tcp:127.0.0.1:6640", "tcp:127.0.0.1:6641", "tcp:127.0.0.2:6640", "tcp:[::1]:6640")
    assert len({lock_name(one, "br-int") for one in ovsdbs}) == len(ovsdbs)


def test_a_holder_gives_the_listener_to_the_next_daemon(
    held: HolderKeeper, listener: socket.socket
) -> None:
    held.keep([listener.fileno()])
    address = listener.getsockname()
    held.release()
    listener.close()
    # Nobody of ours has it open; a guest is still accepted by the kernel.
    with socket.create_connection(address, 30):
        (fd,) = held.take()
        with socket.socket(fileno=fd) as again:
            connection, _peer = again.accept()
            connection.close()


def test_a_holder_that_died_is_replaced(held: HolderKeeper, listener: socket.socket) -> None:
    held.keep([listener.fileno()])
    held.look_after([listener.fileno()])
    another = HolderKeeper(held.name, TERMS)
    held.drop()
    assert another.take() == []
    held.look_after([listener.fileno()])
    held.release()
    assert same(another.take(), listener)
    another.drop()


def test_a_holder_of_another_user_gets_and_gives_nothing(
    held: HolderKeeper, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "START_TRIES", 2)
    program = (
        "import signal, socket\n"
        "server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        f"server.bind({holder.address(held.name)!r})\n"
        "server.listen(4)\n"
        "print('ready', flush=True)\n"
        "for _ in range(2):\n"
        "    print(server.accept()[0].recvmsg(16, 64)[:2], flush=True)\n"
        "signal.pause()\n"
    )
    command = ["setpriv", "--reuid=nobody", "--clear-groups", "--pdeathsig=KILL"]
    with subprocess.Popen(
        [*command, "/usr/bin/python3", "-IS", "-c", program], stdout=subprocess.PIPE, text=True
    ) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "ready\n"
        assert held.take() == []
        with pytest.raises(HostError, match="no holder has started"):
            held.keep([listener.fileno()])
        heard = [squatter.stdout.readline() for _ in range(2)]
        # The one that was started finds the name taken, however late it looks.
        assert held._process is not None
        assert held._process.wait(30) == 1
        squatter.kill()
    assert heard == ["(b'', [])\n"] * 2


def test_a_dropped_listener_refuses(held: HolderKeeper, listener: socket.socket) -> None:
    held.keep([listener.fileno()])
    address = listener.getsockname()
    listener.close()
    held.drop()

    def refused() -> bool:
        try:
            socket.create_connection(address, 30).close()
        except ConnectionRefusedError:
            return True
        return False

    wait_for(refused, "a refusal")


def test_the_program_holds_one_for_each_name(listener: socket.socket) -> None:
    name = uuid.uuid4().hex
    thread = hold(name, listener, 600)
    for nonsense in (b"nonsense", b"wait", b"wait long x", b"wait \xff"):
        with connect(name) as sock:
            assert holder.serve(name, holder.Held([0], 600, NO_DEVICE)) == 1
            sock.send(nonsense)
            assert sock.recv(1) == b""
    with connect(name) as sock:
        holder.send_fds(sock, holder.KEEP, [listener.fileno()])
        assert holder.receive(sock) == (holder.KEEP, [])
        sock.send(holder.TAKE)
        message, fds = holder.receive(sock)
        assert message == holder.TAKE
        assert same(fds, listener)
        sock.send(holder.DROP)
    thread.join(30)
    assert not thread.is_alive()


# Two listeners, and a release that knew one


def test_systemd_stores_each_listener_under_the_name_of_its_version(
    systemd: Systemd, held: HolderKeeper, listener: socket.socket, six: socket.socket
) -> None:
    SystemdKeeper(systemd.environ, held).keep([listener.fileno(), six.fileno()])
    for name in (FD_NAME, FD_NAME6):
        assert systemd.told() == (f"FDSTOREREMOVE=1\nFDNAME={name}", [])
    for name, sock in ((FD_NAME, listener), (FD_NAME6, six)):
        message, fds = systemd.told()
        assert message == f"FDSTORE=1\nFDNAME={name}"
        assert same(fds, sock)


def test_both_stored_listeners_are_found_and_the_latest_of_each(
    monkeypatch: pytest.MonkeyPatch,
    held: HolderKeeper,
    listener: socket.socket,
    six: socket.socket,
) -> None:
    # Above all descriptors that other tests of this process have open.
    first = max(map(int, os.listdir("/proc/self/fd"))) + 10
    names = (FD_NAME6, FD_NAME, FD_NAME6)
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as spare:
        for number, sock in enumerate((spare, listener, six)):
            os.dup2(sock.fileno(), first + number)
    monkeypatch.setattr("dfmeta.cmd.activation.FIRST_FD", first)
    environ = {
        "LISTEN_PID": str(os.getpid()),
        "LISTEN_FDS": str(len(names)),
        "LISTEN_FDNAMES": ":".join(names),
    }
    assert same(SystemdKeeper(environ, held).take(), listener, six)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)


def test_a_holder_gives_both_listeners_in_their_order_and_others_take_their_place(
    held: HolderKeeper, listener: socket.socket, six: socket.socket
) -> None:
    assert held.take() == []
    held.keep([listener.fileno(), six.fileno()])
    held.release()
    assert same(held.take(), listener, six)
    held.keep([six.fileno()])
    assert same(held.take(), six)


def test_a_daemon_that_knows_one_listener_gets_the_first_and_keeps_its_own(
    held: HolderKeeper, listener: socket.socket, six: socket.socket
) -> None:
    held.keep([listener.fileno(), six.fileno()])
    held.release()
    with connect(held.name) as sock:
        sock.send(holder.TAKE)
        message, fds = holder.receive(sock)
        assert message == holder.TAKE
        assert same(fds, listener)
        with socket.create_server(("127.0.0.1", 0)) as another:
            holder.send_fds(sock, holder.KEEP, [another.fileno()])
            assert holder.receive(sock) == (holder.KEEP, [])
            sock.close()
            assert same(held.take(), another)


def hold_one(name: str, listener: socket.socket) -> threading.Thread:
    """A holder of the release before: it keeps one, and disconnects at what it does not know."""
    held = [os.dup(listener.fileno())]
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(holder.address(name))
    server.listen(4)

    def attend(connection: socket.socket) -> None:
        while held:
            message, given = holder.receive(connection)
            for fd in given:
                os.close(fd)
            if message == holder.TAKE:
                holder.send_fds(connection, holder.TAKE, held)
            elif message == holder.DROP:
                os.close(held.pop())
            elif not message.startswith(holder.WAIT):
                return

    def serve() -> None:
        with server:
            while held:
                with server.accept()[0] as connection:
                    attend(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_holder_that_knows_one_listener_gives_it_and_is_replaced_for_two(
    held: HolderKeeper, listener: socket.socket, six: socket.socket
) -> None:
    former = hold_one(held.name, listener)
    assert same(held.take(), listener)
    assert former.is_alive()
    held.keep([listener.fileno(), six.fileno()])
    former.join(30)
    assert not former.is_alive()
    held.release()
    assert same(held.take(), listener, six)


def test_the_holder_of_another_configuration_and_release_gives_its_listener(
    later: HolderKeeper, listener: socket.socket
) -> None:
    former = hold_one(uuid.uuid4().hex, listener)
    assert same(later.take(), listener)
    former.join(30)
    assert not former.is_alive()


# Another configuration


def test_the_holder_of_another_configuration_gives_the_listener_and_ends(
    held: HolderKeeper, later: HolderKeeper, listener: socket.socket
) -> None:
    held.keep([listener.fileno()])
    held.release()
    assert same(later.take(), listener)
    assert held.take() == []
    later.release()
    assert same(later.take(), listener), "it is kept by another holder from now on"


def test_a_listener_is_known_by_its_socket_where_the_port_is_another_now(
    held: HolderKeeper, later: HolderKeeper, listener: socket.socket
) -> None:
    inode = os.fstat(listener.fileno()).st_ino
    held.keep([listener.fileno()])
    held.release()
    moved = HolderKeeper(later.name, replace(later._terms, port=1, inode=inode))
    assert same(moved.take(), listener)
    moved.drop()


@pytest.mark.parametrize("change", [{"port": 1}, {"address": "127.0.0.2"}])
def test_the_listener_of_another_daemon_stays_with_its_holder(
    held: HolderKeeper, later: HolderKeeper, listener: socket.socket, change: dict[str, Any]
) -> None:
    held.keep([listener.fileno()])
    held.release()
    stranger = HolderKeeper(later.name, replace(later._terms, **change))
    assert stranger.take() == []
    stranger.drop()
    assert same(held.take(), listener)


def test_a_holder_whose_daemon_runs_is_not_asked(
    held: HolderKeeper,
    later: HolderKeeper,
    listener: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held.keep([listener.fileno()])
    asked: list[str] = []
    monkeypatch.setattr(HolderKeeper, "_connect", lambda self: asked.append(self.name))
    assert later.take() == []
    assert later.name in asked
    assert held.name not in asked


def test_all_holders_of_the_listener_are_dropped_with_it(
    held: HolderKeeper, later: HolderKeeper, listener: socket.socket
) -> None:
    held.keep([listener.fileno()])
    held.release()
    later.keep([listener.fileno()])
    later.drop()
    assert held.take() == []


# Its end


def test_a_holder_ends_when_no_daemon_comes(listener: socket.socket) -> None:
    address = listener.getsockname()
    thread = hold(uuid.uuid4().hex, listener, 0)
    listener.close()
    thread.join(30)
    assert not thread.is_alive()
    socket.create_server(address).close()


def test_a_holder_stays_while_its_daemon_is_there_and_waits_from_its_end_on(
    listener: socket.socket,
) -> None:
    seconds = 0.3
    served, daemon = reach(listener, seconds)
    with daemon:
        # As long as it would have waited itself.
        hold(uuid.uuid4().hex, listener, seconds).join(30)
        assert served.is_alive()
    served.join(30)
    assert not served.is_alive()


def test_another_user_does_not_keep_a_holder(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, "allowed", lambda _connection: False)
    served, sock = reach(listener, 0.3)
    with sock:
        assert sock.recv(1) == b""
        served.join(30)
    assert not served.is_alive()


def test_a_daemon_says_how_long_its_holder_is_to_wait(
    held: HolderKeeper, listener: socket.socket
) -> None:
    held.keep([listener.fileno()])
    held.release()
    shorter = HolderKeeper(held.name, replace(TERMS, seconds=0))
    assert same(shorter.take(), listener)
    shorter.release()
    path = f"@{holder.PREFIX}{held.name}"
    wait_for(lambda: path not in {one.name for one in named_sockets()}, "the holder's end")


def test_a_start_while_the_holder_ends_has_a_listener_whichever_is_first(
    listener: socket.socket,
) -> None:
    address, port = listener.getsockname()
    state, ends = State(port=port), []
    # It has ended; it ends at about the same time, whether the machine is fast or busy; it stays.
    for seconds in (0, *(0.0002 * 1.5**turn for turn in range(20)), 30):
        keeping = HolderKeeper(uuid.uuid4().hex, replace(TERMS, address=address, port=port))
        ending = hold(keeping.name, listener, seconds)
        if not seconds:
            ending.join(30)
        listener.close()
        tap = TapKeeper(group(), state, keeping)
        tap.listeners.open()
        sock = tap.listeners.sockets[4]
        assert sock.getsockname() == (address, port)
        ends.append(keeping._process is None)
        keeping.drop()
        ending.join(30)
        listener = socket.socket(fileno=sock.fd.detach())
    listener.close()
    assert (ends[0], ends[-1]) == (False, True), "made anew, and taken over"


def test_a_port_that_is_free_a_moment_later_is_taken(listener: socket.socket) -> None:
    looks: list[int] = []

    def take() -> list[int]:
        looks.append(1)
        if len(looks) == 3:
            listener.close()
        return []

    port = listener.getsockname()[1]
    keeper: Any = SimpleNamespace(take=take, keep=lambda _fds: None)
    tap = TapKeeper(group(port=port), State(), keeper)
    tap.listeners.open()
    assert tap.listeners.sockets[4].getsockname()[1] == port
    tap.listeners.sockets[4].close()
    assert len(looks) == 3
