"""What a relay holds back comes later, and whole."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.netns import temporary_folder
from tests.harness.relay import Relay


@pytest.fixture
def folder() -> Iterator[Path]:
    path = temporary_folder("relay")
    yield path
    path.rmdir()


@pytest.fixture
def echoing(folder: Path) -> Iterator[Path]:
    """A unix socket that says back what it hears."""
    path = folder / "echo.sock"

    def echo(connection: socket.socket) -> None:
        with connection:
            while piece := connection.recv(65536):
                connection.sendall(piece)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=accept)
        thread.start()
        yield path
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    path.unlink()


def test_answers_wait_while_they_are_held(folder: Path, echoing: Path) -> None:
    with (
        Relay(echoing, folder / "relay.sock") as relay,
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.settimeout(5)
        client.connect(str(relay.path))
        client.sendall(b"one")
        assert client.recv(100) == b"one"
        relay.hold()
        client.sendall(b"two")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(100)
        relay.let_go()
        client.settimeout(5)
        assert client.recv(100) == b"two"


def test_who_is_connected_is_cut_when_it_ends(folder: Path, echoing: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        with Relay(echoing, folder / "relay.sock") as relay:
            client.settimeout(5)
            client.connect(str(relay.path))
            client.sendall(b"one")
            assert client.recv(100) == b"one"
        assert client.recv(100) == b""
        assert not relay.path.exists()


def test_who_comes_while_nobody_is_there_is_cut(folder: Path) -> None:
    with (
        Relay(folder / "nobody.sock", folder / "relay.sock") as relay,
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.settimeout(5)
        client.connect(str(relay.path))
        assert client.recv(100) == b""


def test_a_connection_that_is_cut_can_be_made_anew(folder: Path, echoing: Path) -> None:
    with Relay(echoing, folder / "relay.sock") as relay:
        for _ in range(2):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(5)
                client.connect(str(relay.path))
                client.sendall(b"one")
                assert client.recv(100) == b"one"
                relay.cut()
                assert client.recv(100) == b""
