"""What is wrong with the page on metrics, in sentences: the text against the code.

:func:`faults` takes the page's text and the metrics, so that a test can hand it damaged ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Address

from dfmeta import hub
from dfmeta.admin import server as admin_server
from dfmeta.apps import driver, learner
from dfmeta.conf import agent
from dfmeta.conf.agent import HOST_IP6, SERVICE6
from dfmeta.flows.desired import Guest, address_flows, guest_flows
from dfmeta.flows.key import SLOTS, SLOTS6
from dfmeta.flows.pipeline import RATES, Purpose
from dfmeta.flows.service import Tap
from dfmeta.model import Endpoint, GuestAddress, PortState
from tests.core.docs.declared import Metric
from tests.core.docs.page import Section, absent, sections

QUERIES: Mapping[str, tuple[str, ...]] = {
    "Requests not answered 2xx": ("dfmeta_requests_total", "dfmeta_closed_connections_total"),
    "Time in dfmeta and in the backend": (
        "dfmeta_request_seconds_bucket",
        "dfmeta_backend_seconds_bucket",
    ),
    "Ports without an instance": ("dfmeta_ports",),
    "Guests at a limit": ("dfmeta_limits_hit_total", "dfmeta_refused_requests_total"),
    "Drops by reason": ("dfmeta_dropped_packets_total",),
}
"""What is looked at first → what its queries ask for."""
_FIRST = "When guests complain"
_BULLET = re.compile(r"^\* ``(\w+)=\"([^\"]+)\"``: (\S.*(?:\n  .*)*)$", re.MULTILINE)
_MATCHER = re.compile(r"(dfmeta_\w+)(?:\{([^}]*)\})?")
_CONDITION = re.compile(r"(\w+)!?=\"([^\"]*)\"")
_GUEST, _TAP = Endpoint(1), Tap(ofport=2, mac="02:00:00:00:00:01", port=18080)
_ADDRESS = GuestAddress("02:00:00:00:00:02", IPv4Address("192.0.2.1"))
_TAP6 = replace(_TAP, ip6=HOST_IP6, guest_ip6=SERVICE6)
_SLOTS4 = {7: "seven of IPv4"}[len(SLOTS)]
_SLOTS6 = {16: "sixteen of IPv6"}[len(SLOTS6)]
_CHECK = f"{driver.FULL_CHECK_INTERVAL:g}"

FACTS: Mapping[str, tuple[str, ...]] = {
    "Drops by reason": (f"every {_CHECK} seconds",),
    "dfmeta_reconciles_total": (f"every {_CHECK} seconds",),
    "dfmeta_flows": (_SLOTS4, _SLOTS6),
    "dfmeta_addresses": (_SLOTS4.replace("IPv4", "a port"), _SLOTS6.replace("IPv6", "a port")),
    "dfmeta_flow_mods_total": (
        {3: "Three for each address"}[len(address_flows(_GUEST, _ADDRESS, slot=0, tap=_TAP))],
        {5: "five for each port"}[len(guest_flows(Guest(_GUEST, None, {}), _TAP))],
        {15: "fifteen where"}[len(guest_flows(Guest(_GUEST, None, {}), _TAP6))],
    ),
    "dfmeta_held_syns": (f"{learner.HELD_PER_PORT} of a port", f"{learner.HELD_IN_ALL} in all"),
    "dfmeta_dropped_packets_total": (
        f"first SYNs above {RATES[Purpose.SYN]} a second",
        f"SYNs above {RATES[Purpose.GUEST_SYN]} a second",
        f"every {_CHECK} seconds",
    ),
    "dfmeta_hub_stall_seconds": (f"{1 / hub.TICK:g} times a second",),
    "dfmeta_admin_open_connections": (
        f"{admin_server.LIMITS.connections} at most",
        f"{admin_server.LIMITS.connections_per_port} of one address",
    ),
    "dfmeta_admin_refused_total": (
        f"above {admin_server.LIMITS.head.request_line} bytes",
        f"above {admin_server.LIMITS.head.header} bytes",
        f"more than {admin_server.LIMITS.head.lines} lines",
        f"complete in {admin_server.LIMITS.header_timeout:g} seconds",
        f"{admin_server.HELD >> 20} MiB",
        {60: "within a minute"}[int(admin_server.SILENCE)],
    ),
}
"""Section → what the code says that has to be in it."""


def faults(page: str, metrics: Sequence[Metric]) -> list[str]:
    """Everything in which the page and the code differ."""
    found = sections(page)
    return [
        *_strangers(found, metrics),
        *(fault for one in metrics for fault in _metric(found, one)),
        *_queries(page, found, metrics),
        *_facts(page, found),
    ]


def unused(metrics: Sequence[Metric], texts: Mapping[str, str]) -> Iterator[str]:
    """Metrics that no module sets, and values that none of them can count.

    :param texts: module's path → its text.
    """
    code = "".join(text for module, text in texts.items() if module != "dfmeta/metrics.py")
    # Members of an Enum are counted by a loop.
    used = {*re.findall(r'"(\w+)"', code), *PortState, *Purpose.__members__}
    constants = {*re.findall(r"\bmetrics\.(?=(\w+))", code)}
    for one in metrics:
        if one.constant not in constants:
            yield f"{one.constant} is declared, and no module sets it"
        for label, values in one.values.items():
            for value in sorted(values - used):
                yield f'{one.shown}: {label}="{value}" is declared, and never counted'


def _strangers(found: list[Section], metrics: Sequence[Metric]) -> Iterator[str]:
    shown = [one.shown for one in metrics]
    there = [one.title for one in found if one.title.startswith("dfmeta_")]
    yield from (f"{title}: there is no such metric" for title in there if title not in shown)
    yield from (f"{title} stands there twice" for title in {*there} if there.count(title) > 1)


def _metric(found: list[Section], metric: Metric) -> Iterator[str]:
    section = next((one for one in found if one.title == metric.shown), None)
    if section is None:
        yield f"{metric.shown} has no section"
        return
    if section.chapter == _FIRST:
        yield f"{metric.shown} stands under {_FIRST}"
    by = " and ".join(f"``{label}``" for label in metric.values)
    head = f"{metric.kind}, by {by}." if by else f"{metric.kind}."
    if section.paragraphs[:1] != (head,):
        yield f"{metric.shown} does not begin with {head!r}"
    kinds = "".join(map(_kind, section.paragraphs))
    if kinds != ("kwba" if metric.values else "kwa"):
        yield f"{metric.shown}: its parts are {kinds!r}: kind, what it says, values, what to do"
    said = [(label, value) for label, value, _ in _BULLET.findall("\n\n".join(section.paragraphs))]
    yield from _values(metric, said)


def _kind(paragraph: str) -> str:
    if re.match(r"(Counter|Gauge|Histogram)(, by .*)?\.$", paragraph):
        return "k"
    if paragraph.startswith("* "):
        # A bullet that cannot be read would hide a value.
        return "b" if len(_BULLET.findall(paragraph)) == paragraph.count("\n* ") + 1 else "?"
    return "a" if paragraph.startswith("When ") else "w"


def _values(metric: Metric, said: list[tuple[str, str]]) -> Iterator[str]:
    real = {(label, one) for label, ones in metric.values.items() for one in ones}
    for label, value in sorted(real - {*said}):
        yield f'{metric.shown}: {label}="{value}" is not there'
    for label, value in sorted({*said} - real):
        yield f'{metric.shown}: {label}="{value}" is there, and never comes'
    if len(said) > len({*said}):
        yield f"{metric.shown}: a value stands there twice"


def _queries(page: str, found: list[Section], metrics: Sequence[Metric]) -> Iterator[str]:
    """What is named anywhere has to exist, with what it is asked for."""
    series = {name: one for one in metrics for name in {one.shown} | one.series}
    for name, conditions in _MATCHER.findall(page):
        if name not in series:
            yield f"{name} is named, and there is no such series"
            continue
        values = series[name].values
        for label, value in _CONDITION.findall(conditions):
            if value not in values.get(label, ()):
                yield f'{name} has no {label}="{value}"'
    for title, names in QUERIES.items():
        section = next((one for one in found if one.title == title), None)
        text = "".join(_literal(section)) if section else ""
        if section is not None and section.chapter != _FIRST:
            yield f"{title} does not stand under {_FIRST}"
        yield from (f"{title}: no query asks for {name}" for name in names if name not in text)


def _literal(section: Section) -> Iterator[str]:
    """The blocks behind ``::``."""
    for paragraph in section.paragraphs:
        yield from re.findall(r"::\n\n((?: {4}.*\n?|\n)+)", paragraph)


def _facts(page: str, found: list[Section]) -> Iterator[str]:
    yield from absent(found, FACTS)
    listen = next(one.default for one in agent.OPTS if one.name == "admin_listen")
    if f"``http://{listen}/metrics``" not in page:
        yield f"the page does not say that {listen} has them"
