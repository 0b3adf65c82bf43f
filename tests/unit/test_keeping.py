"""The guests' listener outlives the daemon: kept by systemd, or by a holder of our own."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dfmeta.cmd import keeping
from dfmeta.cmd.keeping import FD_NAME, HolderKeeper, SystemdKeeper, keeper, notify
from dfmeta.exceptions import HostError
from dfmeta.proxy import holder
from tests.harness.poll import wait_for


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def held() -> Iterator[HolderKeeper]:
    """A keeper under a name of its own; its holder goes with the test."""
    one = HolderKeeper(uuid.uuid4().hex)
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


def same(fd: int | None, sock: socket.socket) -> bool:
    """Whether the descriptor is of that socket; closes it."""
    assert fd is not None
    with socket.socket(fileno=fd) as other:
        return os.fstat(other.fileno()).st_ino == os.fstat(sock.fileno()).st_ino


def test_systemd_stores_the_listener_under_its_name(
    systemd: Systemd, listener: socket.socket
) -> None:
    SystemdKeeper(systemd.environ).keep(listener.fileno())
    assert systemd.told() == (f"FDSTOREREMOVE=1\nFDNAME={FD_NAME}", [])
    message, (fd,) = systemd.told()
    assert message == f"FDSTORE=1\nFDNAME={FD_NAME}"
    assert same(fd, listener)


def test_a_stored_listener_is_found_among_what_systemd_passes(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    first = os.dup(listener.fileno())
    monkeypatch.setattr("dfmeta.cmd.activation.FIRST_FD", first)
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": FD_NAME}
    assert same(SystemdKeeper(environ).take(), listener)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": FD_NAME},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "another"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0", "LISTEN_FDNAMES": FD_NAME},
    ],
)
def test_what_was_passed_to_another_is_left_alone(environ: dict[str, str]) -> None:
    assert SystemdKeeper(environ).take() is None


def test_without_systemd_nothing_is_told(systemd: Systemd) -> None:
    notify({}, "READY=1")
    notify({"NOTIFY_SOCKET": "/nonexistent/notify"}, "READY=1")
    notify(systemd.environ, "READY=1")
    assert systemd.told() == ("READY=1", [])


def test_systemd_is_used_where_it_is() -> None:
    assert isinstance(keeper("unix:/db", "br-int", {"NOTIFY_SOCKET": "/n"}), SystemdKeeper)
    assert isinstance(keeper("unix:/db", "br-int", {}), HolderKeeper)


def test_nothing_is_held_at_first(held: HolderKeeper) -> None:
    assert held.take() is None


def test_a_holder_gives_the_listener_to_the_next_daemon(
    held: HolderKeeper, listener: socket.socket
) -> None:
    held.keep(listener.fileno())
    address = listener.getsockname()
    held.release()
    listener.close()
    # Nobody of ours has it open; a guest is still accepted by the kernel.
    with socket.create_connection(address, 2):
        fd = held.take()
        assert fd is not None
        with socket.socket(fileno=fd) as again:
            connection, _peer = again.accept()
            connection.close()


def test_another_listener_takes_the_place_of_the_one_before(
    held: HolderKeeper, listener: socket.socket
) -> None:
    held.keep(listener.fileno())
    with socket.create_server(("127.0.0.1", 0)) as other:
        held.keep(other.fileno())
        assert same(held.take(), other)


def test_a_holder_that_died_is_replaced(held: HolderKeeper, listener: socket.socket) -> None:
    held.keep(listener.fileno())
    held.look_after(listener.fileno())
    another = HolderKeeper(held.name)
    held.drop()
    assert another.take() is None
    held.look_after(listener.fileno())
    held.release()
    assert same(another.take(), listener)
    another.drop()


def test_a_holder_of_another_user_gets_and_gives_nothing(
    held: HolderKeeper, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "START_TRIES", 2)
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
        assert held.take() is None
        with pytest.raises(HostError, match="no holder started"):
            held.keep(listener.fileno())
        heard = [squatter.stdout.readline() for _ in range(2)]
        # The one that was started finds the name taken, however late it looks.
        assert held._process is not None
        assert held._process.wait(30) == 1
        squatter.kill()
    assert heard == ["(b'', [])\n"] * 2


def test_a_dropped_listener_refuses(held: HolderKeeper, listener: socket.socket) -> None:
    held.keep(listener.fileno())
    address = listener.getsockname()
    listener.close()
    held.drop()

    def refused() -> bool:
        try:
            socket.create_connection(address, 2).close()
        except ConnectionRefusedError:
            return True
        return False

    wait_for(refused, 5, "a refusal")


def test_the_program_holds_one_for_each_name(listener: socket.socket) -> None:
    name = uuid.uuid4().hex
    thread = threading.Thread(target=holder.serve, args=(name, os.dup(listener.fileno())))
    thread.start()

    def connect() -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(holder.address(name))
        except OSError:
            sock.close()
            return None
        return sock

    found: list[socket.socket] = []
    wait_for(lambda: bool(found.append(one) or True if (one := connect()) else False), 5, "it")
    with found[0] as sock:
        assert holder.serve(name, 0) == 1
        sock.send(b"nonsense")
        assert sock.recv(1) == b""
    with connect() as sock:  # type: ignore[union-attr]  # it is there
        holder.send_fd(sock, holder.KEEP, listener.fileno())
        assert holder.receive(sock) == (holder.KEEP, None)
        sock.send(holder.TAKE)
        message, fd = holder.receive(sock)
        assert message == holder.TAKE
        assert same(fd, listener)
        sock.send(holder.DROP)
    thread.join(5)
    assert not thread.is_alive()
