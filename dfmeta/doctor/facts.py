"""The facts that the probes gather, as values.

Trust: all facts come from the host itself (OVSDB, the switch, the kernel) and are as trustworthy as
its operator, except a guest's addresses in ``Seen`` flows, which the guest chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from typing import Final

from dfmeta.doctor.port_down import Cut
from dfmeta.flows.family import IPV4, Family
from dfmeta.flows.flow import Flow, Value
from dfmeta.flows.pipeline import BR_META, Layout
from dfmeta.identity.key import IN_PORT, Keys
from dfmeta.model import (
    WIRED,
    Binding,
    Endpoint,
    GuestAddress,
    MetaNames,
    NextHop,
    Port,
    PortKind,
    PortState,
)


@dataclass(frozen=True, slots=True)
class MetaSide:
    """The second bridge that the configuration asks for: ``identity_scheme = meta_ip``."""

    names: MetaNames
    vlan: int
    """VLAN id of answers on that bridge."""
    socket: str
    """Path of its management socket."""
    layout: Layout = field(default_factory=lambda: Layout(pipeline=BR_META))


@dataclass(frozen=True, slots=True)
class Settings:
    """The state of the host that the configuration asks for."""

    bridge: str
    tap: str
    ip: str
    """Metadata address, which guests connect to."""
    host_ip: str
    """Address of the proxy's listener."""
    port: int | None
    """TCP port of the listener; None: the option is 0, and no daemon has stored its port yet."""
    listener: int
    """Inode of the socket that the daemon listens on, or has left open; 0 if it is not known."""
    route_table: int
    layout: Layout
    ovsdb: str
    socket: str
    """Path of the bridge's management socket."""
    admin: str
    state_path: str
    sources: tuple[str, ...] = ("ovsdb",)
    """The option identity_sources, in its order."""
    family: Family = IPV4
    """Address family of ``ip`` and ``host_ip``."""
    ip6: tuple[str, ...] = ()
    """Metadata addresses of IPv6; empty: IPv4 only."""
    host_ip6: str = ""
    """Address of the proxy's listener for IPv6."""
    listener6: int = 0
    """Inode of the daemon's socket for IPv6, as ``listener``."""
    keys: Keys = IN_PORT
    """The key scheme."""
    meta: MetaSide | None = None
    """The second bridge; None: the identity scheme has none."""
    needs_project: bool = False
    """Whether the backend answers only guests whose project is known (Nova)."""
    host_service: bool = False
    """Whether a server answered the host itself at ``ip`` before dfmeta took the address."""

    @property
    def home(self) -> str:
        """The bridge with tap-metadata."""
        return self.meta.names.bridge if self.meta is not None else self.bridge

    @property
    def network(self) -> IPv4Network | IPv6Network | None:
        """Network of all keys of the family if the main table has a route to it; else None."""
        return self.keys.network(self.family.version) if self.meta is not None else None

    @property
    def sides(self) -> dict[str, tuple[str, Layout]]:
        """Bridge with flows of dfmeta → its management socket and its layout."""
        found = {self.bridge: (self.socket, self.layout)}
        if self.meta is not None:
            found[self.meta.names.bridge] = self.meta.socket, self.meta.layout
        return found

    def over(self, family: Family) -> Settings:
        """Return the settings for one version of IP: addresses and listener are of *family*.

        Call it on settings of IPv4, as they are read.
        """
        if family.version == self.family.version:
            return self
        return replace(
            self,
            family=family,
            ip=next(iter(self.ip6), ""),
            host_ip=self.host_ip6,
            listener=self.listener6,
        )


@dataclass(frozen=True, slots=True)
class Controller:
    """A row of OVSDB's table Controller."""

    target: str
    connected: bool


@dataclass(frozen=True, slots=True)
class Bridge:
    """A row of OVSDB's table Bridge."""

    name: str
    datapath_type: str = ""
    protocols: tuple[str, ...] = ()
    """Empty: Open vSwitch's default, which includes OpenFlow 1.3."""
    fail_mode: str = ""
    external_ids: Mapping[str, str] = field(default_factory=dict)
    controllers: tuple[Controller, ...] = ()


