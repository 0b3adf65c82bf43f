"""``dfmeta ports`` should say what each guest was answered, and pick those that are not well."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

from dfmeta.cli import ports_command
from dfmeta.cli.ports_command import answer_of, ports
from dfmeta.exceptions import NotRunningError

NOW = datetime(2026, 11, 22, 14, 30, tzinfo=UTC)
SINCE = "2026-11-22T14:02:00Z"
REQUESTS = {"last_at": "2026-11-22T14:29:57Z", "last_status": 200}
FAILS = {"failing": True, "failing_since": SINCE, "status": 404, "times": 12, "brief": "no record"}


def row(name: str = "tap1", **values: Any) -> dict[str, Any]:
    known = dict.fromkeys(ports_command.FIELDS)
    fixed = {"port": name, "addresses": [], "state": "served", "fault": "", "requests": REQUESTS}
    return {**known, **fixed, **values}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "200, 3 s ago"),
        ({"requests": None}, ""),
        ({"requests": {**REQUESTS, "last_status": None}}, "no answer, 3 s ago"),
        ({"last_failure": FAILS}, "fails since 14:02:00 UTC: 404, 12 times: no record"),
        (
            {"last_failure": {**FAILS, "status": None, "times": 1}},
            "fails since 14:02:00 UTC: no answer: no record",
        ),
        ({"last_failure": {**FAILS, "failing": False}}, "200, 3 s ago"),
        (
            {"last_failure": {**FAILS, "failing_since": "2026-11-20T23:00:00Z"}},
            "fails since 2026-11-20 23:00:00 UTC: 404, 12 times: no record",
        ),
    ],
)
def test_the_last_answer_in_words(values: dict[str, Any], said: str) -> None:
    assert answer_of(row(**values), NOW) == said


def test_addresses_of_both_versions_are_listed_with_their_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ipv4 = {"service": None, "slot": 1, "ip": "10.0.0.5", "mac": "fa:16:3e:00:00:01"}
    ipv6 = {**ipv4, "ip": "fe80::1", "service": "fe80::a9fe:a9fe"}
    monkeypatch.setattr(ports_command, "load_config", lambda _files: None)
    rows = [row(addresses=[ipv4, ipv6])]
    monkeypatch.setattr(ports_command, "ask_running", lambda _conf, _path: rows)
    shown = CliRunner().invoke(ports, ["--wide"]).stdout
    assert "1: 10.0.0.5 fa:16:3e:00:00:01" in shown
    assert "1: fe80::1 fa:16:3e:00:00:01 to fe80::a9fe:a9fe" in shown
    assert "None" not in shown


def test_a_subport_has_its_container_and_its_network(monkeypatch: pytest.MonkeyPatch) -> None:
    subport = {"kind": "subport", "segmentation_id": 7, "parent": "tpi-1"}
    rows = [row("tpi-1", iface_id="p"), row("spi-1", iface_id="s", **subport)]
    found = [{"id": "a1", "port_id": "s", "container": "web-0", "network": "pods"}]

    def attachments(_conf: object, path: str) -> list[dict[str, str]]:
        assert path == "/attachments"
        if not found:
            raise NotRunningError(address="here", cause="off", remedy="none")
        return found

    monkeypatch.setattr(ports_command, "load_config", lambda _files: None)
    monkeypatch.setattr(ports_command, "ask_running", lambda _conf, _path: rows)
    monkeypatch.setattr(ports_command, "ask_agent", attachments)
    listed = json.loads(CliRunner().invoke(ports, ["--format", "json"]).stdout)
    assert [one["attachment"] for one in listed] == [None, "a1"]
    shown = CliRunner().invoke(ports, ["--wide"]).stdout
    assert re.search(r"7 +tpi-1 +web-0 +pods", shown)
    found.clear()
    shown = CliRunner().invoke(ports, ["--wide"]).stdout
    assert "CONTAINER" not in shown
    assert "spi-1" in shown


def test_failing_are_those_that_are_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        row("well"),
        row("dead", state="dead"),
        row("earlier", last_failure={**FAILS, "failing": False}),
        row("fails", last_failure=FAILS),
        row("stranger", state="no project"),
        row("cut", state="cut off"),
    ]
    monkeypatch.setattr(ports_command, "load_config", lambda _files: None)
    monkeypatch.setattr(ports_command, "ask_running", lambda _conf, _path: rows)
    done = CliRunner().invoke(ports, ["--failing", "--format", "json"])
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert [one["port"] for one in found] == ["fails", "stranger", "cut"]
    assert set(found[0]) == set(ports_command.FIELDS)
    table = CliRunner().invoke(ports, ["--failing"]).stdout.splitlines()
    assert table[0].endswith("LAST ANSWER")
    assert len(table) == 4
