"""Parse the output of ``ofproto/trace`` (ovs-vswitchd(8)). Pure.

The output is text for people, and only its shape is stable: a line for each table that the packet
passes, its actions indented below, and the final packet at the end. Only numbers that dfmeta itself
set (cookies, ports) are judged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from dfmeta.flows.pipeline import AnyPurpose, is_ours, purpose_of

_HOP: Final = re.compile(
    r"^(?P<indent>\s*)(?P<table>\d+)\. "
    r"(?:(?P<none>No match\.)|(?:(?P<match>.*), )?priority (?P<priority>\d+)"
    r"(?:, cookie (?P<cookie>0x[0-9a-f]+))?)\s*$"
)
_FINAL: Final = "Final flow: "
_FLOW: Final = "Flow: "
_UNCHANGED: Final = "unchanged"
_NOTES: Final = ("->", ">>")
_BRIDGE: Final = re.compile(r'^bridge\("(?P<name>[^"]*)"\)\s*$')
_MISS: Final = re.compile(r"reg0=0x[12]")
"""Match of the rules with which Open vSwitch itself handles a packet that no flow matches."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A table on the path, and the flow that the packet matched there."""

    table: int
    matched: bool
    priority: int = 0
    cookie: int = 0
    match: str = ""
    actions: tuple[str, ...] = ()
    bridge: str = ""
    """Name of the bridge of the table."""

    @property
    def ours(self) -> bool:
        """Whether dfmeta installed the flow."""
        return self.matched and is_ours(self.cookie)

    @property
    def purpose(self) -> AnyPurpose | None:
        """Purpose of the flow; None if it is not one of dfmeta's current flows."""
        return purpose_of(self.cookie) if self.matched else None

    def outputs_to(self, ofport: int) -> bool:
        """Return whether this flow sends the packet out at *ofport*."""
        return f"output:{ofport}" in self.actions


@dataclass(frozen=True, slots=True)
class Trace:
    """A packet's path through the bridge, and through those behind its patch ports."""

    hops: tuple[Hop, ...]
    final: dict[str, str]
    """Fields of the packet when it leaves the first bridge, in the old notation of ovs-fields(7)
    (``nw_dst``). Addresses of IPv6 have no zone, and may be written in another way than Python
    writes them."""

    def at(self, table: int) -> Hop | None:
        """Return the first hop in *table*; None if the packet does not pass the table."""
        return next((hop for hop in self.hops if hop.table == table), None)

    @property
    def first(self) -> Trace:
        """The part of the path on the bridge where it begins."""
        return self.on(self.hops[0].bridge) if self.hops else self

    def on(self, bridge: str) -> Trace:
        """Return the part of the path on *bridge*; without hops if the packet does not get there.

        It has the same final packet.
        """
        return Trace(tuple(hop for hop in self.hops if hop.bridge == bridge), self.final)


def parse(text: str) -> Trace:
    """Parse the whole output, except the part after a recirculation."""
    hops: list[Hop] = []
    actions: list[str] = []
    flow, final, bridge = "", "", ""
    for line in text.splitlines():
        match, begins = _HOP.match(line), _BRIDGE.match(line)
        if line.startswith(_FLOW):
            flow = line.removeprefix(_FLOW)
        elif line.startswith(_FINAL):
            final = line.removeprefix(_FINAL)
            break
        elif begins:
            bridge = begins["name"]
        elif match:
            _finish(hops, actions)
            hops.append(_hop(match, bridge))
        elif hops and line.startswith(" ") and not line.strip().startswith(_NOTES):
            actions.append(line.strip())
    _finish(hops, actions)
    return Trace(tuple(hops), _fields(flow if final in ("", _UNCHANGED) else final))


def packet(protocol: str, /, **fields: object) -> str:
    """Return a packet in ovs-ofctl(8)'s notation: ``packet("tcp", in_port=1)``.

    :param protocol: such as ``tcp``, ``tcp6`` or ``icmp6``; it has to precede its fields.
    """
    return ",".join((protocol, *(f"{name}={value}" for name, value in fields.items())))


def _finish(hops: list[Hop], actions: list[str]) -> None:
    """Add the collected actions to the last hop."""
    if hops:
        hops.append(replace(hops.pop(), actions=tuple(actions)))
    actions.clear()


def _hop(match: re.Match[str], bridge: str) -> Hop:
    if match["none"] or _MISS.fullmatch(match["match"] or ""):
        return Hop(int(match["table"]), matched=False, bridge=bridge)
    return Hop(
        int(match["table"]),
        matched=True,
        priority=int(match["priority"]),
        cookie=int(match["cookie"] or "0", 16),
        match=match["match"] or "",
        bridge=bridge,
    )


def _fields(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in text.split(","))}
