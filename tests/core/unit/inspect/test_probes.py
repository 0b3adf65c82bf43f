"""Probes of servers and programs that answer well, oddly, or not at all."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from eventlet.green import socket as green_socket

from dfmeta.exceptions import OvsdbError
from dfmeta.inspect import jsonrpc, programs
from dfmeta.inspect.jsonrpc import RefusedError, call, why
from dfmeta.inspect.vswitchd import (
    Vswitchd,
    VswitchdError,
    control_socket,
    management_socket,
    run_folder,
)
from dfmeta.ports.ovsdb_facts import read_snapshot
from dfmeta.runtime import clock
from tests.core.unit.inspect.test_firewall import PRINTED, SYN, SYN6, ruleset

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server that answers one request with the given pieces, and then no other."""
    monkeypatch.setattr(jsonrpc, "socket", green_socket)
    threads: list[Any] = []

    def start(*pieces: bytes, name: str = "sock", tcp: bool = False, mute: bool = False) -> str:
        path = str(tmp_path / name)
        family = green_socket.AF_INET if tcp else green_socket.AF_UNIX
        listener = eventlet.listen(("127.0.0.1", 0) if tcp else path, family)

        def answer() -> None:
            with listener:
                connection = listener.accept()[0]
                with connection:
                    connection.recv(65536)
                    if mute:
                        eventlet.Event().wait()
                    # Closed before it answers: a second question is refused.
                    listener.close()
                    for piece in pieces:
                        connection.sendall(piece)

        threads.append(eventlet.spawn(answer))
        return f"tcp:127.0.0.1:{listener.getsockname()[1]}" if tcp else f"unix:{path}"

    yield start
    for thread in threads:
        thread.kill()


def reply(result: Any, error: Any = None) -> bytes:
    return json.dumps({"id": 1, "result": result, "error": error}).encode()


def test_answer_comes_in_pieces_behind_an_echo_over_unix_and_tcp(serve: Serve) -> None:
    echo = json.dumps({"id": "echo", "method": "echo", "params": []}).encode()
    whole = echo + reply({"a": {"b": "}"}})
    pieces = [whole[n : n + 7] for n in range(0, len(whole), 7)]
    assert call(serve(*pieces), "m", []) == {"a": {"b": "}"}}
    assert call(serve(*pieces, tcp=True), "m", []) == {"a": {"b": "}"}}
    with pytest.raises(ValueError, match="only unix: and tcp:"):
        call("ssl:127.0.0.1:6640", "m", [])


def test_refusals_and_silence_are_errors_in_words(serve: Serve) -> None:
    for error, text in (
        ("no such bridge\n", "no such bridge"),
        ({"error": "e", "details": "d"}, "d"),
        ({"error": "e"}, "e"),
    ):
        with pytest.raises(RefusedError, match=f"^{text}$"):
            call(serve(reply(None, error), name=text), "m", [])
    with pytest.raises(ConnectionResetError) as caught:
        call(serve(b'{"id": 1'), "m", [])
    assert why(caught.value) == "it closed the connection"
    before = clock.now()
    with pytest.raises(TimeoutError) as late:
        call(serve(name="mute", mute=True), "m", [], timeout=7)
    assert why(late.value) == "no answer in time"
    assert clock.now() - before == pytest.approx(7, abs=0.1)


def test_sockets_of_open_vswitch_are_beside_ovsdbs(tmp_path: Path) -> None:
    run = Path("/var/run/openvswitch")
    assert run_folder("unix:/a/db.sock") == Path("/a")
    assert run_folder("tcp:127.0.0.1:6640") == run
    for openflow, ovsdb, path in (
        ("auto", "unix:/var/run/openvswitch/db.sock", run / "br-int.mgmt"),
        ("auto", "unix:/srv/ovs/other.sock", Path("/srv/ovs/br-int.mgmt")),
        ("auto", "tcp:127.0.0.1:6640", run / "br-int.mgmt"),
        ("unix:/b/x", "unix:/a/db.sock", Path("/b/x")),
        ("listen:[::]:6653", "tcp:a:1", run / "br-int.mgmt"),
    ):
        assert management_socket(openflow, ovsdb, "br-int") == path
    with pytest.raises(VswitchdError, match="not running"):
        control_socket(tmp_path)
    (tmp_path / "ovs-vswitchd.ctl").touch()
    (tmp_path / "ovs-vswitchd.7.ctl").touch()
    assert control_socket(tmp_path).name == "ovs-vswitchd.ctl"
    (tmp_path / "ovs-vswitchd.pid").write_text("7\n")
    assert control_socket(tmp_path).name == "ovs-vswitchd.7.ctl"


