"""The pipeline, declared: tables with what they may do, and every kind of flow in them.

This is the only place with numbers. Tables are called by their :class:`Stage`, flows by their
:class:`Purpose`; the numbers on the switch come from :class:`Layout`, which the options
``table_base``, ``classification_table`` and ``hook_priority`` shape. :func:`dfmeta.flows.flow.flow`
holds each flow against the declaration when it is built.

Cookies say what a flow is, so that a dump can be read without the process that put it there::

    63            32 31     24 23     16 15           0
    +---------------+---------+---------+-------------+
    | 'dfme'        | version | stage   | purpose     |
    +---------------+---------+---------+-------------+
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

COOKIE_PREFIX = 0x64666D65 << 32
COOKIE_PREFIX_MASK = 0xFFFFFFFF << 32
COOKIE_VERSION = 1
"""Grows when a flow's form changes in a way that an older daemon's flows must not survive. What
a flow of another version stands for is still read from it, if it reads as one of today's: guests
that are waiting are then answered. Where that would be wrong, give the purpose another number."""

CONTROLLER_ID = 0xD1FE
"""Ours among the switch's controllers: packet-ins of our flows come to us alone. Neutron's is 0."""

METADATA_IP = "169.254.169.254"
METADATA_PORT = 80
PORT_IN_PORT = 0xFFFFFFF8
"""OFPP_IN_PORT (OpenFlow 1.3, A.2.1): back where the packet came from."""


class Stage(enum.IntEnum):
    """A table, by name. The values stand in cookies; they are not table numbers."""

    CLASSIFY = 1
    SERVICE = 2
    REPLY = 3


class Priority(enum.Enum):
    """Priorities, by name; :meth:`Layout.priority` gives the number."""

    HOOK = "hook"
    ADDRESS = 200
    SYN = 100
    DROP = 0


_L2 = frozenset({"in_port", "eth_type", "vlan_vid"})
_TCP = _L2 | {"ip_proto", "ipv4_dst", "tcp_dst"}
_ARP_SETS = frozenset({"eth_dst", "eth_src", "arp_op", "arp_tha", "arp_tpa", "arp_sha", "arp_spa"})


@dataclass(frozen=True, slots=True)
class Table:
    """What a table is for, and all that its flows may do."""

    name: str
    why: str
    matches: frozenset[str]
    sets: frozenset[str]
    successors: frozenset[Stage]
    outputs: bool
    to_controller: bool = False


TABLES: Mapping[Stage, Table] = {
    Stage.CLASSIFY: Table(
        name="classification",
        why="Tells a guest's metadata traffic from everything else on the bridge. It shares its "
        "number with whoever else uses the bridge and touches nothing but what it matches.",
        matches=_TCP | {"tcp_flags", "ip_frag", "arp_op", "arp_tpa"},
        sets=_ARP_SETS,
        successors=frozenset({Stage.SERVICE, Stage.REPLY}),
        outputs=True,
    ),
    Stage.SERVICE: Table(
        name="metadata service",
        why="Sends what a guest says to the service on to tap-metadata, with the key as its source "
        "address; what comes from an address not seen yet goes to the controller first.",
        matches=_L2 | {"eth_src", "ip_proto", "ipv4_src", "tcp_flags"},
        sets=frozenset({"ipv4_src", "ipv4_dst", "eth_dst", "tcp_dst"}),
        successors=frozenset(),
        outputs=True,
        to_controller=True,
    ),
    Stage.REPLY: Table(
        name="metadata service reply",
        why="Takes what tap-metadata emits: an answer to a key goes to that key's port with the "
        "guest's addresses put back, a question for a key's MAC is answered, the answer to the "
        "daemon's own probe goes to the controller, nothing else leaves.",
        matches=frozenset(
            {"eth_type", "ip_proto", "ipv4_src", "ipv4_dst", "tcp_src", "arp_op", "arp_tpa"}
        ),
        sets=_ARP_SETS | {"ipv4_src", "ipv4_dst", "tcp_src"},
        successors=frozenset(),
        outputs=True,
        to_controller=True,
    ),
}


class Purpose(enum.IntEnum):
    """Every kind of flow that dfmeta puts on a switch. The values stand in cookies."""

    GUEST_HTTP = 1
    """A guest's untagged TCP to 169.254.169.254:80 that opens no connection → service table."""
    GUEST_ARP = 2
    """A guest asks who has 169.254.169.254: answered on the port it asked from."""
    FROM_TAP = 3
    """Whatever tap-metadata emits → reply table."""
    SYN = 4
    """The first SYN of an address → controller, through the port's meter."""
    ADDRESS = 5
    """TCP of a known address → tap-metadata, its key as source."""
    SERVICE_DROP = 6
    """What is neither a known address' nor a SYN."""
    REPLY = 7
    """An answer to a key → that key's port alone."""
    KEY_ARP = 8
    """The host asks who has a key: answered with the guest's MAC."""
    REPLY_DROP = 9
    """Everything else that tap-metadata emits."""
    GUEST_SYN = 10
    """A guest's SYN to 169.254.169.254:80 → service table, through the port's meter."""
    GUEST_FRAGMENT = 11
    """A fragment of a guest's TCP to 169.254.169.254: dropped."""
    PROBE = 12
    """An answer to the daemon's own SYN (:mod:`dfmeta.apps.probe`) → controller."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Where flows of one purpose stand."""

    stage: Stage
    priority: Priority