@dataclass(frozen=True, slots=True)
class Interface:
    """A row of OVSDB's table Interface, with the VLAN columns of its Port."""

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
    """Driver of its device, by the kernel's name; empty: it has no device, or no known driver."""
    listed_vids: tuple[int, ...] = ()
    """VLAN ids of the valid entries of its list of subports."""
    mtu: int = 0
    """MTU of its device in bytes; 0: not known, as for a patch port."""
    ports: tuple[Port, ...] = ()
    """The guests' ports on this interface; empty if it is not a guest's."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Open vSwitch's configuration at one moment."""

    bridges: tuple[Bridge, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    external_ids: Mapping[str, str] = field(default_factory=dict)
    """That column of the one row of OVSDB's table Open_vSwitch."""
    other_config: Mapping[str, str] = field(default_factory=dict)
    """The same of this column."""

    def bridge(self, name: str) -> Bridge | None:
        """Return the bridge *name*; None if it does not exist."""
        return next((one for one in self.bridges if one.name == name), None)

    def interface(self, name: str, bridge: str) -> Interface | None:
        """Return the interface *name* on *bridge*; None if it does not exist."""
        found = (one for one in self.interfaces if (one.name, one.bridge) == (name, bridge))
        return next(found, None)


@dataclass(frozen=True, slots=True)
class GuestFailure:
    """The failure of a guest's requests, as the daemon reports it."""

    status: int | None
    """Status of the answers; None: the connections were closed without an answer."""
    brief: str
    """The cause in a few words, written by dfmeta."""
    remedy: str
    since: datetime
    times: int


@dataclass(frozen=True, slots=True)
class KnownPort:
    """A guest's port with its addresses, from the running daemon, or from OVSDB if none runs."""

    name: str
    ofport: int | None
    state: PortState
    instance: str = ""
    iface_id: str = ""
    mac: str = ""
    fault: str = ""
    project: str = ""
    instance_name: str = ""
    """Name that its owner chose; empty if the port comes from OVSDB, which does not have names."""
    record_names: tuple[str, ...] = ()
    """Name and host name in its record; empty if it has none, or they were not asked for."""
    addresses: Mapping[int, GuestAddress] = field(default_factory=dict)
    """Slot, as in :mod:`dfmeta.identity.key` → address; empty if the port comes from OVSDB, which
    does not have addresses."""
    cut: Cut | None = None
    """Why the switch cuts it off; None: it does not, or the switch was not queried."""
    asked: bool = False
    """Whether its guest has asked for metadata since the daemon's start."""
    failure: GuestFailure | None = None
    """How its guest's requests fail now; None: they do not fail."""
    vid: int = 0
    """VLAN id, as in :attr:`~dfmeta.model.Endpoint.vid`."""
    key: str = ""
    """First key, from the running daemon; empty if it has none, or the port comes from OVSDB."""
    label: str = ""
    """Meta MAC of that key; empty where keys have none."""
    next_hops: tuple[NextHop, ...] | None = ()
    """The guest next hops that have flows; None: Neutron has not been asked for them yet."""
    next_hop_faults: tuple[str, ...] = ()
    """The guest next hops that are left out, each with its cause."""
    key6: str = ""
    """First key of IPv6, as ``key``."""
    kind: PortKind = PortKind.PORT
    segmentation_id: int = 0
    """VLAN id of a subport on its trunk, as in :attr:`~dfmeta.model.Port.segmentation_id`."""
    parent: str = ""
    """Name of the port of a subport's parent; empty: not a subport, or not known."""
    subport_faults: tuple[str, ...] = ()
    """The entries of its list of subports that do not count, each with its cause."""
    binding: Binding | None = None
    """The source addresses that its frames have to have; None: any."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its instance, that of its owner first, without empty ones."""
        return tuple(dict.fromkeys(filter(None, (self.instance_name, *self.record_names))))

    @property
    def endpoint(self) -> Endpoint:
        """Its endpoint; with ofport 0, which no port has, while it has no port number."""
        return Endpoint(self.ofport or 0, self.vid)

    @property
    def wired(self) -> bool:
        """Whether the switch has to have flows for this port."""
        return self.ofport is not None and self.state in WIRED


@dataclass(frozen=True, slots=True)
class Seen:
    """A flow on the switch that carries dfmeta's cookie."""

    flow: Flow | None
    """None if its table, its priority or its cookie is not one of dfmeta's current flows."""
    table: int
    priority: int
    cookie: int
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Foreign:
    """A flow of another program in the classification table."""

    cookie: int
    priority: int
    match: Mapping[str, Value]
    actions: str
    table: int = 0
    hands_on: bool = False
    """Whether it resubmits to the classification table, so that dfmeta's hook follows it."""


@dataclass(frozen=True, slots=True)
class RuleFact:
    """One of dfmeta's two routing rules."""

    selector: str
    """As ip-rule(8) writes it: ``from 169.254.169.254`` or ``oif tap-metadata``."""
    priority: int
    """The present one, or that of a missing rule."""
    there: bool


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket."""

    address: IPv4Address | IPv6Address
    port: int
    inode: int
    """Inode number, which identifies the socket (sock_diag(7))."""


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """Limits of the host that all guests share."""

    somaxconn: int = 4096
    """Maximum length of a listener's queue, in connections."""
    syncookies: int = 1
    """0: never; 1: when the queue is full; 2: always (Linux, ip-sysctl)."""
    neighbours: int = 0
    """Number of entries in the IPv4 neighbour table."""
    neighbours_max: int | None = None
    """gc_thresh3; None if it cannot be read in this network namespace."""
    local_ports: int = 28232
    """Number of TCP ports for the host's outgoing connections (ip_local_port_range)."""


CONNTRACK_KEEPS: Final = 120
"""Linux' default of nf_conntrack_tcp_timeout_time_wait, in seconds (nf_conntrack-sysctl)."""


@dataclass(frozen=True, slots=True)
class ConntrackFacts:
    """The kernel's table of tracked connections, in the daemon's network namespace."""

    room: int | None = None
    """nf_conntrack_max; None: the kernel tracks no connections; 0: there is no limit."""
    count: int = 0
    guests: int | None = None
    """Number of entries for connections to the proxy, with those of the daemon's own probe; None:
    the kernel does not list its entries, or the proxy's port is not known."""
    kept: int = CONNTRACK_KEEPS
    """Seconds that the kernel keeps the entry of a connection that has ended."""
    dropped: int = 0
    """Packets of new connections dropped because the table was full, since the network namespace
    was made."""
    evicted: int = 0
    """Entries of unanswered connections evicted because the table was full, since then."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The kernel's side of the packet path, for one version of IP."""

    up: bool | None
    """Whether tap-metadata's device is up; None if there is no such device."""
    carrier: bool = True
    """Whether ovs-vswitchd holds the device's other end."""
    addresses: tuple[tuple[str, IPv4Interface | IPv6Interface], ...] = ()
    """Device and address, for every address of every device."""
    rules: tuple[RuleFact, ...] = ()
    contender: str = ""
    """Rule of another program that comes before dfmeta's and may match packets to guests, as
    ``ip rule show`` has it; empty: there is none."""
    route: bool = False
    """Whether the route table has a default route by the next hop through tap-metadata."""
    neighbour: bool = False
    """Whether the neighbour table has a permanent entry with the next hop's MAC."""
    way_back: str = ""
    """Device by which the kernel sends from the proxy's address to a guest's key, or the kernel's
    error."""
    rp_filter: tuple[int, int] = (0, 0)
    """Values of ``all`` and of tap-metadata; the larger one applies (Linux, ip-sysctl)."""
    arp_ignore: int = 0
    """Value of ``all``, which applies to every network interface."""
    tx_checksum: bool | None = None
    """Whether the kernel leaves checksums to the device; None if that is not known."""
    listeners: tuple[Listener, ...] = ()
    limits: LimitFacts = field(default_factory=LimitFacts)
