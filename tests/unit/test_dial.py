"""The bridge's own socket should be found, dialled, and dialled again."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import eventlet
import eventlet.green.socket as green_socket
import pytest

# os-ken's controller module cannot be the first of its modules to be imported.
from os_ken.base import app_manager  # noqa: F401

from dfmeta.apps import dial as dial_module
from dfmeta.apps.dial import dial, listen
from tests.unit.support import let_hub_run, until


def test_a_bridge_that_is_away_is_dialled_until_it_is_there_and_again_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(dial_module, "FIRST_PAUSE", 0.001)
    connections: list[Any] = []

    def serve(sock: Any, _address: object) -> None:
        # os-ken sets this on every connection; a unix socket has no such option.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connections.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        sock.close()

    monkeypatch.setattr(dial_module, "datapath_connection_factory", serve)
    thread = eventlet.spawn(dial, tmp_path / "br-int.mgmt")
    until(lambda: "Waiting for" in caplog.text, "a first try")
    with green_socket.socket(socket.AF_UNIX) as bridge:
        bridge.bind(str(tmp_path / "br-int.mgmt"))
        bridge.listen()
        until(lambda: len(connections) >= 2, "two connections")
    thread.kill()
    assert connections[0] == 1
    assert caplog.text.count("Waiting for") <= 2


def test_a_bridge_may_dial_us(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []

    def serve(sock: Any, address: Any) -> None:
        taken.append(address[0])
        sock.close()

    monkeypatch.setattr(dial_module, "datapath_connection_factory", serve)
    made: list[Any] = []
    original = eventlet.listen

    def remembered(*args: Any, **named: Any) -> Any:
        made.append(original(*args, **named))
        return made[-1]

    monkeypatch.setattr(dial_module.eventlet, "listen", remembered)
    thread = eventlet.spawn(listen, "127.0.0.1", 0)
    let_hub_run()
    with eventlet.connect(made[0].getsockname()):
        until(lambda: taken, "a connection")
    thread.kill()
    made[0].close()
    assert taken == ["127.0.0.1"]
