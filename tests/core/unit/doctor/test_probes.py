"""Probes of servers and programs that answer well, oddly, or not at all; questions to Nova."""

import gc
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eventlet
import ovs.poller
import pytest
from eventlet.event import Event
from eventlet.green import select as green_select
from eventlet.green import socket as green_socket
from eventlet.green import ssl as green_ssl

from dfmeta.doctor.checks_host import Chain, read_chains
from dfmeta.doctor.facts import GuestFailure, KnownPort
from dfmeta.doctor.services import _of_nova, real_guests
from dfmeta.errors import OvsdbError
from dfmeta.http import client as http_client
from dfmeta.model import HttpHost, PortState
from dfmeta.ovsdb.jsonrpc import RefusedError, call, why
from dfmeta.ovsdb.rows import ControllerRow
from dfmeta.ovsdb.snapshot import read_snapshot, snapshot_of
from dfmeta.ovsdb.vswitchd import (
    Vswitchd,
    VswitchdError,
    control_socket,
    management_socket,
    run_folder,
)
from dfmeta.proxy.backends import nova_requests
from dfmeta.proxy.backends.nova_requests import NovaFact, NovaSettings, Question, ask_nova, signed
from dfmeta.runtime import clock
from tests.core.unit.doctor.values import INSTANCE, PORT
from tests.core.unit.support import IdlRow

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server that answers one request with the given pieces, and then no other."""
    monkeypatch.setattr(ovs.poller, "select", green_select)
    threads: list[Any] = []

    def start(
        answer_to: Callable[[int], bytes] = lambda _number: b"",
        *,
        name: str = "sock",
        tcp: bool = False,
        mute: bool = False,
        size: int = 65536,
    ) -> str:
        path = str(tmp_path / name)
        family = green_socket.AF_INET if tcp else green_socket.AF_UNIX
        listener = eventlet.listen(("127.0.0.1", 0) if tcp else path, family)

        def answer() -> None:
            with listener:
                connection = listener.accept()[0]
                with connection:
                    request = json.loads(connection.recv(65536))
                    if mute:
                        eventlet.Event().wait()
                    # Closed before it answers: a second question is refused.
                    listener.close()
                    whole = answer_to(request["id"])
                    for start in range(0, len(whole), size):
                        connection.sendall(whole[start : start + size])

        threads.append(eventlet.spawn(answer))
        return f"tcp:127.0.0.1:{listener.getsockname()[1]}" if tcp else f"unix:{path}"

    yield start
    for thread in threads:
        thread.kill()


def reply(result: Any, error: Any = None) -> Callable[[int], bytes]:
    """Return a function of a request's id that returns the reply."""
    return lambda number: json.dumps({"id": number, "result": result, "error": error}).encode()


def test_answer_comes_in_pieces_behind_an_echo_over_unix_and_tcp(serve: Serve) -> None:
    echo = json.dumps({"id": "echo", "method": "echo", "params": []})
    answer = reply({"a": {"b": "}"}})
    for tcp in (False, True):
        target = serve(lambda number: echo.encode() + answer(number), tcp=tcp, size=7)
        assert call(target, "m", []) == {"a": {"b": "}"}}
    with pytest.raises(OSError, match="Address family"):
        call("other:127.0.0.1:6640", "m", [])


def test_refusals_and_silence_are_errors_in_words(serve: Serve) -> None:
    for error, text in (
        ("no such bridge\n", "no such bridge"),
        ({"error": "e", "details": "d"}, "d"),
        ({"error": "e"}, "e"),
    ):
        with pytest.raises(RefusedError, match=f"^{text}$"):
            call(serve(reply(None, error), name=text), "m", [])
    with pytest.raises(ConnectionError) as caught:
        call(serve(lambda _number: b'{"id": 1'), "m", [])
    assert why(caught.value) == "it closed the connection"
    before = clock.now()
    with pytest.raises(TimeoutError) as late:
        call(serve(name="mute", mute=True), "m", [], seconds=7)
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


