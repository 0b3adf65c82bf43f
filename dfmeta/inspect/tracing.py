"""Reads what ``ofproto/trace`` says (ovs-vswitchd(8)). Pure.

The text is made for people and has no stable form beyond its shape: a line for each table that the
packet went through, its actions indented below, and the packet as it was at the end. It is read by
that shape, and numbers that dfmeta itself gave (cookies, ports) are what is judged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dfmeta.flows.pipeline import Purpose, is_ours, purpose_of

_HOP: Final = re.compile(
    r"^(?P<indent>\s*)(?P<table>\d+)\. "
    r"(?:(?P<none>No match\.)|(?:(?P<match>.*), )?priority (?P<priority>\d+)"
    r"(?:, cookie (?P<cookie>0x[0-9a-f]+))?)\s*$"
)
_FINAL: Final = "Final flow: "
_FLOW: Final = "Flow: "
_UNCHANGED: Final = "unchanged"
_NOTES: Final = ("->", ">>")


@dataclass(frozen=True, slots=True)
class Hop:
    """A table on the way, and the flow that took the packet there."""

    table: int
    matched: bool
    priority: int = 0
    cookie: int = 0
    match: str = ""
    actions: tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        """Whether dfmeta put the flow in."""
        return self.matched and is_ours(self.cookie)

    @property
    def purpose(self) -> Purpose | None:
        """What the flow is for; None when it is not one of ours of today."""
        return purpose_of(self.cookie) if self.matched else None

    def outputs_to(self, ofport: int) -> bool:
        """Whether the packet leaves at *ofport* here."""
        return f"output:{ofport}" in self.actions


@dataclass(frozen=True, slots=True)
class Trace:
    """A packet's way through the bridge."""

    hops: tuple[Hop, ...]
    final: dict[str, str]
    """Fields of the packet at the end, in ovs-fields(7)'s old notation (``nw_dst``)."""

    def at(self, table: int) -> Hop | None:
        """The first hop through *table*."""
        return next((hop for hop in self.hops if hop.table == table), None)


def parse(text: str) -> Trace:
    """Read the whole text; what follows a recirculation is left out."""
    hops: list[Hop] = []
    actions: list[str] = []
    flow, final = "", ""
    for line in text.splitlines():
        found = _HOP.match(line)
        if line.startswith(_FLOW):
            flow = line.removeprefix(_FLOW)
        elif line.startswith(_FINAL):
            final = line.removeprefix(_FINAL)
            break
        elif found:
            _finish(hops, actions)
            hops.append(_hop(found))
        elif hops and line.startswith(" ") and not line.strip().startswith(_NOTES):
            actions.append(line.strip())
    _finish(hops, actions)
    return Trace(tuple(hops), _fields(flow if final in ("", _UNCHANGED) else final))


def packet(**fields: object) -> str:
    """Write a packet in ovs-ofctl(8)'s notation: ``packet(in_port=1, tcp_flags="syn")``."""
    return "tcp," + ",".join(f"{name}={value}" for name, value in fields.items())


def _finish(hops: list[Hop], actions: list[str]) -> None:
    """Give the actions gathered so far to the last hop."""
    if hops:
        last = hops.pop()
        hops.append(
            Hop(last.table, last.matched, last.priority, last.cookie, last.match, tuple(actions))
        )
    actions.clear()


def _hop(found: re.Match[str]) -> Hop:
    if found["none"]:
        return Hop(int(found["table"]), matched=False)
    return Hop(
        int(found["table"]),
        matched=True,
        priority=int(found["priority"]),
        cookie=int(found["cookie"] or "0", 16),
        match=found["match"] or "",
    )


def _fields(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in text.split(","))}