PURPOSES: Mapping[Purpose, Declared] = {
    Purpose.GUEST_HTTP: Declared(Stage.CLASSIFY, Priority.HOOK),
    Purpose.GUEST_SYN: Declared(Stage.CLASSIFY, Priority.HOOK),
    Purpose.GUEST_FRAGMENT: Declared(Stage.CLASSIFY, Priority.HOOK),
    Purpose.GUEST_ARP: Declared(Stage.CLASSIFY, Priority.HOOK),
    Purpose.FROM_TAP: Declared(Stage.CLASSIFY, Priority.HOOK),
    Purpose.SYN: Declared(Stage.SERVICE, Priority.SYN),
    Purpose.ADDRESS: Declared(Stage.SERVICE, Priority.ADDRESS),
    Purpose.SERVICE_DROP: Declared(Stage.SERVICE, Priority.DROP),
    Purpose.REPLY: Declared(Stage.REPLY, Priority.ADDRESS),
    Purpose.KEY_ARP: Declared(Stage.REPLY, Priority.ADDRESS),
    Purpose.PROBE: Declared(Stage.REPLY, Priority.ADDRESS),
    Purpose.REPLY_DROP: Declared(Stage.REPLY, Priority.DROP),
}

RATES: Mapping[Purpose, int] = {Purpose.SYN: 50, Purpose.GUEST_SYN: 1000}
"""Packets a second, and at once, that the flow of one port and that purpose lets through. An
address needs one first SYN; cloud-init opens some thirty connections. Connections are remembered
by a host's conntrack for two minutes: at 1,000 a second one guest has less than half of the
262,144 that Linux allows by default on a host with more than 4 GB of memory."""

_OFFSET = {Stage.SERVICE: 0, Stage.REPLY: 1}
TABLES_TAKEN = len(_OFFSET)
"""How many table numbers from ``table_base`` up are ours."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The tables of one bridge, and every kind of flow in them."""

    tables: Mapping[Stage, Table]
    purposes: Mapping[Purpose, Declared]
    rates: Mapping[Purpose, int]
    """Of the purposes whose flows go through a meter of their port: packets a second, and at once.
    No two are the same: the purpose of a meter that is left over is told by its rate."""

    def stage(self, purpose: Purpose) -> Stage:
        """Table that flows of *purpose* stand in."""
        return self.purposes[purpose].stage

    def is_shared(self, purpose: Purpose) -> bool:
        """Whether flows of *purpose* stand in a table that other programs of the host use.

        The switch reports each removal there.
        """
        return self.stage(purpose) is Stage.CLASSIFY


BR_INT: Final = Pipeline(TABLES, PURPOSES, RATES)
"""The pipeline beside the guests' ports."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Gives the switch's numbers to the declaration's names."""

    table_base: int = 200
    classification_table: int = 0
    hook_priority: int = 300
    pipeline: Pipeline = field(default=BR_INT, repr=False)

    def number(self, stage: Stage) -> int:
        """Table number of *stage* on the switch."""
        if stage is Stage.CLASSIFY:
            return self.classification_table
        return self.table_base + _OFFSET[stage]

    def table(self, purpose: Purpose) -> int:
        """Table number on the switch of flows of *purpose*."""
        return self.number(self.pipeline.stage(purpose))

    def stage(self, number: int) -> Stage | None:
        """Stage with that table number, or None when the table is not ours."""
        return next((stage for stage in Stage if self.number(stage) == number), None)

    def priority(self, purpose: Purpose) -> int:
        """Priority on the switch of flows of *purpose*."""
        priority = self.pipeline.purposes[purpose].priority
        return self.hook_priority if priority is Priority.HOOK else int(priority.value)


def cookie_of(purpose: Purpose) -> int:
    """Give the 64-bit cookie of flows of *purpose*."""
    stage = PURPOSES[purpose].stage
    return COOKIE_PREFIX | COOKIE_VERSION << 24 | stage << 16 | purpose


def purpose_of(cookie: int) -> Purpose | None:
    """Read a cookie; None when it is not ours or of another version."""
    try:
        purpose = Purpose(cookie & 0xFFFF)
    except ValueError:
        return None
    return purpose if cookie_of(purpose) == cookie else None


def present(cookie: int) -> int:
    """The cookie that a flow of ours would have in today's version, whatever version it has."""
    return cookie & ~(0xFF << 24) | COOKIE_VERSION << 24


def is_ours(cookie: int) -> bool:
    """Whether a flow with that cookie is dfmeta's, of whatever version."""
    return cookie & COOKIE_PREFIX_MASK == COOKIE_PREFIX