def test_vswitchd_answers_and_refuses(serve: Serve, tmp_path: Path) -> None:
    serve(reply("ovs-vswitchd (Open vSwitch) 3.1.0\n"), name="ovs-vswitchd.ctl")
    assert Vswitchd(tmp_path).version() == "ovs-vswitchd (Open vSwitch) 3.1.0"
    with pytest.raises(VswitchdError, match=r"ECONNREFUSED|Connection refused"):
        Vswitchd(tmp_path).trace("br0", "tcp")


def test_rows_of_ovsdb_become_interfaces(serve: Serve) -> None:
    uuids = [["uuid", name] for name in "abcd"]
    bridge_row = {
        "name": "br0",
        "ports": uuids[0],
        "datapath_type": "",
        "protocols": ["set", []],
        "fail_mode": "secure",
        "external_ids": ["map", [["dfmeta", "meta of br-int"]]],
    }
    port_row = {
        "_uuid": uuids[0],
        "interfaces": ["set", [uuids[2], uuids[3]]],
        "tag": 7,
        "vlan_mode": ["set", []],
        "cvlans": ["set", [1, 2]],
    }
    interface_rows = [
        {
            "_uuid": uuid,
            "name": name,
            "type": "",
            "ofport": ofport,
            "mtu": ["set", []],
            "external_ids": ["map", [["iface-id", name], ["attached-mac", "m"]]],
            "mac_in_use": "fa:16:3e:00:00:01",
            "error": ["set", []],
            "options": ["map", [["peer", "p"]]],
            "status": ["map", [["driver_name", "veth"], ["driver_version", "1.0"]]],
        }
        for uuid, name, ofport in ((uuids[2], "t1", -1), (uuids[3], "t2", 5))
    ]
    switch_row = {"external_ids": ["map", [["ovn-bridge-mappings", "meta:br0"]]]}
    answers = [{"rows": rows} for rows in ([switch_row], [bridge_row], [port_row], interface_rows)]
    snapshot = read_snapshot(serve(reply(answers)))
    first, second = snapshot.interfaces
    assert (first.name, first.ofport, second.ofport) == ("t1", None, 5)
    assert (first.driver, first.options) == ("veth", {"peer": "p"})
    assert (first.tag, first.vlan_mode, first.cvlans) == (7, "", (1, 2))
    (port,) = second.ports
    assert (port.iface_id, port.ofport) == ("t2", 5)
    assert snapshot.interface("t2", "br0") == second
    assert snapshot.interface("t2", "br1") is None
    assert snapshot.bridge("br1") is None
    bridge = snapshot.bridge("br0")
    assert bridge is not None
    assert (bridge.fail_mode, bridge.external_ids) == ("secure", {"dfmeta": "meta of br-int"})
    assert snapshot.external_ids == {"ovn-bridge-mappings": "meta:br0"}
    for name, result in (("a", [{"error": "unknown table"}]), ("b", None), ("c", [1, 2, 3])):
        with pytest.raises(OvsdbError, match="OVSDB at unix:"):
            read_snapshot(serve(reply(result), name=name))


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | Exception | None]:
    """Program → what it prints; None: it fails."""
    made: dict[str, str | Exception | None] = {}
    monkeypatch.setattr(shutil, "which", lambda name: name if name in made else None)

    def run(command: list[str], **_options: Any) -> Any:
        text = made[command[0]]
        if isinstance(text, Exception):
            raise text
        return SimpleNamespace(returncode=4 if text is None else 0, stdout=text or "")

    monkeypatch.setattr(subprocess, "run", run)
    return made


def test_filters_of_the_host_are_those_that_its_programs_print(outputs: dict[str, Any]) -> None:
    def starts() -> list[str] | None:
        found = programs.read_filters(SYN)
        return [one.start for one in found] if found is not None else None

    assert starts() is None
    outputs["nft"] = json.dumps(ruleset())
    assert starts() == ["input"]
    outputs["iptables"] = PRINTED
    assert starts() == ["INPUT", "input"]
    kept = json.dumps(ruleset(family="ip", name="INPUT"))
    outputs["nft"] = kept
    assert starts() == ["INPUT"], "iptables' own chain is no other"
    for text in ("no JSON", "[" * 100_000):
        outputs["nft"] = text
        assert starts() == ["INPUT"]
    for failure in (None, OSError(), subprocess.TimeoutExpired("iptables", 10)):
        outputs["iptables"] = failure
        assert starts() is None
    assert programs.read_filters(SYN6) is None
    outputs["ip6tables"] = "-P INPUT DROP"
    del outputs["nft"]
    (found,) = programs.read_filters(SYN6) or ()
    assert found.name == "ip6tables' chain INPUT"


def test_unit_is_active_as_systemctl_says(outputs: dict[str, Any]) -> None:
    assert programs.active("a.socket") is None
    for text, state in (("active\n", True), ("inactive\n", False), (None, None)):
        outputs["systemctl"] = text
        assert programs.active("a.socket") is state
