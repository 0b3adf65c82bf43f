"""``dfmeta flows`` on a host with both versions of IP should show no two lines that are alike."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from dfmeta.cli import flows_command, gather
from dfmeta.cli.flows_command import Compared, flows
from dfmeta.cli.in_force import InForce
from dfmeta.flows.pipeline import cookie_of
from dfmeta.inspect.facts import Interface, Seen, Snapshot
from dfmeta.inspect.ledger import entries, wanted_flows
from tests.core.unit.inspect.values import PORT6, SETTINGS, TAP6

LAYOUT = SETTINGS.layout
SNAPSHOT = Snapshot(
    interfaces=(Interface("tap-metadata", "br-int", ofport=TAP6.ofport, mac_in_use=TAP6.mac),)
)
BOTH = ("address", "guest-fragment", "guest-http", "guest-syn", "probe", "reply", "syn")
"""Purposes that have flows of each version of IP."""


@pytest.fixture(autouse=True)
def _switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that has all flows of a host with one guest, and has counted nothing."""
    wanted = wanted_flows([PORT6], TAP6)
    seen = [
        Seen(one, LAYOUT.table(one.purpose), LAYOUT.priority(one.purpose), cookie_of(one.purpose))
        for one in wanted
    ]
    rows = entries(seen, wanted, layout=LAYOUT, bridge=SETTINGS.bridge)
    monkeypatch.setattr(gather, "settings", lambda _conf: SETTINGS)
    for name, value in {
        "load_config": None,
        "take_over": InForce(),
        "read_snapshot": SNAPSHOT,
        "read_meters": (),
        "compare": Compared((PORT6,), rows, {}, {}),
    }.items():
        monkeypatch.setattr(flows_command, name, lambda *_args, value=value, **_kwargs: value)


def listed() -> list[dict[str, str]]:
    """The lines of the table: heading → cell."""
    shown = CliRunner().invoke(flows, [])
    assert shown.exit_code == 0, shown.output
    head, *lines = (re.split(" {2,}", line) for line in shown.stdout.splitlines())
    return [dict(zip(head, line, strict=True)) for line in lines]


def test_flows_of_one_purpose_are_told_apart_by_their_family() -> None:
    lines = listed()
    for purpose in BOTH:
        families = {line["FAMILY"] for line in lines if line["PURPOSE"] == purpose}
        assert families == {"4", "6"}, purpose
    alike = [line for line in lines if lines.count(line) > 1]
    assert alike == []


def test_a_flow_of_no_family_has_none() -> None:
    without = {line["PURPOSE"] for line in listed() if line["FAMILY"] == "-"}
    subports = {"subport-syn", "subport-proxy", "subport-drop"}
    assert without == {"from-tap", "service-drop", "reply-drop", "nd-drop", *subports}
