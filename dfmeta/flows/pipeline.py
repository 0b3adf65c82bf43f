"""The declaration of the pipeline: its tables with their allowed fields, and all kinds of flows.

This is the only module with numbers. Other modules name a table by its :class:`Stage` and a flow by
its :class:`Purpose`; the numbers on the switch come from :class:`Layout`, which depends on the
options ``table_base``, ``classification_table`` and ``hook_priority``.
:func:`dfmeta.flows.openflow.flow` checks each flow against the declaration when it builds it.

The cookie identifies the kind of a flow, so that a dump can be read without the process that added
the flow::

    63            32 31     24 23     16 15           0
    +---------------+---------+---------+-------------+
    | 'dfme'        | version | stage   | purpose     |
    +---------------+---------+---------+-------------+
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

COOKIE_PREFIX = 0x64666D65 << 32
COOKIE_PREFIX_MASK = 0xFFFFFFFF << 32
COOKIE_VERSION = 1
"""Increase it when the form of flows changes so that flows of an older daemon have to be replaced.
A flow of another version is still read if it has the form of a present one, so that waiting guests
are answered. If that would be wrong, give the purpose another number."""

CONTROLLER_ID = 0xD1FE
"""Id of dfmeta's connection: only dfmeta gets the packet-ins of its flows. Neutron's id is 0."""

METADATA_IP = "169.254.169.254"
METADATA_PORT = 80


class Stage(enum.IntEnum):
    """A table, by name. Cookies contain the values; they are not table numbers."""

    CLASSIFY = 1
    SERVICE = 2
    REPLY = 3
    ND = 4
    SUBPORT = 5
    SOURCE = 6
    # The tables of the second bridge of ``identity_scheme = meta_ip``.
    META_CLASSIFY = 33
    META_SOURCE = 34
    META_PROXY = 35
    META_NEIGHBOURS = 36
    META_REPLY = 37


class Priority(enum.Enum):
    """A priority, by name; :meth:`Layout.priority` returns the number."""

    HOOK = "hook"
    BELOW_HOOK = "below hook"
    """Below the hooks, and above all flows of other programs that the hooks are above."""
    ADDRESS = 200
    SYN = 100
    ANY = 50
    DROP = 0


class Register(enum.StrEnum):
    """The registers that flows use; ``classification`` sets none of them.

    A frame whose register was set never leaves dfmeta's own tables, but for :attr:`CHECKED`.
    """

    ND_FLAGS = "reg0"
    """Owner: the answers to solicitations. The flags of an advertisement."""
    ND_OPTION = "reg1"
    """Owner: the answers to solicitations. The type of an advertisement's option."""
    TAG = "reg3"
    """Owner: the subport table. The VLAN tag that a first SYN had; 0 in a frame for the proxy."""
    CHECKED = "reg15"
    """Owner: the source table. 1 in a container's frame that was checked, which then passes the
    flows of other programs."""


_L2 = frozenset({"in_port", "eth_type", "vlan_vid"})
_TCP = _L2 | {"ip_proto", "ipv4_dst", "ipv6_dst", "tcp_dst"}
_ND = frozenset({"ip_proto", "icmpv6_type", "icmpv6_code", "ipv6_nd_target"})
_ND_PREPARES = frozenset({"icmpv6_type", "nd_reserved", "nd_options_type"}) | {
    Register.ND_FLAGS,
    Register.ND_OPTION,
    Register.TAG,
}
_ARP_SETS = frozenset({"eth_dst", "eth_src", "arp_op", "arp_tha", "arp_tpa", "arp_sha", "arp_spa"})


@dataclass(frozen=True, slots=True)
class Table:
    """Purpose of a table, and all fields, actions and next tables that its flows may use."""

    name: str
    why: str
    matches: frozenset[str]
    sets: frozenset[str]
    successors: frozenset[Stage]
    outputs: bool
    to_controller: bool = False
    tags: bool = False
    """Whether its flows may push or pop a VLAN tag."""
    reclassifies: bool = False
    """Whether its flows may send a frame through the classification table again."""
    number: int | None = None
    """Table number; None: it depends on the configuration, see :meth:`Layout.number`."""


