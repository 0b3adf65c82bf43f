"""The guests' listeners should have one port, outlive the daemon, and need no address there."""

import contextlib
import errno
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dfmeta.cmd import listeners as listeners_module
from dfmeta.cmd.listeners import GuestListeners
from dfmeta.cmd.tap import TapKeeper
from dfmeta.errors import StartError
from dfmeta.http import sockets
from dfmeta.http.limits import SYN_ACK_RETRIES
from dfmeta.http.sockets import confine, confined, index_of, silence
from dfmeta.runtime import clock
from dfmeta.runtime.saved_state import SavedState
from tests.core.unit import test_keepers

NOT_OURS = "fd00:a9fe:a9fe:a9fe::a9fe"
"""An address that no device has."""

NUMBERS = range(21000, 21100)
listener = test_keepers.listener


def group(**options: object) -> Any:
    common = {"metadata_interface": "lo", "host_ip": "127.0.0.1", "host_ip6": "::1"}
    return SimpleNamespace(**{**common, "ip6": ["fe80::a9fe:a9fe"], "port": 0, **options})


class Keeping:
    """Keeps nothing; has what an earlier run left, and notes what it is to keep."""

    def __init__(self, *left: socket.socket) -> None:
        self.left = [os.dup(sock.fileno()) for sock in left]
        self.kept: list[list[int] | None] = []
        """Inodes of each call; None: dropped."""

    def take(self) -> list[int]:
        return self.left

    def keep(self, fds: Sequence[int]) -> None:
        self.kept.append([os.fstat(fd).st_ino for fd in fds])

    def ensure_kept(self, fds: Sequence[int]) -> None:
        self.keep(fds)

    def drop(self) -> None:
        self.kept.append(None)


Make = Callable[..., GuestListeners]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(clock, "CHECK_INTERVAL", 0.0)
    made: list[GuestListeners] = []

    def make(
        keeping: Keeping, state: SavedState | None = None, **options: object
    ) -> GuestListeners:
        made.append(GuestListeners(group(**options), state or SavedState(), keeping))
        return made[-1]

    yield make
    for listeners in made:
        for sock in listeners.sockets.values():
            sock.close()


def inode(sock: Any) -> int:
    return os.fstat(sock.fileno()).st_ino


def inodes(listeners: GuestListeners) -> list[int]:
    return [inode(sock) for sock in listeners.sockets.values()]


def numbers(listeners: GuestListeners) -> set[int]:
    return {sock.getsockname()[1] for sock in listeners.sockets.values()}


@pytest.fixture
def earlier(make: Make) -> GuestListeners:
    listeners = make(Keeping())
    listeners.open()
    return listeners


def port_of(listeners: GuestListeners) -> int:
    (number,) = numbers(listeners)
    return number


def test_both_are_opened_at_one_port_and_kept(make: Make) -> None:
    keeping = Keeping()
    listeners = make(keeping)
    listeners.open()
    assert list(listeners.sockets) == [4, 6]
    assert [sock.getsockname()[0] for sock in listeners.sockets.values()] == ["127.0.0.1", "::1"]
    assert len(numbers(listeners)) == 1
    assert keeping.kept == [inodes(listeners)]
    for sock in listeners.sockets.values():
        assert confined(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT) == SYN_ACK_RETRIES
    assert listeners.sockets[6].family == socket.AF_INET6
    assert listeners.sockets[6].getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
    listeners.open()
    assert len(keeping.kept) == 1, "there is nothing left to do"


def test_missing_device_is_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    keeping = Keeping()
    listeners = make(keeping)
    for later in ("at once", "after both were opened"):
        with monkeypatch.context() as patched:
            module = listeners_module if later != "at once" else sockets
            patched.setattr(module, "index_of", lambda _device: index_of("dfm-none"))
            with pytest.raises(OSError, match="No such device") as caught:
                listeners.open()
        assert caught.value.errno == errno.ENODEV
        assert len(listeners.sockets) == (0 if later == "at once" else 2)
    listeners.open()
    assert all(confined(sock) for sock in listeners.sockets.values())
    assert keeping.kept == [inodes(listeners)]


