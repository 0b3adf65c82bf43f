"""Doctor should name the guests that fail, by reason, however many they are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dfmeta.cli.gather import _known
from dfmeta.exceptions import KeyRangeError
from dfmeta.flows.key import IN_PORT, SLOT6
from dfmeta.inspect.checks_guests import ALL, KINDS, guests
from dfmeta.inspect.facts import GuestFailure, KnownPort
from dfmeta.inspect.finding import SHOWN, Finding
from tests.core.unit.inspect.values import OK, PORT, UNKNOWN, WRONG, expect
from tests.core.unit.support import GUEST_IP6, GUEST_MAC, SERVICE6, address, address6

NOW = datetime(2026, 11, 22, 14, 30, tzinfo=UTC)
NO_RECORD = GuestFailure(404, "no record", "`dfmeta store put x`", NOW - timedelta(minutes=2), 12)


def port(number: int, failure: GuestFailure | None = None, *, asked: bool = True) -> KnownPort:
    return replace(PORT, name=f"tap{number}", asked=asked, failure=failure)


def judge(*ports: KnownPort, running: bool = True) -> list[Finding]:
    return list(guests(ports, NOW, running=running))


def test_guests_that_fail_are_named_with_how_and_what_to_do() -> None:
    yesterday = replace(NO_RECORD, since=NOW - timedelta(days=1), times=1)
    (fine,) = judge(port(1), port(2, asked=False), port(3, asked=False))
    (unseen,) = judge(port(1, NO_RECORD), running=False)
    (both,) = judge(port(1), port(2, yesterday), port(3, NO_RECORD))
    (single,) = judge(port(3, NO_RECORD))
    none = "no guest fails, of 1 that have sent requests since dfmeta-agent's start; 2 of 3 guests"
    two = (
        "2 of 3 guests that have sent requests get 404 (no record): "
        "tap3 (since 14:28:00 UTC, 12 times), tap2 (since 2026-11-21 14:30:00 UTC)"
    )
    expect([(fine, OK, f"{none} have sent none"), (unseen, UNKNOWN, ""), (both, WRONG, two)])
    assert (both.text, both.remedy) == (two, f"`dfmeta store put x`; {ALL}")
    assert single.remedy == "`dfmeta store put x`"


def test_one_way_to_fail_does_not_hide_another_and_the_lines_have_an_end() -> None:
    refused = replace(NO_RECORD, status=401, brief="no valid token", remedy="http_tokens")
    many = [port(number, refused) for number in range(100)]
    lines = judge(*many, port(200, NO_RECORD))
    assert ["401" in lines[0].text, "tap200" in lines[1].text, len(lines)] == [True, True, 2]
    assert f"and {100 - SHOWN} more" in lines[0].text
    odd = [port(number, replace(refused, status=500 + number)) for number in range(50)]
    *named, last = judge(*odd)
    assert len(named) == KINDS
    assert last.text == f"{50 - KINDS} of 50 guests that fail do so in {50 - KINDS} other ways"
    assert all(line.status is WRONG for line in (*named, last))


def known(row: dict[str, Any]) -> KnownPort:
    return _known(row, IN_PORT)


def test_a_row_of_the_daemons_is_read() -> None:
    row: dict[str, Any] = {
        **dict.fromkeys(
            ("port", "instance", "iface_id", "mac", "fault", "project", "instance_name"), "x"
        ),
        "ofport": 1,
        "state": "served",
        "addresses": [
            {"slot": 1, "key": "144.0.0.1", "mac": GUEST_MAC, "ip": "10.0.0.5"},
            {
                "slot": 1,
                "key": "fd00:a9fe:a9fe:a9fe:1::1",
                "mac": GUEST_MAC,
                "ip": GUEST_IP6,
                "service": SERVICE6[0],
            },
        ],
        "requests": {},
        "last_failure": None,
    }
    last = {"status": 404, "brief": "no record", "remedy": "r", "times": 2}
    moment = {"failing_since": "2026-11-22T14:28:00Z"}
    assert known(row).failure is None
    assert known({**row, "last_failure": {**last, "failing": False}}).failure is None
    found = known({**row, "last_failure": {**last, **moment, "failing": True}})
    assert found.addresses == {1: address(), SLOT6 + 1: address6()}
    assert found.failure == GuestFailure(404, "no record", "r", NOW - timedelta(minutes=2), 2)
    assert found.asked
    assert not known({**row, "requests": None}).asked
    for one in ({"key": "10.0.0.1"}, {"ip": "nonsense"}, {"ip": GUEST_IP6, "service": None}):
        with pytest.raises((ValueError, KeyRangeError)):
            known({**row, "addresses": [{**row["addresses"][0], **one}]})
