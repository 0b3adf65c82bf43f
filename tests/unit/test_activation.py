"""A listener that a service manager passes is taken where it stands as configured, or refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from dfmeta.cmd.activation import ADMIN_OPTION as OPTION
from dfmeta.cmd.activation import activated
from dfmeta.exceptions import StartError
from dfmeta.proxy.sockets import confine, confined, silence


@pytest.fixture
def environ() -> dict[str, str]:
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "one"}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def give(monkeypatch: pytest.MonkeyPatch, sock: socket.socket) -> None:
    """Pass *sock* to this process, as its first descriptor."""
    monkeypatch.setattr("dfmeta.cmd.activation.FIRST_FD", os.dup(sock.fileno()))


def take(environ: dict[str, str], place: str) -> socket.socket | None:
    found: socket.socket | None = activated("one", OPTION, place=place, environ=environ)
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("port", ["its own", "0"])
def test_a_listener_at_its_place_is_taken(
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    listener: socket.socket,
    host: str,
    port: str,
) -> None:
    number = port if port == "0" else listener.getsockname()[1]
    give(monkeypatch, listener)
    found = take(environ, f"{host}:{number}")
    assert found is not None
    with found:
        assert found.getsockname() == listener.getsockname()
        assert not os.get_inheritable(found.fileno())


def test_without_a_manager_there_is_none(environ: dict[str, str]) -> None:
    assert take({}, "127.0.0.1:1") is None
    assert take(environ | {"LISTEN_PID": "1"}, "127.0.0.1:1") is None
    assert take(environ | {"LISTEN_FDNAMES": "two"}, "127.0.0.1:1") is None


@pytest.mark.parametrize("place", ["127.0.0.1:1", "192.0.2.1:0", "[::1]:0", "", "no.invalid:0"])
def test_another_place_is_refused_and_both_are_named(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], listener: socket.socket, place: str
) -> None:
    # Names need no server here.
    monkeypatch.setattr("dfmeta.cmd.activation.green_socket.getaddrinfo", socket.getaddrinfo)
    give(monkeypatch, listener)
    here = "{}:{}".format(*listener.getsockname())
    with pytest.raises(StartError, match=f"passes one at {here}") as raised:
        take(environ, place)
    assert f"{OPTION} = {place!r}" in str(raised.value)
    assert "one.socket" in str(raised.value)


@pytest.mark.parametrize("kind", ["datagram", "unix", "not listening"])
def test_what_is_no_tcp_listener_is_refused(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], kind: str
) -> None:
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    type_ = socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM
    with socket.socket(family, type_) as sock:
        give(monkeypatch, sock)
        with pytest.raises(StartError, match="passes one at "):
            take(environ, "0.0.0.0:0")


def test_who_was_heard_before_the_filter_is_reset_and_nobody_is_heard_after(
    listener: socket.socket,
) -> None:
    class Green:
        """As eventlet's: the plain socket is inside."""

        fd = listener
        setsockopt = listener.setsockopt

    listener.setblocking(False)
    assert not confined(listener)
    with socket.create_connection(listener.getsockname(), 2) as early:
        assert silence(Green()) == 1
        with pytest.raises(ConnectionResetError):
            early.recv(1)
    assert confined(listener)
    with pytest.raises(TimeoutError):
        socket.create_connection(listener.getsockname(), 0.05)
    confine(listener, socket.if_nametoindex("lo"))
    socket.create_connection(listener.getsockname(), 2).close()