@pytest.mark.parametrize("how", ["not configured", "not in the kernel"])
def test_without_ipv6_there_is_one(make: Make, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "not in the kernel":
        monkeypatch.setattr(listeners_module, "has_ipv6", lambda: False)
    keeping = Keeping()
    listeners = make(keeping, ip6=[] if how == "not configured" else ["fe80::a9fe:a9fe"])
    listeners.open()
    assert list(listeners.sockets) == [4]
    assert keeping.kept == [inodes(listeners)]


def taken() -> socket.socket:
    """A listener at a port that no program has at ::1 or 127.0.0.1, below those of connections."""
    for number in NUMBERS:
        with contextlib.suppress(OSError):
            socket.create_server(("127.0.0.1", number)).close()
            return socket.create_server(("::1", number), family=socket.AF_INET6)
    raise AssertionError("every port is taken")


def test_another_program_at_the_port_for_ipv6_is_one_clear_line(make: Make) -> None:
    with taken() as other:
        number = other.getsockname()[1]
        listeners = make(Keeping(), port=number)
        with pytest.raises(
            StartError, match=rf"cannot listen on \[::1\]:{number} on lo: "
        ) as raised:
            listeners.open()
        assert "[df_metadata] port" in str(raised.value)


def test_without_a_configured_port_both_move_to_one_that_is_free(make: Make) -> None:
    keeping = Keeping()
    with taken() as other:
        number = other.getsockname()[1]
        listeners = make(keeping, SavedState(port=number))
        listeners.open()
        assert len(numbers(listeners)) == 1
        assert number not in numbers(listeners)
    assert keeping.kept == [inodes(listeners)]


def test_both_are_taken_over_and_keep_room_for_others(make: Make, earlier: GuestListeners) -> None:
    """Else what is half open stays for the kernel's default, a minute."""
    for sock in earlier.sockets.values():
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, SYN_ACK_RETRIES + 1)
    keeping = Keeping(*reversed(earlier.sockets.values()))
    listeners = make(keeping, SavedState(port=port_of(earlier)))
    listeners.open()
    assert inodes(listeners) == inodes(earlier)
    assert listeners.sockets[6].family == socket.AF_INET6
    assert keeping.kept == [], "they are kept already"
    for sock in listeners.sockets.values():
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT) == SYN_ACK_RETRIES


def test_listener_without_ipv6_gets_its_second(make: Make, earlier: GuestListeners) -> None:
    keeping = Keeping(earlier.sockets[4])
    number = port_of(earlier)
    earlier.sockets[6].close()
    listeners = make(keeping, port=number)
    listeners.open()
    assert inode(listeners.sockets[4]) == inode(earlier.sockets[4])
    assert numbers(listeners) == {number}
    assert keeping.kept == [inodes(listeners)]
    listeners.undo()
    assert keeping.kept[1:] == [[inode(earlier.sockets[4])]], "only the second one was made"