TABLES: Mapping[Stage, Table] = {
    Stage.CLASSIFY: Table(
        name="classification",
        why="Separates guests' metadata traffic from all other traffic on the bridge. Other "
        "programs may use the same table; dfmeta's flows affect only the packets they match.",
        matches=_TCP
        | _ND
        | {"tcp_flags", "ip_frag", "arp_op", "arp_spa", "arp_tpa", Register.CHECKED},
        sets=_ARP_SETS,
        successors=frozenset({Stage.SERVICE, Stage.REPLY, Stage.SOURCE}),
        outputs=True,
    ),
    Stage.SERVICE: Table(
        name="metadata service",
        why="Sends guests' packets for the service to tap-metadata, with the key as the source "
        "address; the first SYN of an unknown address goes to the controller. Turns guests' "
        "solicitations for the service into advertisements.",
        matches=_L2
        | _ND
        | {"eth_src", "ipv4_src", "ipv6_src", "ipv6_dst", "tcp_flags"}
        | {"ipv6_nd_sll"},
        sets=frozenset(
            {"eth_src", "ipv4_src", "ipv4_dst", "ipv6_src", "ipv6_dst", "eth_dst", "tcp_dst"}
        )
        | _ND_PREPARES,
        successors=frozenset({Stage.ND, Stage.SUBPORT}),
        outputs=True,
        to_controller=True,
        tags=True,
    ),
    Stage.REPLY: Table(
        name="metadata service reply",
        why="Receives the frames from tap-metadata: an answer to a key goes to that key's port "
        "with the guest's addresses restored, a request for a key's MAC is answered, the answer "
        "to the daemon's own probe goes to the controller, and all other frames are dropped.",
        matches=frozenset({"eth_type", "ip_proto", "ipv4_src", "ipv4_dst", "ipv6_src", "ipv6_dst"})
        | {"eth_dst", "tcp_src", "arp_op", "arp_tpa", "icmpv6_type", "icmpv6_code", "vlan_vid"},
        sets=_ARP_SETS
        | {"ipv4_src", "ipv4_dst", "ipv6_src", "ipv6_dst", "tcp_src", "vlan_vid"}
        | _ND_PREPARES,
        successors=frozenset({Stage.ND}),
        outputs=True,
        to_controller=True,
        tags=True,
    ),
    Stage.ND: Table(
        name="neighbour discovery",
        why="Fills the addresses into an advertisement and sends it back to the port of its "
        "solicitation: for the service's addresses to guests, for keys to tap-metadata.",
        matches=_ND | {"eth_type"},
        sets=frozenset({"eth_dst", "eth_src", "ipv6_dst", "ipv6_src", "ipv6_nd_tll"}),
        successors=frozenset(),
        outputs=True,
    ),
    Stage.SUBPORT: Table(
        name="subport",
        why="Receives the frames of tagged subports without their VLAN tag. A frame that still has "
        "a tag is dropped; all others go to tap-metadata, and first SYNs to the controller with "
        "their tag.",
        matches=frozenset({"vlan_vid", Register.TAG}),
        sets=frozenset({"vlan_vid"}),
        successors=frozenset(),
        outputs=True,
        to_controller=True,
        tags=True,
    ),
    Stage.SOURCE: Table(
        name="container source",
        why="Receives all frames of the containers' ports that dfmeta has made, except those for "
        "the service. A frame with the container's own addresses goes through the classification "
        "table again, with a mark; all others are dropped.",
        matches=_L2
        | _ND
        | {"eth_src", "ipv4_src", "ipv6_src"}
        | {"arp_op", "arp_sha"}
        | {"arp_spa", "arp_tpa"},
        sets=frozenset({Register.CHECKED}),
        successors=frozenset(),
        outputs=False,
        reclassifies=True,
    ),
}


_NEEDED: Final = True


