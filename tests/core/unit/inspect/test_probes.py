"""Probes against servers that answer well, oddly, or not at all."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dfmeta.exceptions import OvsdbError
from dfmeta.inspect import programs
from dfmeta.inspect.firewall import Syn
from dfmeta.inspect.jsonrpc import RefusedError, call, why
from dfmeta.inspect.vswitchd import (
    Vswitchd,
    VswitchdError,
    control_socket,
    management_socket,
    run_folder,
)
from dfmeta.ports.ovsdb_facts import read_snapshot
from tests.core.unit.inspect.test_firewall import PRINTED, SYN, SYN6, ruleset

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server on a unix socket that answers one request with the given pieces."""
    monkeypatch.setitem(call.__kwdefaults__, "timeout", 60.0)
    threads: list[threading.Thread] = []

    def start(*pieces: bytes, name: str = "sock") -> str:
        path = tmp_path / name
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            # Closed before it answers: a second question is refused.
            with listener:
                connection = listener.accept()[0]
            with connection:
                connection.recv(65536)
                for piece in pieces:
                    connection.sendall(piece)

        threads.append(threading.Thread(target=answer))
        threads[-1].start()
        return f"unix:{path}"

    yield start
    for thread in threads:
        thread.join(10)


def reply(result: Any, error: Any = None) -> bytes:
    return json.dumps({"id": 1, "result": result, "error": error}).encode()


def test_an_answer_in_pieces_behind_an_echo(serve: Serve) -> None:
    echo = json.dumps({"id": "echo", "method": "echo", "params": []}).encode()
    whole = echo + reply({"a": {"b": "}"}})
    pieces = [whole[n : n + 7] for n in range(0, len(whole), 7)]
    assert call(serve(*pieces), "m", []) == {"a": {"b": "}"}}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("no such bridge\n", "no such bridge"),
        ({"error": "e", "details": "d"}, "d"),
        ({"error": "e"}, "e"),
    ],
)
def test_a_refusal_has_the_other_sides_words(serve: Serve, error: Any, text: str) -> None:
    with pytest.raises(RefusedError, match=f"^{text}$"):
        call(serve(reply(None, error)), "m", [])


def test_a_connection_that_is_closed_early(serve: Serve) -> None:
    with pytest.raises(ConnectionResetError) as caught:
        call(serve(b'{"id": 1'), "m", [])
    assert why(caught.value) == "it closed the connection"


