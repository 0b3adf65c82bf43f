"""doc/source/pipeline.rst and its picture should say what the code does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta import registry, slots
from dfmeta.apps import driver, reconciler
from dfmeta.apps.plans import BR_INT_PLAN
from dfmeta.flows import key, metering
from dfmeta.flows.flow import Action
from dfmeta.flows.pipeline import (
    CONTROLLER_ID,
    COOKIE_PREFIX,
    COOKIE_PREFIX_MASK,
    COOKIE_VERSION,
    METER_OF,
    PURPOSES,
    RATES,
    TABLES,
    Layout,
    Purpose,
    Stage,
    cookie_of,
)
from dfmeta.flows.wire import Wire
from dfmeta.model import Endpoint
from tests.core.docs.page import absent, sections
from tests.core.docs.sources import ROOT
from tools import draw_pipeline

LAYOUT = Layout()
PAGE = (ROOT / "doc/source/pipeline.rst").read_text(encoding="utf-8")
ACTION_KINDS = {kind.__name__ for kind in get_args(Action)} | {"goto", "meter"}


def _purposes_by_priority() -> Iterator[str]:
    for priority in dict.fromkeys(declared.priority for declared in PURPOSES.values()):
        mine = [one for one, declared in PURPOSES.items() if declared.priority is priority]
        number = LAYOUT.priority(mine[0])
        names = ", ".join(one.name for one in sorted(mine, key=_as_written))
        yield f"* - ``{priority.name}`` - {number} - {names}"


def _as_written(purpose: Purpose) -> tuple[int, int]:
    """Those of one table together, ADDRESS before the two that its answers need."""
    return PURPOSES[purpose].stage, purpose


def _cookies() -> Iterator[str]:
    yield f"{COOKIE_PREFIX >> 32:#x}"
    yield f"``{(COOKIE_PREFIX >> 32).to_bytes(4, 'big').decode()}``"
    yield f"The version is {COOKIE_VERSION}."
    yield f"cookie={COOKIE_PREFIX:#x}/{COOKIE_PREFIX_MASK:#x}"
    yield ", ".join(f"{one.value} {one.name} ({TABLES[one].name})" for one in Stage)
    yield f"The purpose is {', '.join(f'{one.value} {one.name}' for one in Purpose)}."
    yield f"``{cookie_of(Purpose.ADDRESS):#x}``"


def _meters() -> Iterator[str]:
    for purpose, rate in RATES.items():
        first = metering.FIRST_IDS[purpose]
        yield f"* - {purpose.name} - {rate} - {first} plus the port's OpenFlow number"
        sent = Wire(LAYOUT).add_meter(first, rate)
        if sent.flags & ofp.OFPMF_BURST and sent.bands[0].burst_size == rate:
            yield "with a burst of one second's packets"
    for purpose, other in METER_OF.items():
        yield f"{purpose.name} uses the meter of {other.name}"
    yield f"from {min(metering.FIRST_IDS.values())} to {metering.LAST_ID}"


def _keys() -> Iterator[str]:
    yield f"{key.BASE:#x} | slot << {key.SLOT_SHIFT} | VID << {key.VID_SHIFT} | ofport"
    yield f"in the order {', '.join(map(str, key.SLOTS))};"
    yield f"rest for {registry.REST:g} seconds"
    yield f"{key.PREFIX6}"
    yield f"from {key.SLOTS6[0] - key.SLOT6} to {key.SLOTS6[-1] - key.SLOT6}"
    yield f"slot 1 of port 7 is {key.IN_PORT.key_of(Endpoint(7), key.SLOTS6[0])}"
    often, at_once = slots.DISPLACED_PER_SECOND, slots.DISPLACED_AT_ONCE
    yield f"most {often:g} addresses of a port are evicted per second, and {at_once} at once"


def _traffic() -> Iterator[str]:
    fixed = [one.name for one in sorted(BR_INT_PLAN.needed)]
    yield f"exist once on the bridge ({', '.join(fixed)})"
    yield f"except {', '.join(fixed[:-1])} and {fixed[-1]}"
    yield f"in bundles of {reconciler.BATCH}"
    yield f"every {driver.FULL_CHECK_INTERVAL:g} seconds"
    yield {1.0: "every second"}[driver.CHECK_INTERVAL]


FACTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "Actions": lambda: (f"``{kind}``" for kind in sorted(ACTION_KINDS)),
    "Keys": _keys,
    "Tables": lambda: iter(
        (
            f"``classification_table`` ({LAYOUT.classification_table})",
            f"``table_base`` ({LAYOUT.table_base})",
        )
    ),
    "Priorities": _purposes_by_priority,
    "Cookies": _cookies,
    "Meters": _meters,
    "Controller id": lambda: iter((f"is {CONTROLLER_ID} ({CONTROLLER_ID:#x})",)),
    "When flows are sent": _traffic,
}
"""Section → what the code says that has to be in it."""


def test_page_has_the_facts_of_the_code() -> None:
    facts = {title: tuple(values()) for title, values in FACTS.items()}
    assert list(absent(sections(PAGE), facts)) == []


def test_each_purpose_has_a_section_below_its_table() -> None:
    listed = {one.title: one for one in sections(PAGE)}
    titles = [f"Table {LAYOUT.number(stage)}: {TABLES[stage].name}" for stage in TABLES]
    assert [title for title in listed if title.startswith("Table ")] == titles
    for purpose, place in PURPOSES.items():
        section = listed[purpose.name]
        number, priority = LAYOUT.number(place.stage), LAYOUT.priority(purpose)
        assert section.chapter == f"Table {number}: {TABLES[place.stage].name}", purpose.name
        assert re.search(rf"(A p|P)riority-{priority} flows? that match", section.text), purpose


def test_picture_and_index_are_current() -> None:
    for name, content in (
        (draw_pipeline.PICTURE, draw_pipeline.picture()),
        (draw_pipeline.INDEX, draw_pipeline.index()),
    ):
        written = (ROOT / "doc/source" / name).read_text(encoding="utf-8")
        assert written == content, f"{name} is out of date: run tools/draw-pipeline"


def test_arrows_of_the_picture_are_the_declared_successors() -> None:
    assert draw_pipeline.descriptions().keys() == set(Purpose) == set(PURPOSES)
    for stage in Stage:
        ways = {
            way
            for purpose in draw_pipeline.in_order(stage)
            for way in draw_pipeline.exits(purpose)
            if isinstance(way, Stage)
        }
        assert ways == TABLES[stage].successors, stage