def test_rows_of_ovsdb_become_interfaces() -> None:
    interfaces = [
        IdlRow(
            uuid=name,
            name=name,
            ofport=ofport,
            external_ids={"iface-id": name, "attached-mac": "m"},
            mac_in_use=["fa:16:3e:00:00:01"],
            options={"peer": "p"},
            status={"driver_name": "veth", "driver_version": "1.0"},
        )
        for name, ofport in (("t1", [-1]), ("t2", [5]))
    ]
    port_row = IdlRow(uuid="p", interfaces=interfaces, tag=[7], cvlans=[1, 2])
    bridge_row = IdlRow(
        uuid="b",
        name="br0",
        ports=[port_row],
        fail_mode=["secure"],
        external_ids={"dfmeta": "meta of br-int"},
        controller=[IdlRow(target="tcp:c", is_connected=False)],
    )
    root = IdlRow(
        uuid="r",
        external_ids={"ovn-bridge-mappings": "meta:br0"},
        other_config={"flow-restore-wait": "true"},
    )
    tables = {"Open_vSwitch": root, "Bridge": bridge_row}
    database = {name: SimpleNamespace(rows={row.uuid: row}) for name, row in tables.items()}
    snapshot = snapshot_of(SimpleNamespace(tables=database), None)
    first, second = snapshot.interfaces
    assert (first.name, first.ofport, second.ofport) == ("t1", None, 5)
    assert (first.driver, first.options) == ("veth", {"peer": "p"})
    assert (first.tag, first.vlan_mode, first.cvlans) == (7, "", (1, 2))
    (port,) = second.ports
    assert (port.iface_id, port.ofport) == ("t2", 5)
    assert snapshot.interface("t2", "br0") == second
    assert snapshot.interface("t2", "br1") is snapshot.bridge("br1") is None
    bridge = snapshot.bridge("br0")
    assert bridge is not None
    assert (bridge.fail_mode, bridge.external_ids) == ("secure", {"dfmeta": "meta of br-int"})
    assert bridge.controllers == (ControllerRow("tcp:c", False),)
    assert snapshot.external_ids == {"ovn-bridge-mappings": "meta:br0"}
    assert snapshot.other_config == {"flow-restore-wait": "true"}


def test_server_without_the_database_is_an_error_in_words(serve: Serve) -> None:
    unknown = {"error": "unknown database", "details": "no Open_vSwitch"}
    for name, answer, cause in (
        ("a", reply(None, unknown), "no Open_vSwitch"),
        ("b", reply(None), "Protocol error"),
        ("c", lambda _number: b"[1, 2]", "Protocol error"),
    ):
        with pytest.raises(OvsdbError, match=f"OVSDB at unix:.*: {cause}"):
            read_snapshot(serve(answer, name=name))


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


def test_base_chains_that_drop_are_those_that_programs_list(outputs: dict[str, Any]) -> None:
    def row(**values: Any) -> dict[str, Any]:
        return {"chain": {"family": "inet", "table": "f", "name": "c", **values}}

    assert read_chains() is None
    dropping = {"hook": "input", "policy": "drop"}
    rows = [
        row(),
        row(**dropping),
        row(**dropping, family="ip6"),
        row(hook="input", policy="accept"),
    ]
    outputs["nft"] = json.dumps({"nftables": [{"metainfo": {}}, *rows]})
    of_nft = (Chain("nftables' chain inet f c", (4, 6)), Chain("nftables' chain ip6 f c", (6,)))
    assert read_chains() == of_nft
    outputs["iptables"] = "-P INPUT DROP\n-P OUTPUT ACCEPT\n-A INPUT -j DROP\n"
    assert read_chains() == (*of_nft, Chain("iptables' chain INPUT", (4,)))
    for text in ("no JSON", "[" * 100_000, "[]", None, OSError()):
        outputs["nft"] = text
        assert read_chains() == (Chain("iptables' chain INPUT", (4,)),)
    outputs["iptables"] = subprocess.TimeoutExpired("iptables", 10)
    assert read_chains() is None


