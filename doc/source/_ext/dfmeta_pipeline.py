"""Directives that write the tables and flows of both bridges from their declaration.

``dfmeta-tables::``: a section for each table of the integration bridge, with each of its flows.
``dfmeta-meta-tables::``: the tables of ``identity_scheme = meta_ip``.
``dfmeta-priorities::``: the priorities, each with its flows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from textwrap import wrap
from typing import Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

from dfmeta.flows.openflow import (
    ETH_TYPE_ARP,
    ETH_TYPE_IP,
    ETH_TYPE_IPV6,
    IPPROTO_ICMPV6,
    IPPROTO_TCP,
    PORT_IN_PORT,
    UNTAGGED,
    Action,
    Flow,
    Move,
    Output,
    PopVlan,
    PushVlan,
    Reclassify,
    SetField,
    ToController,
    Value,
)
from dfmeta.flows.pipeline import (
    BR_INT,
    BR_META,
    META_TABLES,
    TABLES,
    Priority,
    Purpose,
    Stage,
    cookie_of,
)
from tools.draw_pipeline import (
    LAYOUT,
    SAMPLE_GUEST,
    SAMPLE_TAP,
    descriptions,
    in_order,
    label,
    sample_flows,
)

_PROTOCOLS: Mapping[tuple[Value | None, Value | None], str] = {
    (ETH_TYPE_ARP, None): "arp",
    (ETH_TYPE_IP, None): "ip",
    (ETH_TYPE_IP, IPPROTO_TCP): "tcp",
    (ETH_TYPE_IPV6, None): "ipv6",
    (ETH_TYPE_IPV6, IPPROTO_TCP): "tcp6",
    (ETH_TYPE_IPV6, IPPROTO_ICMPV6): "icmp6",
    (None, None): "",
}
"""eth_type and ip_proto → their name in ovs-fields(7)."""
_KINDS = ("eth_type", "ip_proto", "icmpv6_type")
"""Match fields whose values distinguish forms of flows."""
_FIRST = ("in_port", "vlan_vid", "eth_src")
_HEXADECIMAL = ("vlan_vid", "tcp_flags", "reg")
_WIDTH = 98
_PORTS: Mapping[int, str] = {
    SAMPLE_GUEST.endpoint.ofport: "GUEST",
    SAMPLE_TAP.ofport: "TAP",
    PORT_IN_PORT: "in_port",
}
"""OpenFlow port number of the sample → how the page names the port."""
_ROLE = re.compile(r":\w+:`([^`]+)`")


def tables_text() -> Iterator[str]:
    """Every table with its flows, as lines of reStructuredText."""
    texts = descriptions(Purpose)
    for stage, table in TABLES.items():
        title = f"Table {LAYOUT.number(stage)}: {table.name}"
        yield from (title, "=" * len(title), "", table.why, "")
        for purpose in in_order(stage):
            head = f"priority {LAYOUT.priority(purpose)}, cookie ``{cookie_of(purpose):#x}``"
            yield from (f".. _{label(purpose)}:", "")
            yield from (f"**{purpose.name}**, {head}: {_sentence(texts[purpose])}", "")
            yield from (".. code-block:: text", "")
            yield from (f"   {line}" for flow in forms(purpose) for line in flow_text(flow))
            yield ""


def forms(purpose: Purpose) -> Iterator[Flow]:
    """The flows of a purpose that differ in more than values and the VLAN tag of their guest."""
    written = set()
    for flow in sample_flows():
        if flow.purpose is not purpose:
            continue
        form = (
            tuple(
                (name, value if name in _KINDS else None)
                for name, value in flow.match
                if name != "vlan_vid"
            ),
            tuple((type(action), getattr(action, "field", None)) for action in flow.actions),
        )
        if form not in written:
            written.add(form)
            yield flow


def flow_text(flow: Flow) -> Iterator[str]:
    """A flow: the lines of its match, and then those of its actions."""
    yield from _wrapped(_match(flow) or "all packets", "")
    yield from _wrapped(f"→ {', '.join(_actions(flow))}", "    ")


def _match(flow: Flow) -> str:
    protocol = _PROTOCOLS[flow.field("eth_type"), flow.field("ip_proto")]
    shown = [pair for pair in flow.match if pair[0] not in ("eth_type", "ip_proto")]
    shown.sort(key=lambda pair: [pair[0] != name for name in _FIRST])
    fields = (f"{name}={_value(name, value)}" for name, value in shown)
    return ", ".join(part for part in (protocol, *fields) if part)


def _value(name: str, value: Value) -> str:
    if isinstance(value, tuple):
        return "/".join(_value(name, part) for part in value)
    if name == "in_port":
        return _PORTS[int(value)]
    if name == "vlan_vid" and value == UNTAGGED:
        return "none"
    return hex(value) if isinstance(value, int) and name.startswith(_HEXADECIMAL) else str(value)


def _actions(flow: Flow) -> Iterator[str]:
    for action in flow.actions:
        yield _action(action)
    if flow.goto is not None:
        yield f"goto table {LAYOUT.number(flow.goto)}"
    elif not flow.actions:
        yield "drop"


def _action(action: Action) -> str:
    match action:
        case SetField(name, value):
            return f"set {name}={_value(name, value)}"
        case Move(source, name):
            return f"copy {source} to {name}"
        case Output(port):
            return f"output to {_PORTS[port]}"
        case ToController(number):
            return f"send to controller {number}"
        case PushVlan():
            return "push an 802.1Q tag"
        case PopVlan():
            return "pop the 802.1Q tag"
        case Reclassify():
            return f"resubmit to table {LAYOUT.classification_table}"
    raise AssertionError(action)


def _wrapped(text: str, margin: str) -> Iterator[str]:
    more = f"{margin}  "
    return iter(wrap(text, _WIDTH, initial_indent=margin, subsequent_indent=more))


def meta_tables_text() -> Iterator[str]:
    """The tables of the second bridge, as lines of reStructuredText."""
    texts = descriptions(Purpose)
    yield from _table("Table", "Reason", "Flows")
    for stage, table in META_TABLES.items():
        purposes = [one for one in BR_META.purposes if one.stage is stage]
        flows = " ".join(f"*{one.name}*: {_sentence(texts[one])}" for one in purposes)
        yield from _row(f"{table.number}, {table.name}", table.why, flows)
    yield ""


def priorities_text() -> Iterator[str]:
    """The priorities with their purposes, as lines of reStructuredText."""
    yield from _table("Name", "Number", "Flows")
    order: Mapping[Stage, int] = {stage: at for at, stage in enumerate(TABLES)}
    for priority in Priority:
        here = [one for one in BR_INT.purposes if one.priority is priority]
        here.sort(key=lambda one: (order[one.stage], one))
        number = str(LAYOUT.priority(here[0]))
        yield from _row(f"``{priority.name}``", number, ", ".join(one.name for one in here))
    yield ""


def _table(*heads: str) -> Iterator[str]:
    yield from (".. list-table::", "   :header-rows: 1", "   :widths: auto", "")
    yield from _row(*heads)


def _row(*cells: str) -> Iterator[str]:
    first, *rest = cells
    yield f"   * - {first}"
    yield from (f"     - {cell}" for cell in rest)


def _sentence(text: str) -> str:
    text = _ROLE.sub(r"``\1``", text)
    return text if text.endswith(".") else f"{text}."


class _Written(SphinxDirective):
    """A directive that stands for text."""

    text: ClassVar[Callable[[], Iterator[str]]]

    def run(self) -> list[nodes.Node]:
        """Parse the text where the directive stands."""
        lines = StringList(list(type(self).text()), source="dfmeta/flows/pipeline.py")
        node = nodes.Element()
        node.document = self.state.document
        nested_parse_with_titles(self.state, lines, node, self.content_offset)
        return list(node.children)


class Tables(_Written):
    """``dfmeta-tables::``."""

    text = staticmethod(tables_text)


class MetaTables(_Written):
    """``dfmeta-meta-tables::``."""

    text = staticmethod(meta_tables_text)


class Priorities(_Written):
    """``dfmeta-priorities::``."""

    text = staticmethod(priorities_text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directives."""
    app.add_directive("dfmeta-tables", Tables)
    app.add_directive("dfmeta-meta-tables", MetaTables)
    app.add_directive("dfmeta-priorities", Priorities)
    return {"parallel_read_safe": True}
