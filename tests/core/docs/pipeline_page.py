"""What is wrong with the page on the pipeline, in sentences: the text against the code.

:func:`faults` takes the page's text, so that a test can hand it a page that it has damaged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import get_args

from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta import registry, slots
from dfmeta.apps import driver
from dfmeta.apps import reconciler as reconciler
from dfmeta.apps.plans import BR_INT_PLAN
from dfmeta.flows import key, metering
from dfmeta.flows.flow import (
    Action,
    Flow,
    Move,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    ToController,
)
from dfmeta.flows.pipeline import (
    CONTROLLER_ID,
    COOKIE_PREFIX,
    COOKIE_PREFIX_MASK,
    COOKIE_VERSION,
    METER_OF,
    PORT_IN_PORT,
    PURPOSES,
    RATES,
    TABLES,
    Layout,
    Purpose,
    Register,
    Stage,
    cookie_of,
)
from dfmeta.flows.wire import Wire
from dfmeta.model import Endpoint
from tests.core.docs.page import Section, absent, sections
from tests.core.docs.printing import PLACEHOLDERS, Case, cases, printed, unwrapped, wrapped

LAYOUT = Layout()
ACTION_KINDS = {kind.__name__ for kind in get_args(Action)} | {"goto", "meter"}
FIELDS = frozenset().union(*(table.matches | table.sets for table in TABLES.values()))
_BLOCK = re.compile(r"\.\. code-block:: text\n   :name: (\S+)\n\n(.*)", re.DOTALL)
_LITERAL = re.compile(r"``([^`]+)``")
_SECTION = "-"


@cache
def wanted_blocks() -> Mapping[str, str]:
    """Name of each literal block → what the switch would really print."""
    known = cases()
    return dict(zip(known, printed(case.flow for case in known.values()), strict=True))


def faults(page: str) -> list[str]:
    """Everything in which the page and the code differ."""
    found = sections(page)
    return [
        *_unknown_kinds(),
        *_order(found),
        *(fault for stage in TABLES for fault in _table(found, stage)),
        *(fault for purpose in PURPOSES for fault in _purpose(found, purpose)),
        *_blocks(found),
        *absent(found, _facts()),
    ]


@cache
def _facts() -> Mapping[str, Sequence[str]]:
    """See ``FACTS``; the code says the same to every page."""
    return {title: tuple(wanted()) for title, wanted in FACTS.items()}


def _unknown_kinds() -> Iterator[str]:
    known = {SetField, Move, Output, ToController, PushVlan, PopVlan}
    for kind in set(get_args(Action)) - known:
        if kind.__name__ != "Opaque":
            yield f"the check does not know actions of kind {kind.__name__}"


def _order(found: list[Section]) -> Iterator[str]:
    """The tables stand in the order in which packets pass them."""
    there = [one.title for one in found if one.title.startswith("Table ")]
    if there != [_title(stage) for stage in TABLES]:
        yield f"the page has the tables {there}"


def _title(stage: Stage) -> str:
    return f"Table {LAYOUT.number(stage)}: {TABLES[stage].name}"


def _table(found: list[Section], stage: Stage) -> Iterator[str]:
    for one in found:
        if one.title == _title(stage) and not one.paragraphs:
            yield f"{one.title}: it does not say why there is such a table"


def _purpose(found: list[Section], purpose: Purpose) -> Iterator[str]:
    section = next((one for one in found if one.title == purpose.name), None)
    if section is None or section.mark != _SECTION:
        yield f"{purpose.name} has no section"
        return
    if section.chapter != _title(PURPOSES[purpose].stage):
        yield f"{purpose.name} stands under {section.chapter}"
    mine = [case for case in cases().values() if case.flow.purpose is purpose]
    yield from (f"{purpose.name}: {fault}" for fault in _form(section, mine))
    said = " ".join(" ".join(_what(section)).split())
    yield from (f"{purpose.name}: {fault}" for fault in _says(said, mine))


def _what(section: Section) -> list[str]:
    """Paragraphs on what the flow matches and does: those that lead to a block."""
    return [one for one in section.paragraphs if one.endswith(":")]


def _form(section: Section, mine: list[Case]) -> Iterator[str]:
    """Why, then priority, match and actions, then a block for each form, then when absent."""
    kinds = "".join(map(_kind, section.paragraphs))
    if kinds != "w" + "pb" + "vb" * (len(mine) - 1) + "a":
        yield f"its parts are {kinds!r}: why, priority, block, [variant, block], absent"


def _kind(paragraph: str) -> str:
    if _BLOCK.match(paragraph):
        return "b"
    if re.match(r"(A p|P)riority-", paragraph):
        return "p"
    if paragraph.startswith("Absent "):
        return "a"
    return "v" if paragraph.endswith(":") else "w"


def _says(said: str, mine: list[Case]) -> Iterator[str]:
    flows = [case.flow for case in mine]
    priority = LAYOUT.priority(flows[0].purpose)
    if not re.match(rf"(A p|P)riority-{priority} flows? that match", said):
        yield f"it does not begin with priority {priority}"
    used = set().union(*map(_fields, flows))
    named = set(_LITERAL.findall(said)) & FIELDS
    yield from (f"{field} is not named" for field in sorted(used - named))
    yield from (f"{field} is named, and not used" for field in sorted(named - used))
    for word in sorted(set().union(*map(_words, flows))):
        if word not in said:
            yield f"it does not say {word!r}"


def _fields(flow: Flow) -> set[str]:
    fields = {field for field, _value in flow.match}
    for action in flow.actions:
        match action:
            case SetField(field=field):
                fields.add(field)
            case Move(source=source, field=field):
                fields |= {source, field}
    return fields


def _words(flow: Flow) -> set[str]:
    """What the text has to say of what the flow does."""
    words = set()
    for action in flow.actions:
        match action:
            case SetField():
                words.add("sets")
            case Move(source=source, field=field):
                words |= {"copies", f"``{source}`` to ``{field}``"}
            case Output(port=port):
                words.add("send it back out of" if port == PORT_IN_PORT else "outputs to")
            case ToController():
                words |= {"to the controller", "whole"}
    if flow.goto is not None:
        words.add(f"on to the {TABLES[flow.goto].name} table")
    if flow.meter is not None:
        words.add("meter")
    return words or {"drops"}


def _blocks(found: list[Section]) -> Iterator[str]:
    there = {}
    for one in found:
        for paragraph in one.paragraphs:
            if block := _BLOCK.match(paragraph):
                there[block[1]] = unwrapped(block[2])
    for name in sorted(there.keys() - wanted_blocks().keys()):
        yield f"no flow is printed as {name}"
    for name, line in wanted_blocks().items():
        if there.get(name) != line:
            yield f"the switch prints {name} as\n{wrapped(line)}"


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


def _registers() -> Iterator[str]:
    for one in FIELDS:
        if re.match(r"reg\d|xreg|metadata", one):
            yield f"* - ``{Register(one)}`` - {_setters(one)}"


def _setters(register: str) -> str:
    """The purposes whose flows set *register*."""
    setters = {
        case.flow.purpose
        for case in cases().values()
        for action in case.flow.actions
        if isinstance(action, SetField) and action.field == register
    }
    return ", ".join(one.name for one in sorted(setters))


def _traffic() -> Iterator[str]:
    fixed = [one.name for one in sorted(BR_INT_PLAN.needed)]
    yield f"exist once on the bridge ({', '.join(fixed)})"
    yield f"except {', '.join(fixed[:-1])} and {fixed[-1]}"
    yield f"in bundles of {reconciler.BATCH}"
    yield f"every {driver.FULL_CHECK_INTERVAL:g} seconds"
    yield {1.0: "every second"}[driver.CHECK_INTERVAL]


FACTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "How to read this page": lambda: (f"``{name}``" for name in PLACEHOLDERS),
    "Actions": lambda: (f"``{kind}``" for kind in sorted(ACTION_KINDS)),
    "Keys": _keys,
    "Tables": lambda: iter(
        (
            f"``classification_table`` ({LAYOUT.classification_table})",
            f"``table_base`` ({LAYOUT.table_base})",
        )
    ),
    "Priorities": _purposes_by_priority,
    "Registers": _registers,
    "Cookies": _cookies,
    "Meters": _meters,
    "Controller id": lambda: iter((f"is {CONTROLLER_ID} ({CONTROLLER_ID:#x})",)),
    "When flows are sent": _traffic,
}
"""Section → what the code says that has to be in it."""
