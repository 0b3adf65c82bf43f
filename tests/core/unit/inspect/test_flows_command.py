"""``dfmeta flows`` on a host with both versions of IP should show no two lines that are alike."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from dfmeta.cli import flows_command, gather
from dfmeta.cli.flows_command import Compared, flows
from dfmeta.cli.in_force import InForce
from dfmeta.flows.pipeline import cookie_of
from dfmeta.inspect.facts import Interface, Seen, Snapshot
from dfmeta.inspect.ledger import entries, wanted_flows
from dfmeta.model import NextHop
from tests.core.unit.inspect.values import PORT6, SETTINGS, TAP6

LAYOUT = SETTINGS.layout
SNAPSHOT = Snapshot(
    interfaces=(Interface("tap-metadata", "br-int", ofport=TAP6.ofport, mac_in_use=TAP6.mac),)
)
HOP = NextHop("10.0.0.2", "fa:16:3e:dd:00:02")
PORT = replace(PORT6, next_hops=(HOP,))
BOTH = ("address", "guest-fragment", "guest-http", "guest-syn", "probe", "reply", "syn")
"""Purposes that have flows of each version of IP."""


@pytest.fixture(autouse=True)
def _switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that has all flows of a host with one guest, and has counted nothing."""
    wanted = wanted_flows([PORT], TAP6)
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
        "compare": Compared((PORT,), rows, {}, {}),
    }.items():
        monkeypatch.setattr(flows_command, name, lambda *_args, value=value, **_kwargs: value)


def shown(*options: str) -> str:
    done = CliRunner().invoke(flows, options)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_flows_of_a_purpose_differ_by_their_family_or_their_address() -> None:
    head, *rows = (re.split(" {2,}", line) for line in shown().splitlines())
    lines = [dict(zip(head, row, strict=True)) for row in rows]
    for purpose in BOTH:
        families = {line["FAMILY"] for line in lines if line["PURPOSE"] == purpose}
        assert families == {"4", "6"}, purpose
    assert [line for line in lines if lines.count(line) > 1] == []
    without = {line["PURPOSE"] for line in lines if line["FAMILY"] == "-"}
    subports = {"subport-syn", "subport-proxy", "subport-drop"}
    assert without == {"from-tap", "service-drop", "reply-drop", "nd-drop", *subports}
    (hop,) = [line for line in shown("--wide").splitlines() if HOP.ip in line]
    assert "guest-next-hop" in hop
    assert f'"next_hop": "{HOP.ip}"' in shown("--format", "json")
