"""The bridge's own socket should be found, dialled, and dialled again."""

import errno
import socket
from pathlib import Path
from typing import Any

import eventlet
import eventlet.green.socket as green_socket
import pytest

# os-ken's controller module cannot be the first of its modules to be imported.
from os_ken.base import app_manager  # noqa: F401

from dfmeta.apps import dial as dial_module
from dfmeta.apps.dial import Refusals, accept, dial, listen
from dfmeta.errors import StartError
from dfmeta.runtime.throttle import QUIET
from tests.core.unit.support import until


def test_a_bridge_that_is_away_is_dialled_until_it_is_there_and_again_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    connections: list[Any] = []

    def serve(sock: Any, _address: object) -> None:
        # os-ken sets this on every connection; a unix socket has no such option.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connections.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        sock.close()

    monkeypatch.setattr(dial_module, "datapath_connection_factory", serve)
    thread = eventlet.spawn(dial, tmp_path / "br-int.mgmt", Refusals("br-int"))
    until(lambda: "Waiting for" in caplog.text, "a first try")
    with green_socket.socket(socket.AF_UNIX) as bridge:
        bridge.bind(str(tmp_path / "br-int.mgmt"))
        bridge.listen()
        until(lambda: len(connections) >= 2, "two connections")
    thread.kill()
    assert connections[0] == 1
    assert caplog.text.count("Waiting for") <= 2


def test_a_process_without_a_descriptor_dials_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tries: list[Path] = []

    class Short:
        """There is no descriptor left for a socket."""

        def __init__(self) -> None:
            tries.append(tmp_path)
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(dial_module, "_BridgeSocket", Short)
    thread = eventlet.spawn(dial, tmp_path / "br-int.mgmt", Refusals("br-int"))
    until(lambda: len(tries) >= 3, "three tries")
    thread.kill()
    assert caplog.text.count("Too many open files") == 1


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    addresses: list[Any] = []

    def serve(sock: Any, address: Any) -> None:
        addresses.append(address[0])
        sock.close()

    monkeypatch.setattr(dial_module, "datapath_connection_factory", serve)
    return addresses


def test_descriptors_let_a_bridge_in(taken: list[Any], caplog: pytest.LogCaptureFixture) -> None:

    class Short:
        """A listener of a process without a descriptor left, twice."""

        left = 2

        def accept(self) -> Any:
            if self.left:
                self.left -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return listener.accept()

    listener = listen("127.0.0.1", 0)
    thread = eventlet.spawn(accept, Short(), Refusals("br-int"))
    with eventlet.connect(listener.getsockname()):
        until(lambda: taken, "a connection")
    thread.kill()
    listener.close()
    assert caplog.text.count("Too many open files") == 1
    assert taken == ["127.0.0.1"]


def test_an_address_that_is_taken_is_the_operators_to_change() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(StartError, match=r"openflow_connection = listen:127\.0\.0\.1"):
            listen("127.0.0.1", other.getsockname()[1])


def test_bridge_of_another_version_is_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [1000.0]
    refusals = Refusals("br-lan", clock=lambda: now[0])
    for _ in range(5):
        refusals.note()
    (line,) = caplog.messages
    assert "ovs-vsctl add Bridge br-lan protocols OpenFlow13" in line
    now[0] += QUIET
    refusals.note()
    assert caplog.messages == [line, line]