class Purpose(enum.IntEnum):
    """All kinds of flows that dfmeta adds to a switch, each with its table and its priority.

    Cookies contain the values.
    """

    stage: Stage
    priority: Priority
    is_needed: bool
    """Whether no guest is served without the flows, or frames could go astray: their refusal is an
    error."""

    def __new__(cls, value: int, stage: Stage, priority: Priority, is_needed: bool = False) -> Self:
        purpose = int.__new__(cls, value)
        purpose._value_ = value
        purpose.stage, purpose.priority, purpose.is_needed = stage, priority, is_needed
        return purpose

    GUEST_HTTP = 1, Stage.CLASSIFY, Priority.HOOK
    """A guest's TCP to port 80 of the service, except SYNs → service table."""
    GUEST_ARP = 2, Stage.CLASSIFY, Priority.HOOK
    """A guest's ARP request for 169.254.169.254: answered on the port where it came in."""
    FROM_TAP = 3, Stage.CLASSIFY, Priority.HOOK, _NEEDED
    """All frames from tap-metadata → reply table."""
    SYN = 4, Stage.SERVICE, Priority.SYN
    """The first SYN of an address → controller."""
    ADDRESS = 5, Stage.SERVICE, Priority.ADDRESS
    """TCP of a known address → tap-metadata, with its key as source address."""
    SERVICE_DROP = 6, Stage.SERVICE, Priority.DROP, _NEEDED
    """Frames that are neither SYNs nor from a known address: dropped."""
    REPLY = 7, Stage.REPLY, Priority.ADDRESS
    """An answer to a key → the port of that key only."""
    KEY_ARP = 8, Stage.REPLY, Priority.ADDRESS
    """The host's ARP request for a key: answered with the guest's MAC."""
    REPLY_DROP = 9, Stage.REPLY, Priority.DROP, _NEEDED
    """All other frames from tap-metadata: dropped."""
    GUEST_SYN = 10, Stage.CLASSIFY, Priority.HOOK
    """A guest's SYN to port 80 of the service → service table."""
    GUEST_FRAGMENT = 11, Stage.CLASSIFY, Priority.HOOK
    """A fragment of a guest's TCP to the service: dropped."""
    PROBE = 12, Stage.REPLY, Priority.ADDRESS
    """An answer to the daemon's own SYN (:mod:`dfmeta.apps.probe`) → controller."""
    GUEST_ND = 13, Stage.CLASSIFY, Priority.HOOK
    """A guest's neighbour solicitation for an IPv6 address of the service → service table."""
    GUEST_DAD = 14, Stage.SERVICE, Priority.ADDRESS
    """A guest's duplicate address detection for an address of the service: dropped."""
    GUEST_ND_BARE = 15, Stage.SERVICE, Priority.SYN
    """A guest's solicitation without its MAC → controller."""
    GUEST_ND_ANSWER = 16, Stage.SERVICE, Priority.ANY
    """Any other solicitation of a guest for the service, as an advertisement → neighbour table."""
    KEY_ND_ANSWER = 17, Stage.REPLY, Priority.ADDRESS
    """The host's solicitation, as an advertisement → neighbour table."""
    SERVICE_ND = 18, Stage.ND, Priority.ADDRESS
    """An advertisement of an address of the service: back to the guest, with tap-metadata's MAC."""
    KEY_ND = 19, Stage.ND, Priority.ADDRESS
    """An advertisement of a key: back to tap-metadata, with the guest's MAC."""
    ND_DROP = 20, Stage.ND, Priority.DROP
    """An advertisement of any other address: dropped."""
    GUEST_NEXT_HOP = 21, Stage.CLASSIFY, Priority.HOOK
    """A guest's ARP request for a guest next hop: answered on the port where it came in."""
    SUBPORT_SYN = 22, Stage.SUBPORT, Priority.SYN
    """The first SYN of an address of a tagged subport → controller, with its VLAN tag."""
    SUBPORT_PROXY = 23, Stage.SUBPORT, Priority.ADDRESS
    """TCP of a known address of a tagged subport → tap-metadata, without a VLAN tag."""
    SUBPORT_DROP = 24, Stage.SUBPORT, Priority.DROP
    """A frame of a tagged subport that has a further VLAN tag: dropped."""
    GUEST_SOURCE = 25, Stage.CLASSIFY, Priority.BELOW_HOOK
    """A container's frame whose source was not checked → source table."""
    SOURCE_OWN = 26, Stage.SOURCE, Priority.ADDRESS
    """A frame with its container's own addresses → the other flows of the bridge."""
    SOURCE_OWN6 = 27, Stage.SOURCE, Priority.ANY
    """IPv6 with an interface id of its container's MAC → the other flows of the bridge."""
    SOURCE_ROUTER_DROP = 28, Stage.SOURCE, Priority.SYN
    """An advertisement of a router or of another's address, or a redirect: dropped."""
    SOURCE_DROP = 29, Stage.SOURCE, Priority.DROP
    """A container's frame with other addresses: dropped."""

    # The flows of the second bridge.
    META_FROM_PATCH = 65, Stage.META_CLASSIFY, Priority.HOOK, _NEEDED
    """TCP from the integration bridge → source table."""
    META_FROM_TAP = 66, Stage.META_CLASSIFY, Priority.HOOK, _NEEDED
    """The host's untagged TCP → reply table, with the VLAN tag of ``provider_vlan_id``."""
    META_FROM_TAP_ARP = 67, Stage.META_CLASSIFY, Priority.HOOK
    """The host's ARP requests → neighbour table."""
    META_FROM_TAP_ND = 68, Stage.META_CLASSIFY, Priority.HOOK
    """The host's solicitations, as advertisements → neighbour table."""
    META_OTHER_DROP = 69, Stage.META_CLASSIFY, Priority.BELOW_HOOK, _NEEDED
    """All other frames from the two ports: dropped."""
    META_SOURCE = 70, Stage.META_SOURCE, Priority.ADDRESS
    """TCP with a Meta MAC → proxy table, with that number's Meta IP as the source address."""
    META_SOURCE_DROP = 71, Stage.META_SOURCE, Priority.DROP, _NEEDED
    """TCP without a Meta MAC in use: dropped."""
    META_TO_PROXY = 72, Stage.META_PROXY, Priority.ADDRESS, _NEEDED
    """TCP to port 80 of the service → tap-meta, to the proxy's listener."""
    META_PROXY_DROP = 73, Stage.META_PROXY, Priority.DROP, _NEEDED
    """All other TCP from guests: dropped."""
    META_KEY_ARP = 74, Stage.META_NEIGHBOURS, Priority.ADDRESS
    """The host's ARP request for a Meta IP: answered with the Meta MAC."""
    META_KEY_ND = 75, Stage.META_NEIGHBOURS, Priority.ADDRESS
    """An advertisement of a Meta IP: back to tap-meta, with the Meta MAC."""
    META_NEIGHBOURS_DROP = 76, Stage.META_NEIGHBOURS, Priority.DROP
    """A request for any other address: dropped."""
    META_REPLY = 77, Stage.META_REPLY, Priority.ADDRESS
    """An answer to a Meta IP → integration bridge, to its Meta MAC."""
    META_REPLY_DROP = 78, Stage.META_REPLY, Priority.DROP, _NEEDED
    """All other TCP of the host: dropped."""

    @property
    def is_meta(self) -> bool:
        """Whether the flows are on the second bridge of ``identity_scheme = meta_ip``."""
        return self.stage >= Stage.META_CLASSIFY

    @property
    def is_shared(self) -> bool:
        """Whether the flows are in a table that other programs use as well.

        The switch reports each removal there.
        """
        return self.stage in (Stage.CLASSIFY, Stage.META_CLASSIFY)


