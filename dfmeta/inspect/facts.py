"""What the probes find, as values.

Trust: all of it was read from the host itself (OVSDB, the switch, the kernel) and is the
operator's word, save a guest's addresses in ``Seen`` flows, which are the guest's claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Address, IPv4Interface
from typing import Final

from dfmeta.flows.family import IPV4, Family
from dfmeta.flows.flow import Flow, Value
from dfmeta.flows.pipeline import Layout
from dfmeta.inspect.cuts import Cut
from dfmeta.model import WIRED, Endpoint, GuestAddress, Port, PortState


@dataclass(frozen=True, slots=True)
class Settings:
    """How the configuration wants the host to be."""

    bridge: str
    tap: str
    ip: str
    """Address that guests ask."""
    host_ip: str
    """Address of the proxy's listener."""
    port: int | None
    """TCP port of the listener; None when it is a free one that nobody has remembered."""
    listener: int
    """Inode of the socket that the daemon listens on, or has left open; 0 when it is not known."""
    route_table: int
    layout: Layout
    ovsdb: str
    socket: str
    """Path of the bridge's management socket."""
    admin: str
    state_path: str
    sources: tuple[str, ...] = ("ovsdb",)
    """identity_sources, in their order."""
    family: Family = IPV4
    """Of ``ip`` and ``host_ip``."""
    needs_project: bool = False
    """The backend answers nobody whose project is not known (Nova)."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """A row of OVSDB's Bridge."""

    name: str
    datapath_type: str = ""
    protocols: tuple[str, ...] = ()
    """Empty: Open vSwitch's default, OpenFlow 1.3 among them."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A row of OVSDB's Interface with what its Port says."""

    name: str
    bridge: str
    type: str = ""
    ofport: int | None = None
    external_ids: Mapping[str, str] = field(default_factory=dict)
    mac_in_use: str = ""
    error: str = ""
    tag: int | None = None
    vlan_mode: str = ""
    cvlans: tuple[int, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    driver: str = ""
    """Of its device, as the kernel calls it; empty: there is none, or it does not say."""
    ports: tuple[Port, ...] = ()
    """The guests' ports that it has; empty when it is not a guest's."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Open vSwitch's configuration at one moment."""

    bridges: tuple[Bridge, ...] = ()
    interfaces: tuple[Interface, ...] = ()

    def bridge(self, name: str) -> Bridge | None:
        """The bridge called *name*."""
        return next((one for one in self.bridges if one.name == name), None)

    def interface(self, name: str, bridge: str) -> Interface | None:
        """The interface called *name* on *bridge*."""
        found = (one for one in self.interfaces if (one.name, one.bridge) == (name, bridge))
        return next(found, None)


@dataclass(frozen=True, slots=True)
class GuestFailure:
    """How a guest fails, as the daemon says it."""

    status: int | None
    """None: its requests were closed without an answer."""
    brief: str
    """Why, in a few words of dfmeta's."""
    remedy: str
    since: datetime
    times: int


@dataclass(frozen=True, slots=True)
class KnownPort:
    """A guest's port with its addresses, from the running daemon or else from OVSDB."""

    name: str
    ofport: int | None
    state: PortState
    instance: str = ""
    iface_id: str = ""
    mac: str = ""
    fault: str = ""
    project: str = ""
    instance_name: str = ""
    """Its owner chose it; empty when the port comes from OVSDB, which does not know it."""
    addresses: Mapping[int, GuestAddress] = field(default_factory=dict)
    """Slot → address; empty when they come from OVSDB, which does not know them."""
    cut: Cut | None = None
    """What cuts it off, as the switch itself has said; None: nothing, or it was not asked."""
    asked: bool = False
    """Its guest has asked since the daemon's start."""
    failure: GuestFailure | None = None
    """How its guest fails now; None: it does not."""
    vid: int = 0
    """As :attr:`~dfmeta.model.Endpoint.vid`."""

    @property
    def endpoint(self) -> Endpoint:
        """Its place on the switch; ofport 0, which no port has, while it has none."""
        return Endpoint(self.ofport or 0, self.vid)

    @property
    def wired(self) -> bool:
        """Whether flows of it ought to be on the switch."""
        return self.ofport is not None and self.state in WIRED


@dataclass(frozen=True, slots=True)
class Seen:
    """A flow on the switch that carries dfmeta's cookie."""

    flow: Flow | None
    """None when its place or its cookie is not one of today's declaration."""
    table: int
    priority: int
    cookie: int
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Foreign:
    """Somebody else's flow in the classification table."""

    cookie: int
    priority: int
    match: Mapping[str, Value]
    actions: str
    hands_on: bool = False
    """It resubmits to the classification table, so that our hook comes after it."""


@dataclass(frozen=True, slots=True)
class MeterFact:
    """A meter on the switch, anybody's."""

    number: int
    rate: int
    """Packets a second; 0 for one of another form than ours."""
    dropped: int
    """Packets, since it was made."""
    flows: int
    """Flows that use it, anybody's."""


@dataclass(frozen=True, slots=True)
class RuleFact:
    """One of dfmeta's two routing rules."""

    selector: str
    """As ip-rule(8) writes it: ``from 169.254.169.254`` or ``oif tap-metadata``."""
    priority: int
    there: bool


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket."""

    address: IPv4Address
    port: int
    inode: int
    """What tells it from any other socket (sock_diag(7))."""


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """Limits of the host that all guests share."""

    somaxconn: int = 4096
    """Connections that a listener's queue may hold at most."""
    syncookies: int = 1
    """0: never; 1: when the queue is full; 2: always (Linux, ip-sysctl)."""
    neighbours: int = 0
    """Entries of the neighbour table, of IPv4."""
    neighbours_max: int | None = None
    """gc_thresh3; None where this network namespace is not told it."""
    local_ports: int = 28232
    """TCP ports that connections of the host's own may begin at (ip_local_port_range)."""


CONNTRACK_KEEPS: Final = 120
"""Linux' default of nf_conntrack_tcp_timeout_time_wait, in seconds (nf_conntrack-sysctl)."""


@dataclass(frozen=True, slots=True)
class ConntrackFacts:
    """The kernel's table of tracked connections, in the daemon's network namespace."""

    room: int | None = None
    """nf_conntrack_max; None where the kernel tracks no connections, 0 where it sets no limit."""
    count: int = 0
    guests: int | None = None
    """Entries of connections to the proxy, those of the daemon's own probe among them; None where
    the kernel does not list its entries."""
    kept: int = CONNTRACK_KEEPS
    """Seconds that it keeps a connection that has ended."""
    dropped: int = 0
    """Packets of new connections that it has ever dropped because the table was full."""
    evicted: int = 0
    """Entries of unanswered connections that have ever given way because the table was full."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The kernel's side of the packet path."""

    up: bool | None
    """Whether tap-metadata's device is up; None when there is no such device."""
    carrier: bool = True
    """Whether ovs-vswitchd holds the device's other end."""
    addresses: tuple[tuple[str, IPv4Interface], ...] = ()
    """Device and address, for every device."""
    rules: tuple[RuleFact, ...] = ()
    route: bool = False
    """A default route through tap-metadata, by the next hop, stands in the route table."""
    neighbour: bool = False
    """The next hop's MAC stands in the neighbour table, for good."""
    way_back: str = ""
    """Device by which the kernel sends from the proxy's address to a guest's key; else its word."""
    rp_filter: tuple[int, int] = (0, 0)
    """``all`` and tap-metadata's own; the larger one counts (Linux, ip-sysctl)."""
    arp_ignore: int = 0
    """Of ``all``: it counts for every card."""
    tx_checksum: bool | None = None
    """Whether the kernel leaves checksums to the device; None when it does not say."""
    listeners: tuple[Listener, ...] = ()
    limits: LimitFacts = field(default_factory=LimitFacts)
