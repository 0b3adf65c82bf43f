"""The guests' listeners in a holder process, which outlives the daemon."""

import os
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dfmeta.cmd import holder
from dfmeta.cmd.keepers import HolderKeeper, SystemdKeeper
from dfmeta.errors import HostError
from dfmeta.host.process import named_sockets
from dfmeta.runtime import clock
from tests.core.unit.test_keepers import FD_NAME, TERMS, listener, same, six, systemd
from tests.harness.activator import Manager
from tests.harness.poll import DEADLINE, wait_for

__all__ = ["listener", "six", "systemd"]
NO_DEVICE = TERMS.device


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a holder take long to start and to answer, as it may on a busy machine."""
    monkeypatch.setattr(clock, "ANSWER_TIMEOUT", DEADLINE)


@pytest.fixture
def held() -> Iterator[HolderKeeper]:
    keeper = HolderKeeper(uuid.uuid4().hex, TERMS)
    yield keeper
    keeper.drop()


def hold(name: str, listener: socket.socket, seconds: float) -> threading.Thread:
    """A holder of that name in a thread, with a descriptor of its own."""
    what = holder.HeldListeners([os.dup(listener.fileno())], seconds, NO_DEVICE)
    thread = threading.Thread(target=holder.serve, args=(name, what))
    thread.start()
    return thread


def connect(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wait_for(lambda: sock.connect_ex(holder.address(name)) == 0, "the holder")
    return sock


def test_systemd_gets_the_listener_of_a_daemon_that_ran_without_it(
    systemd: Manager, held: HolderKeeper, listener: socket.socket
) -> None:
    held.keep([listener.fileno()])
    held.release()
    again = HolderKeeper(held.name, TERMS)
    environ = {"NOTIFY_SOCKET": str(systemd.path)}
    assert same(SystemdKeeper(environ, again).take(), listener)
    assert systemd.heard(f"FDSTORE=1\nFDNAME={FD_NAME}")
    assert same([os.dup(fd) for fd in systemd.stored], listener)
    assert not again.take()


def test_a_holder_that_has_ended_is_replaced(held: HolderKeeper, listener: socket.socket) -> None:
    held.keep([listener.fileno()])
    held.ensure_kept([listener.fileno()])
    another = HolderKeeper(held.name, TERMS)
    held.drop()
    assert another.take() == []
    held.ensure_kept([listener.fileno()])
    held.release()
    assert same(another.take(), listener)
    another.drop()


def test_a_holder_of_another_user_gets_and_gives_nothing(
    held: HolderKeeper, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "ANSWER_TIMEOUT", 3 * clock.POLL)
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
        assert held._process.wait() == 1
        squatter.kill()
    assert heard == ["(b'', [])\n"] * 2


def test_the_program_holds_one_for_each_name(listener: socket.socket) -> None:
    name = uuid.uuid4().hex
    thread = hold(name, listener, 600)
    for nonsense in (b"nonsense", b"wait", b"wait long x", b"wait \xff"):
        with connect(name) as sock:
            assert holder.serve(name, holder.HeldListeners([0], 600, NO_DEVICE)) == 1
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
    thread.join()


def test_a_holder_gives_both_listeners_in_their_order_and_others_take_their_place(
    held: HolderKeeper, listener: socket.socket, six: socket.socket
) -> None:
    assert held.take() == []
    held.keep([listener.fileno(), six.fileno()])
    held.release()
    assert same(held.take(), listener, six)
    held.keep([six.fileno()])
    assert same(held.take(), six)


def test_a_holder_waits_from_the_end_of_its_daemon_on(listener: socket.socket) -> None:
    name = uuid.uuid4().hex
    served = hold(name, listener, 600)
    with connect(name) as daemon:
        daemon.send(holder.terms(0, NO_DEVICE))
        holder.send_fds(daemon, holder.KEEP, [listener.fileno()])
        assert holder.receive(daemon) == (holder.KEEP, [])
        assert served.is_alive()
    served.join()


def test_another_user_does_not_keep_a_holder(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, name = 0.0, uuid.uuid4().hex
    monkeypatch.setattr(holder, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(holder, "allowed", lambda _connection: False)
    served = hold(name, listener, 600)
    with connect(name) as sock:
        assert sock.recv(1) == b""
    now = 600.0
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        # It looks at its clock at once, if it has not yet.
        sock.connect_ex(holder.address(name))
    served.join()


def test_daemon_sets_its_holders_wait(held: HolderKeeper, listener: socket.socket) -> None:
    held.keep([listener.fileno()])
    held.release()
    shorter = HolderKeeper(held.name, replace(TERMS, seconds=0))
    assert same(shorter.take(), listener)
    shorter.release()
    path = f"@{holder.PREFIX}{held.name}"
    wait_for(
        lambda: path not in {socket_row.name for socket_row in named_sockets()}, "the holder's end"
    )
