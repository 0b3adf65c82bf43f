"""A listener that a service manager passes is taken where it stands as configured, or refused."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from dfmeta.cmd.keepers import ADMIN_OPTION as OPTION
from dfmeta.cmd.keepers import activated, activated_guests
from dfmeta.errors import StartError
from tests.core.unit.test_keepers import passing


@pytest.fixture
def environ() -> dict[str, str]:
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "one"}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def give(monkeypatch: pytest.MonkeyPatch, sock: socket.socket) -> None:
    monkeypatch.setattr("dfmeta.cmd.keepers.FIRST_FD", os.dup(sock.fileno()))


def take(environ: dict[str, str], place: str) -> socket.socket | None:
    found: socket.socket | None = activated("one", OPTION, place=place, environ=environ)
    return found


def test_a_listener_at_its_place_is_taken(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], listener: socket.socket
) -> None:
    for host in ("127.0.0.1", "localhost"):
        for port in (listener.getsockname()[1], 0):
            give(monkeypatch, listener)
            taken = take(environ, f"{host}:{port}")
            assert taken is not None
            with taken:
                assert taken.getsockname() == listener.getsockname()
                assert not os.get_inheritable(taken.fileno())
    for other in ({}, environ | {"LISTEN_PID": "1"}, environ | {"LISTEN_FDNAMES": "two"}):
        assert take(other, "127.0.0.1:1") is None


def test_a_listener_at_another_place_is_refused_and_both_are_named(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], listener: socket.socket
) -> None:
    # Names need no server here.
    monkeypatch.setattr("dfmeta.cmd.keepers.green_socket.getaddrinfo", socket.getaddrinfo)
    here = "{}:{}".format(*listener.getsockname())
    for place in ("127.0.0.1:1", "192.0.2.1:0", "[::1]:0", "", "no.invalid:0"):
        give(monkeypatch, listener)
        with pytest.raises(StartError, match=f"passes one at {here}") as raised:
            take(environ, place)
        assert f"{OPTION} = {place!r}" in str(raised.value)
        assert "one.socket" in str(raised.value)


def test_other_socket_is_refused(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for family, kind in (
        (socket.AF_INET, socket.SOCK_DGRAM),
        (socket.AF_UNIX, socket.SOCK_STREAM),
        (socket.AF_INET, socket.SOCK_STREAM),
    ):
        with socket.socket(family, kind) as sock:
            give(monkeypatch, sock)
            with pytest.raises(StartError, match="passes one at "):
                take(environ, "0.0.0.0:0")


# Guests' listeners, of both versions of IP


def listen_on_both(stack: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    """Listeners at a port that no other program of the host has for either version."""
    while True:
        four = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        six = stack.enter_context(socket.socket(socket.AF_INET6))
        six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            six.bind(("::1", four.getsockname()[1]))
            six.listen()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return four, six


@pytest.fixture
def pair() -> Iterator[dict[int, socket.socket]]:
    """Listeners of both versions with one port."""
    with contextlib.ExitStack() as stack:
        four, six = listen_on_both(stack)
        yield {4: four, 6: six}


def places(pair: dict[int, socket.socket], six: str = "") -> dict[int, str]:
    port = pair[4].getsockname()[1]
    return {4: f"127.0.0.1:{port}", 6: six or f"[::1]:{port}"}


def test_guests_listeners_are_distinguished_by_their_version_of_ip(
    pair: dict[int, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    for versions in ((6, 4, 6), (6,), ()):
        environ = passing(monkeypatch, *(("guests", pair[version]) for version in versions))
        taken = activated_guests("guests", places(pair), environ=environ)
        assert taken.keys() == {*versions}
        for version, sock in taken.items():
            assert sock.family == pair[version].family
            assert sock.getsockname() == pair[version].getsockname()
            sock.close()


def test_a_listener_for_ipv6_at_another_place_is_refused(
    pair: dict[int, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = pair[6].getsockname()[1]
    environ = passing(monkeypatch, ("guests", pair[6]))
    with pytest.raises(StartError, match=rf"passes guests at \[::1\]:{port}, and .*host_ip6:port"):
        activated_guests("guests", places(pair, six="[fd00::1]:0"), environ=environ)
