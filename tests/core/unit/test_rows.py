"""The listing of ports should show every guest's port, served or not."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

from dfmeta.cli import common, ports_command
from dfmeta.cli.ports_command import answer_of, ports
from dfmeta.cmd.ports import port_rows
from dfmeta.doctor.agent import Agent
from dfmeta.identity.key import IN_PORT
from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint
from dfmeta.proxy.recent import REASONS, Recent
from tests.core.unit.support import (
    GUEST_MAC,
    INSTANCE,
    OTHER_INSTANCE,
    PROJECT,
    address,
    claim_of,
    port,
)

# A list of ports gives way to other work, on a busy machine after each port.


def test_row_of_a_served_port_has_its_keys_and_its_guest() -> None:
    registry = Registry()
    registry.set_port(port())
    registry.learn(Endpoint(13), address(), 0)
    registry.learn(Endpoint(13), address("10.0.0.6"), 0)
    claim = registry.claim(IN_PORT.key_of(Endpoint(13), 1))
    assert claim is not None
    registry.opened(claim, 0)
    (row,) = port_rows(registry)
    assert row["key"] == "128.0.0.13"
    first, second = row["addresses"]
    assert first == {
        "slot": 0,
        "key": "128.0.0.13",
        "meta_mac": None,
        "mac": GUEST_MAC,
        "ip": "10.0.0.5",
        "service": None,
        "connections": 0,
    }
    changed = {"slot": 1, "key": "144.0.0.13", "ip": "10.0.0.6", "connections": 1}
    assert second == first | changed
    assert (row["port"], row["ofport"], row["state"]) == ("tap1", 13, "served")
    assert (row["instance"], row["project"]) == (INSTANCE, PROJECT)
    assert json.loads(json.dumps(row)) == row


def test_unserved_ports_have_their_reason_and_come_in_order() -> None:
    registry = Registry()
    registry.set_port(port(None, name="unnumbered"))
    registry.set_port(port(15, name="dead", dead=True))
    registry.set_port(port(14, name="broken", fault="odd"))
    registry.set_port(port(2, name="waiting", instance=""))
    rows = port_rows(registry)
    assert [(row["port"], row["state"]) for row in rows] == [
        ("waiting", "no instance"),
        ("broken", "broken"),
        ("dead", "dead"),
        ("unnumbered", "no ofport"),
    ]
    assert [row["key"] for row in rows] == ["128.0.0.2", None, "128.0.0.15", None]
    assert rows[1]["fault"] == "odd"


def test_row_has_the_guests_requests_and_its_last_failure() -> None:
    registry, recent = Registry(), Recent(clock=lambda: 1_000_000_000.0)
    registry.set_port(port())
    registry.set_port(port(14, name="quiet"))
    claim = claim_of(registry)
    for status in (200, 0):
        recent.answered(claim, status, "/openstack/latest/x?secret", "it is away")
    busy, quiet = port_rows(registry, recent)
    requests, last = busy["requests"], busy["last_failure"]
    assert [requests[port_] for port_ in ("2xx", "3xx", "4xx", "5xx", "closed")] == [1, 0, 0, 0, 1]
    assert (requests["last_at"], requests["last_status"]) == ("2001-09-09T01:46:40Z", None)
    assert (last["at"], last["status"], last["path"]) == (requests["last_at"], None, "openstack")
    assert (last["reason"], last["times"], last["own"]) == ("it is away", 1, False)
    assert (last["failing"], last["failing_since"]) == (False, None)
    assert "`journalctl -u dfmeta-agent`" in last["remedy"]
    assert (quiet["requests"], quiet["last_failure"]) == (None, None)
    assert json.loads(json.dumps(busy)) == busy
    # Another guest has the port now: what was asked before was not asked by it.
    registry.set_port(port(instance=OTHER_INSTANCE))
    assert port_rows(registry, recent)[0]["requests"] is None


def failing(status: int, reason: str, *, backend: str = "store") -> dict[str, Any]:
    """What a row has of the failure of a guest that was never served."""
    registry, recent = Registry(), Recent(clock=lambda: 1_000_000_000.0)
    registry.set_port(port())
    claim = claim_of(registry)
    recent.answered(claim, status, "/openstack", reason)
    last: dict[str, Any] = port_rows(registry, recent, backend=backend)[0]["last_failure"]
    assert (last["failing"], last["failing_since"]) == (True, "2001-09-09T01:46:40Z")
    return last


ABSENT = REASONS["absent"]


@pytest.mark.parametrize(
    ("status", "reason", "backend", "brief", "remedy"),
    [
        (404, ABSENT, "store", "no record", f"`dfmeta store put {INSTANCE} --hostname <name>`"),
        (404, ABSENT, "nova", "Nova has no such instance", f"server show {INSTANCE} -c project_id"),
        (404, "", "store", "no such document", f"`dfmeta store get {INSTANCE}`"),
        (404, "", "nova", "no such document", f"`openstack server show {INSTANCE}`"),
        (403, "nova answered 403. x differs", "nova", "nova answered 403", "shared_secret"),
        (503, REASONS["project"], "nova", "its project is not", "Interface tap1 external_ids:"),
        (0, "n:8775: connection refused. Look", "nova", "n:8775: connection ", "the line nova"),
        (503, REASONS["timeout"], "store", "no answer within", "the lines store"),
        (401, REASONS["token"], "store", "no valid token", f"{INSTANCE} --http-tokens optional"),
        (401, REASONS["token"], "nova", "no valid token", "[store] http_tokens = optional"),
    ],
)
def test_reason_has_remedy(status: int, reason: str, backend: str, brief: str, remedy: str) -> None:
    last = failing(status, reason, backend=backend)
    assert last["brief"].startswith(brief)
    assert remedy in last["remedy"]


NOW = datetime(2026, 11, 22, 14, 30, tzinfo=UTC)
FAILS_SINCE = "2026-11-22T14:02:00Z"
REQUESTS = {"last_at": "2026-11-22T14:29:57Z", "last_status": 200}
FAILS = {
    "failing": True,
    "failing_since": FAILS_SINCE,
    "status": 404,
    "times": 12,
    "brief": "no record",
}


def row(name: str = "tap1", **values: Any) -> dict[str, Any]:
    fields = dict.fromkeys(ports_command.FIELDS)
    fixed = {"port": name, "addresses": [], "state": "served", "fault": "", "requests": REQUESTS}
    return {**fields, **fixed, "kind": "port", **values}


def answer(
    monkeypatch: pytest.MonkeyPatch,
    rows: list[dict[str, Any]],
    *,
    names: dict[str, tuple[str, ...]] | None = None,
    attachments: list[dict[str, str]] | None = None,
) -> None:
    """Have the daemon answer with these ports, names in records, and attachments."""
    documents: dict[str, Any] = {"/ports": rows, "/names": names or {}, "/attachments": attachments}

    def request(path: str, **_more: object) -> tuple[int, Any]:
        return (200 if documents[path] is not None else 404), documents[path]

    agent = Agent("127.0.0.1:9697", request)
    monkeypatch.setattr(common, "load_config", lambda _files: None)
    monkeypatch.setattr(ports_command, "agent_of", lambda _conf: agent)


def test_the_last_answer_in_words() -> None:
    for values, text in (
        ({}, "200, 3 s ago"),
        ({"requests": {**REQUESTS, "last_status": None}}, "no answer, 3 s ago"),
        ({"last_failure": FAILS}, "fails since 14:02:00 UTC: 404, 12 times: no record"),
        (
            {"last_failure": {**FAILS, "status": None, "times": 1}},
            "fails since 14:02:00 UTC: no answer: no record",
        ),
        (
            {"last_failure": {**FAILS, "failing_since": "2026-11-20T23:00:00Z"}},
            "fails since 2026-11-20 23:00:00 UTC: 404, 12 times: no record",
        ),
    ):
        assert answer_of(row(**values), NOW) == text


def test_fault_of_a_port_has_a_line_of_its_own_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = "3 SYNs and no connection: " + "a long cause, " * 20
    rows = [row("tap1", state="no connection", fault=fault, instance=INSTANCE), row("tap2")]
    answer(monkeypatch, rows, names={INSTANCE: ("web2", "w.example")})
    head, first, note, second = CliRunner().invoke(ports).stdout.splitlines()
    assert note == f"    {fault}"
    assert (first.split()[0], second.split()[0]) == ("tap1", "tap2")
    assert "web2" in first
    assert max(map(len, (head, first, second))) < 160


def test_addresses_are_listed_with_their_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    ipv4 = {"service": None, "meta_mac": None, "slot": 1, "ip": "10.0.0.5", "mac": GUEST_MAC}
    ipv6 = {**ipv4, "ip": "fe80::1", "service": "fe80::a9fe:a9fe"}
    answer(monkeypatch, [row(addresses=[ipv4, ipv6])])
    shown = CliRunner().invoke(ports, ["--wide"]).stdout
    assert "1: 10.0.0.5 fa:16:3e:00:00:01" in shown
    assert "1: fe80::1 fa:16:3e:00:00:01 to fe80::a9fe:a9fe" in shown
    assert "None" not in shown


def test_a_subport_has_its_container_and_its_network(monkeypatch: pytest.MonkeyPatch) -> None:
    subport = {"kind": "subport", "segmentation_id": 7, "parent": "tpi-1"}
    rows = [row("tpi-1", iface_id="p"), row("spi-1", iface_id="s", **subport)]
    attachment = {"id": "a1", "port_id": "s", "container": "web-0", "network": "pods"}
    answer(monkeypatch, rows, attachments=[attachment])
    listed = json.loads(CliRunner().invoke(ports, ["--format", "json"]).stdout)
    assert [row_["attachment"] for row_ in listed] == [None, "a1"]
    shown = CliRunner().invoke(ports, ["--wide"]).stdout
    assert re.search(r"7 +tpi-1 +web-0 +pods", shown)
    answer(monkeypatch, rows)
    shown = CliRunner().invoke(ports, ["--wide"]).stdout
    assert "CONTAINER" not in shown
    assert "spi-1" in shown


def test_failing_are_those_that_are_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        row("well"),
        row("dead", state="dead"),
        row("earlier", last_failure={**FAILS, "failing": False}),
        row("fails", last_failure=FAILS),
        row("cut", state="cut off"),
    ]
    answer(monkeypatch, rows)
    done = CliRunner().invoke(ports, ["--failing", "--format", "json"])
    assert done.exit_code == 0
    listed = json.loads(done.stdout)
    assert [row_["port"] for row_ in listed] == ["fails", "cut"]
    assert set(listed[0]) == set(ports_command.FIELDS)