QUESTION = Question(INSTANCE, "project")
SECRET = b"secret"
Ask = Callable[..., tuple[NovaFact, list[bytes]]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Asks a server that gives each connection in turn one of the answers; None: it says nothing,
    and the connection stays open."""
    monkeypatch.setattr(http_client, "socket", green_socket)
    monkeypatch.setattr(nova_requests, "ssl", green_ssl)
    threads: list[Any] = []

    def run(*answers: bytes | None, seconds: float = 30.0) -> tuple[NovaFact, list[bytes]]:
        listener = eventlet.listen(("127.0.0.1", 0))
        requests: list[bytes] = []

        def serve() -> None:
            with listener:
                for answer in answers:
                    connection = listener.accept()[0]
                    with connection:
                        requests.append(connection.recv(65536))
                        if answer is None:
                            Event().wait()
                        else:
                            connection.sendall(answer)

        threads.append(eventlet.spawn(serve))
        host = HttpHost("127.0.0.1", listener.getsockname()[1])
        return ask_nova(host, QUESTION, NovaSettings([host], SECRET), seconds=seconds), requests

    yield run
    for thread in threads:
        thread.kill()


def http(status: int) -> bytes:
    date = "Date: Thu, 01 Jan 1970 00:00:00 GMT"
    return f"HTTP/1.1 {status} Said\r\n{date}\r\nContent-Length: 0\r\n\r\n".encode()


def test_nova_is_asked_as_the_daemon_asks_it_and_again_without_its_headers(ask: Ask) -> None:
    fact, (request,) = ask(http(403))
    assert (fact.status, fact.unsigned, fact.cause) == (403, 0, "")
    assert fact.date == "Thu, 01 Jan 1970 00:00:00 GMT"
    assert request.startswith(b"GET /latest/meta-data/instance-id HTTP/1.1\r\nHost: 127.0.0.1:")
    assert signed(SECRET, INSTANCE, "project").encode() in request
    fact, both = ask(http(404), http(400))
    assert (fact.status, fact.unsigned) == (404, 400)
    assert b"X-Instance-ID" in both[0]
    assert b"X-" not in both[1]


def test_nova_that_is_silent_costs_no_more_than_it_may(ask: Ask) -> None:
    for answers in ([None], [http(404), None]):
        before = clock.now()
        fact, _ = ask(*answers, seconds=7)
        assert clock.now() - before == pytest.approx(7, abs=0.1)
        assert fact.cause == "it has not answered within 7 s"


# eventlet's own TLS socket is not closed where its handshake fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nova_that_closes_without_a_word_is_tried_for_tls(ask: Ask) -> None:
    alert = bytes.fromhex("15030300020228")  # handshake_failure, fatal (RFC 8446, 6)
    fact, requests = ask(b"", alert)
    assert fact.cause == "it speaks TLS"
    assert requests[1][0] == 0x16  # a ClientHello
    fact, _ = ask(b"", b"HTTP/1.1 400 Bad\r\n\r\n")
    assert fact.cause == "it closed the connection without an answer"
    gc.collect()


def test_id_that_cannot_stand_in_a_header_is_not_sent() -> None:
    host = HttpHost("127.0.0.1", 1)
    fact = ask_nova(host, Question("a\r\nb", "p"), NovaSettings([host], SECRET), seconds=1)
    assert "not a valid header value" in fact.cause


def test_nova_is_asked_about_guests_with_a_project_and_first_about_those_that_fail() -> None:
    ports = [PORT, KnownPort("tap2", 2, PortState.NO_INSTANCE, project="p")]
    assert real_guests(ports) == []
    served = KnownPort("tap3", 3, PortState.SERVED, instance=INSTANCE, project="p")
    failure = GuestFailure(404, "no", "r", datetime(2026, 11, 22, tzinfo=UTC), 1)
    failing = replace(served, name="tap4", failure=failure)
    cut_off = replace(served, name="tap5", state=PortState.CUT_OFF)
    broken = replace(served, name="tap6", state=PortState.BROKEN)
    guests = real_guests([*ports, served, failing, cut_off, broken])
    assert [port.name for port in guests] == ["tap4", "tap3", "tap5"]


def test_ports_of_nova_have_names_of_their_ids() -> None:
    port_id = "0b7c1f5e-3a44-4a55-9d0e-7a1f0c9b1d01"
    rows = [
        ("tap0b7c1f5e-3a", port_id),
        ("tap1", "1b7c1f5e-3a44-4a55-9d0e-7a1f0c9b1d01"),
        ("vnet7", port_id),
        ("vhu2B7C1F5E-3a", port_id.replace("0b", "2b", 1)),
        ("tap", ""),
    ]
    ports = [
        KnownPort(name, number, PortState.SERVED, iface_id=iface_id)
        for number, (name, iface_id) in enumerate(rows)
    ]
    assert list(_of_nova(ports).values()) == ["tap0b7c1f5e-3a", "vhu2B7C1F5E-3a"]