def test_those_at_another_place_are_closed(
    make: Make, earlier: GuestListeners, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    keeping = Keeping(*earlier.sockets.values())
    listeners = make(keeping, SavedState(port=port_of(earlier)), host_ip6=NOT_OURS)
    listeners.open()
    assert inode(listeners.sockets[4]) == inode(earlier.sockets[4])
    assert listeners.sockets[6].getsockname()[0] == NOT_OURS
    assert keeping.kept == [inodes(listeners)]
    listeners.close_former()
    assert f"Closed the listener of an earlier run at [::1]:{port_of(earlier)}" in caplog.text


def test_those_at_another_place_neither_accept_nor_refuse_guests_until_flows_are_exchanged(
    make: Make, earlier: GuestListeners
) -> None:
    place = earlier.sockets[4].getsockname()
    listeners = make(Keeping(*earlier.sockets.values()), host_ip="127.0.0.2")
    with socket.create_connection(place) as waits:
        # The last part of its handshake may be on its way.
        select.select([earlier.sockets[4].fileno()], [], [])
        listeners.open()
        with pytest.raises(ConnectionResetError):
            waits.recv(1)
    assert not accepts(earlier.sockets[4], wait=False)
    listeners.close_former()


def test_a_unit_with_both_needs_no_keeper(make: Make, earlier: GuestListeners) -> None:
    keeping = Keeping()
    listeners = make(keeping)
    listeners.take_over({version: socket_of(earlier, version) for version in (6, 4)})
    listeners.open()
    assert inodes(listeners) == inodes(earlier)
    assert keeping.kept == [None]
    listeners.ensure_kept()
    listeners.undo()
    assert keeping.kept == [None]


def test_listeners_of_a_unit_with_two_ports_are_refused(make: Make) -> None:
    both = [make(Keeping()), make(Keeping())]
    for listeners in both:
        listeners.open()
    places = [both[0].sockets[4].getsockname()[1], both[1].sockets[6].getsockname()[1]]
    with pytest.raises(StartError, match=r"127\.0\.0\.1:{}, \[::1\]:{}".format(*places)):
        make(Keeping()).take_over({4: socket_of(both[0], 4), 6: socket_of(both[1], 6)})


def socket_of(listeners: GuestListeners, version: int) -> Any:
    """A socket of the same listener, as another process has it."""
    return sockets.adopt(os.dup(listeners.sockets[version].fileno()))


def test_both_follow_a_recreated_device(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = make(Keeping())
    real = socket.if_nametoindex("lo")
    assert listeners.follow() == (real, False), "there is none yet"
    listeners.open()
    assert listeners.follow() == (real, False)
    for index, reachable in ((real + 1000, False), (real, True)):
        monkeypatch.setattr(
            listeners_module.socket, "if_nametoindex", lambda _name, result=index: result
        )
        assert listeners.follow() == (index, True)
        for sock in listeners.sockets.values():
            assert accepts(sock, wait=reachable) is reachable


def accepts(listener: Any, *, wait: bool) -> bool:
    """Whether the kernel has answered a SYN to the listener; if *wait*, it will."""
    with socket.socket(listener.family) as guest:
        guest.setblocking(False)
        guest.connect_ex(listener.getsockname()[:2])
        poller = select.poll()
        poller.register(guest, select.POLLOUT)
        return bool(poller.poll(None if wait else 0))


def test_a_filter_resets_earlier_connections_and_drops_later_ones(listener: socket.socket) -> None:
    class Green:
        fd = listener
        setsockopt = listener.setsockopt

    listener.setblocking(False)
    assert not confined(listener)
    with socket.create_connection(listener.getsockname()) as early:
        # What it is connected to may not be there to be accepted yet.
        assert select.select([listener], [], [])[0]
        assert silence(Green()) == 1
        with pytest.raises(ConnectionResetError):
            early.recv(1)
    assert confined(listener)
    with socket.socket() as late:
        late.setblocking(False)
        # Refused or established, it would be ready for writing.
        late.connect_ex(listener.getsockname())
        assert select.select([], [late], [], 0) == ([], [], [])
    confine(listener, socket.if_nametoindex("lo"))
    socket.create_connection(listener.getsockname()).close()


def test_a_port_that_is_free_a_moment_later_is_taken(listener: socket.socket) -> None:
    looks: list[int] = []

    def take() -> list[int]:
        looks.append(1)
        if len(looks) == 3:
            listener.close()
        return []

    port = listener.getsockname()[1]
    keeper: Any = SimpleNamespace(take=take, keep=lambda _fds: None)
    tap = TapKeeper(test_keepers.group(port=port), SavedState(), keeper)
    tap.listeners.open()
    assert tap.listeners.sockets[4].getsockname()[1] == port
    tap.listeners.sockets[4].close()
    assert len(looks) == 3