RATES: Mapping[Purpose, int] = {Purpose.SYN: 50, Purpose.GUEST_SYN: 1000}
"""Purpose → packets per second that one endpoint may send on average: above it, the endpoint floods
(:mod:`dfmeta.apps.floods`). An address needs one first SYN; cloud-init opens about thirty
connections. A host's conntrack keeps connections for two minutes: at 1,000 per second one guest
uses less than half of the 262,144 that Linux allows by default on a host with more than 4 GB of
memory."""
RATE_OF_VM: Final = 4 * RATES[Purpose.SYN]
"""First packets per second of one VM with all its containers: many of them may start at a time."""

_VERSIONS_DST = frozenset({"ipv4_dst", "ipv6_dst"})
_META_TCP = frozenset({"eth_type", "ip_proto"})
META_TABLES: Mapping[Stage, Table] = {
    Stage.META_CLASSIFY: Table(
        number=0,
        name="meta classification",
        why="Separates the frames of the patch and of tap-meta from those of other ports, which "
        "other programs may have on the bridge.",
        matches=_META_TCP | {"in_port", "vlan_vid", "arp_op", "icmpv6_type", "icmpv6_code"},
        sets=_ND_PREPARES | {"vlan_vid"},
        successors=frozenset({Stage.META_SOURCE, Stage.META_NEIGHBOURS, Stage.META_REPLY}),
        outputs=False,
        tags=True,
    ),
    Stage.META_SOURCE: Table(
        number=80,
        name="meta source",
        why="Turns a Meta MAC, which the integration bridge has set for one address of a guest, "
        "into the Meta IP of the same number.",
        matches=_META_TCP | {"eth_src"},
        sets=frozenset({"ipv4_src", "ipv6_src"}),
        successors=frozenset({Stage.META_PROXY}),
        outputs=False,
    ),
    Stage.META_PROXY: Table(
        number=87,
        name="meta proxy",
        why="Sends TCP to the service to the proxy's listener on tap-meta.",
        matches=_META_TCP | _VERSIONS_DST | {"tcp_dst"},
        sets=_VERSIONS_DST | {"eth_dst", "tcp_dst"},
        successors=frozenset(),
        outputs=True,
    ),
    Stage.META_NEIGHBOURS: Table(
        number=90,
        name="meta neighbours",
        why="Answers the host's requests for the MAC of a Meta IP. The host needs them only if it "
        "has another route to Meta IPs than dfmeta's.",
        matches=_ND | {"eth_type", "arp_op", "arp_tpa"},
        sets=_ARP_SETS | {"ipv6_dst", "ipv6_src", "ipv6_nd_tll"},
        successors=frozenset(),
        outputs=True,
    ),
    Stage.META_REPLY: Table(
        number=91,
        name="meta reply",
        why="Sends an answer to a Meta IP over the patch, with the Meta MAC of the same number as "
        "its destination and the address of the service as its source.",
        matches=_META_TCP | _VERSIONS_DST | {"ipv4_src", "ipv6_src", "tcp_src", "vlan_vid"},
        sets=frozenset({"eth_dst", "ipv4_src", "ipv6_src", "tcp_src"}),
        successors=frozenset(),
        outputs=True,
        tags=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The tables of one bridge."""

    tables: Mapping[Stage, Table]
    removal_rank: Mapping[Purpose, int] = field(default_factory=dict)
    """Purpose → its place in the order of removals; all others come last."""
    shows_numbers: bool = False
    """Whether a number that no flow of this bridge has is on no bridge: its flows lead there."""

    @property
    def purposes(self) -> tuple[Purpose, ...]:
        """All kinds of flows of the bridge."""
        return tuple(purpose for purpose in Purpose if purpose.stage in self.tables)


BR_INT: Final = Pipeline(
    TABLES,
    # A path to the proxy is removed before its return path.
    removal_rank={
        Purpose.GUEST_SYN: 0,
        Purpose.GUEST_HTTP: 0,
        Purpose.GUEST_FRAGMENT: 0,
        Purpose.GUEST_ARP: 0,
        Purpose.GUEST_NEXT_HOP: 0,
        Purpose.GUEST_ND: 0,
        Purpose.SYN: 1,
        Purpose.GUEST_ND_BARE: 1,
        Purpose.ADDRESS: 1,
    },
    shows_numbers=True,
)
"""The pipeline of the bridge with the guests' ports."""
TABLES_TAKEN = len(TABLES) - 1
"""Number of tables, from ``table_base`` up, that dfmeta uses."""
BR_META: Final = Pipeline(META_TABLES)
"""The pipeline of the second bridge of ``identity_scheme = meta_ip``. The numbers of its tables are
those of specification 001, "Metadata data pipelines"."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Maps the names of the declaration to the numbers on the switch."""

    table_base: int = 200
    classification_table: int = 0
    hook_priority: int = 300
    pipeline: Pipeline = field(default=BR_INT, repr=False)

    def number(self, stage: Stage) -> int:
        """Return the table number of *stage* on the switch."""
        number = self.pipeline.tables[stage].number
        if number is not None:
            return number
        if stage is Stage.CLASSIFY:
            return self.classification_table
        return self.table_base + stage - Stage.SERVICE

    def table(self, purpose: Purpose) -> int:
        """Return the table number on the switch for flows of *purpose*."""
        return self.number(purpose.stage)

    def numbers(self) -> list[int]:
        """Return the table numbers of all stages."""
        return sorted({self.number(stage) for stage in self.pipeline.tables})

    def stage(self, number: int) -> Stage | None:
        """Return the stage with that table number, or None when the table is not ours."""
        stages = self.pipeline.tables
        return next((stage for stage in stages if self.number(stage) == number), None)

    def priority(self, purpose: Purpose) -> int:
        """Return the priority on the switch for flows of *purpose*."""
        priority = purpose.priority
        if priority is Priority.HOOK:
            return self.hook_priority
        return self.hook_priority - 1 if priority is Priority.BELOW_HOOK else int(priority.value)

    def purpose(self, cookie: int) -> Purpose | None:
        """Return the purpose in a cookie, as :func:`purpose_of`; None for one of another bridge."""
        purpose = purpose_of(cookie)
        return purpose if purpose is not None and purpose.stage in self.pipeline.tables else None


_ALL_TABLES: Final = {**TABLES, **META_TABLES}


def table_of(stage: Stage) -> Table:
    """Return the table of *stage*, of either bridge."""
    return _ALL_TABLES[stage]


def cookie_of(purpose: Purpose) -> int:
    """Return the 64-bit cookie of flows of *purpose*."""
    return COOKIE_PREFIX | COOKIE_VERSION << 24 | purpose.stage << 16 | purpose


_OF_COOKIE: Mapping[int, Purpose] = {cookie_of(purpose): purpose for purpose in Purpose}


def purpose_of(cookie: int) -> Purpose | None:
    """Return the purpose in a cookie; None when it is not ours or has another version."""
    return _OF_COOKIE.get(cookie)


def present(cookie: int) -> int:
    """Return *cookie*, a cookie of ours of any version, with the present version."""
    return cookie & ~(0xFF << 24) | COOKIE_VERSION << 24


def is_ours(cookie: int) -> bool:
    """Return whether a flow with that cookie is dfmeta's, of any version."""
    return cookie & COOKIE_PREFIX_MASK == COOKIE_PREFIX