def test_a_server_that_says_nothing(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with pytest.raises(TimeoutError) as caught:
            call(f"unix:{tmp_path}/s", "m", [], timeout=0.05)
    assert why(caught.value) == "no answer in time"


def test_targets_over_tcp_and_of_other_kinds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(reply("yes"))

        thread = threading.Thread(target=answer)
        thread.start()
        assert call(f"tcp:127.0.0.1:{port}", "m", []) == "yes"
        thread.join(10)
    with pytest.raises(ValueError, match="only unix: and tcp:"):
        call("ssl:127.0.0.1:6640", "m", [])


@pytest.mark.parametrize(
    ("ovsdb", "path"),
    [
        ("unix:/var/run/openvswitch/db.sock", "/var/run/openvswitch/br-int.mgmt"),
        ("unix:/srv/ovs/other.sock", "/srv/ovs/br-int.mgmt"),
        ("tcp:127.0.0.1:6640", "/var/run/openvswitch/br-int.mgmt"),
    ],
)
def test_the_management_socket_is_beside_ovsdbs(ovsdb: str, path: str) -> None:
    assert management_socket("auto", ovsdb, "br-int") == Path(path)


def test_where_open_vswitch_has_its_sockets(tmp_path: Path) -> None:
    assert run_folder("unix:/a/db.sock") == Path("/a")
    assert run_folder("tcp:127.0.0.1:6640") == Path("/var/run/openvswitch")
    assert management_socket("auto", "unix:/a/db.sock", "br0") == Path("/a/br0.mgmt")
    assert management_socket("unix:/b/x", "unix:/a/db.sock", "br0") == Path("/b/x")
    assert management_socket("listen:[::]:6653", "tcp:a:1", "br0").name == "br0.mgmt"
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
    with pytest.raises(VswitchdError, match="Connection refused"):
        Vswitchd(tmp_path).trace("br0", "tcp")


def test_ovsdbs_rows_become_interfaces(serve: Serve) -> None:
    uuids = [["uuid", name] for name in "abcd"]
    answers = [
        {"rows": [{"external_ids": ["map", [["ovn-bridge-mappings", "meta:br0"]]]}]},
        {
            "rows": [
                {
                    "name": "br0",
                    "ports": uuids[0],
                    "datapath_type": "",
                    "protocols": ["set", []],
                    "fail_mode": "secure",
                    "external_ids": ["map", [["dfmeta", "meta of br-int"]]],
                }
            ]
        },
        {
            "rows": [
                {
                    "_uuid": uuids[0],
                    "interfaces": ["set", [uuids[2], uuids[3]]],
                    "tag": 7,
                    "vlan_mode": ["set", []],
                    "cvlans": ["set", [1, 2]],
                }
            ]
        },
        {
            "rows": [
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
        },
    ]
    snapshot = read_snapshot(serve(reply(answers)))
    first, second = snapshot.interfaces
    assert (first.name, first.ofport, second.ofport) == ("t1", None, 5)
    assert first.driver == "veth"
    assert (first.tag, first.vlan_mode, first.cvlans) == (7, "", (1, 2))
    assert first.options == {"peer": "p"}
    (port,) = second.ports
    assert (port.iface_id, port.ofport) == ("t2", 5)
    assert snapshot.interface("t2", "br0") == second
    assert snapshot.interface("t2", "br1") is None
    assert snapshot.bridge("br1") is None
    bridge = snapshot.bridge("br0")
    assert bridge is not None
    assert (bridge.fail_mode, bridge.external_ids) == ("secure", {"dfmeta": "meta of br-int"})
    assert snapshot.external_ids == {"ovn-bridge-mappings": "meta:br0"}


@pytest.mark.parametrize("result", [[{"error": "unknown table"}], None, [1, 2, 3]])
def test_an_ovsdb_of_another_kind_is_one_error(serve: Serve, result: Any) -> None:
    with pytest.raises(OvsdbError, match="OVSDB at unix:"):
        read_snapshot(serve(reply(result)))


@pytest.fixture
def programs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts programs that print a text on an otherwise empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "TIMEOUT", 60.0)

    def put(name: str, text: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{text}\nEND\n")
        (tmp_path / name).chmod(0o755)

    return put


def test_the_hosts_filters(programs_in: Callable[[str, str], None], tmp_path: Path) -> None:
    assert programs.read_filters(SYN) is None
    programs_in("nft", json.dumps(ruleset()))
    assert [one.start for one in programs.read_filters(SYN) or ()] == ["input"]
    programs_in("iptables", PRINTED)
    assert [one.start for one in programs.read_filters(SYN) or ()] == ["INPUT", "input"]
    for text in ("no JSON", "[" * 100_000):
        programs_in("nft", text)
        assert [one.start for one in programs.read_filters(SYN) or ()] == ["INPUT"]
    (tmp_path / "iptables").write_text("#!/bin/sh\nexit 4\n")
    assert programs.read_filters(SYN) is None
    (tmp_path / "nft").unlink()
    os.chmod(tmp_path / "iptables", 0o755)
    assert programs.read_filters(Syn("a", SYN.address, 1)) is None


def test_the_hosts_filters_for_ipv6(programs_in: Callable[[str, str], None]) -> None:
    programs_in("iptables", PRINTED)
    assert programs.read_filters(SYN6) is None
    programs_in("ip6tables", "-P INPUT DROP")
    (found,) = programs.read_filters(SYN6) or ()
    assert found.name == "ip6tables' chain INPUT"
