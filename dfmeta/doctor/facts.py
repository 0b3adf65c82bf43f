"""The facts that the probes gather, as values.

Trust: all facts come from the host itself (OVSDB, the switch, the kernel) and are as trustworthy as
its operator, except a guest's addresses in ``Seen`` flows, which the guest chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING

from dfmeta import model
from dfmeta.flows.pipeline import BR_META, Layout
from dfmeta.identity.key import IN_PORT, Keys

if TYPE_CHECKING:
    # The commands read facts without os-ken.
    from dfmeta.flows.family import Family
    from dfmeta.flows.port_down import Cut


@dataclass(frozen=True, slots=True)
class MetaSide:
    """The second bridge that the configuration asks for: ``identity_scheme = meta_ip``."""

    names: model.MetaNames
    vlan: int
    """VLAN id of answers on that bridge."""
    socket: str
    """Path of its management socket."""
    layout: Layout = field(default_factory=lambda: Layout(pipeline=BR_META))


@dataclass(frozen=True, slots=True)
class HostSettings:
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
    version: int = 4
    """IP version of ``ip`` and ``host_ip``, 4 or 6."""
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
        return self.keys.network(self.version) if self.meta is not None else None

    @property
    def sides(self) -> dict[str, tuple[str, Layout]]:
        """Bridge with flows of dfmeta → its management socket and its layout."""
        sides = {self.bridge: (self.socket, self.layout)}
        if self.meta is not None:
            sides[self.meta.names.bridge] = self.meta.socket, self.meta.layout
        return sides

    def over(self, family: Family) -> HostSettings:
        """Return the settings for one version of IP: addresses and listener are of *family*.

        Call it on settings of IPv4, as they are read.
        """
        if family.version == self.version:
            return self
        return replace(
            self,
            version=family.version,
            ip=next(iter(self.ip6), ""),
            host_ip=self.host_ip6,
            listener=self.listener6,
        )


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
    state: model.PortState
    instance: str = ""
    iface_id: str = ""
    mac: str = ""
    fault: str = ""
    project: str = ""
    instance_name: str = ""
    """Name that its owner chose; empty if the port comes from OVSDB, which does not have names."""
    record_names: tuple[str, ...] = ()
    """Name and host name in its record; empty if it has none, or they were not asked for."""
    addresses: Mapping[int, model.GuestAddress] = field(default_factory=dict)
    """Slot, as in :mod:`dfmeta.identity.key` → address; empty if the port comes from OVSDB, which
    does not have addresses."""
    cut: Cut | None = None
    """Why the switch cuts it off; None: it does not, or the switch was not queried."""
    requested: bool = False
    """Whether its guest has asked for metadata since the daemon's start."""
    failure: GuestFailure | None = None
    """How its guest's requests fail now; None: they do not fail."""
    vid: int = 0
    """VLAN id, as in :attr:`~dfmeta.model.Endpoint.vid`."""
    key: str = ""
    """First key, from the running daemon; empty if it has none, or the port comes from OVSDB."""
    label: str = ""
    """Meta MAC of that key; empty where keys have none."""
    next_hops: tuple[model.NextHop, ...] | None = ()
    """The guest next hops that have flows; None: Neutron has not been asked for them yet."""
    next_hop_faults: tuple[str, ...] = ()
    """The guest next hops that are left out, each with its cause."""
    key6: str = ""
    """First key of IPv6, as ``key``."""
    kind: model.PortKind = model.PortKind.PORT
    segmentation_id: int = 0
    """VLAN id of a subport on its trunk, as in :attr:`~dfmeta.model.Port.segmentation_id`."""
    parent: str = ""
    """Name of the port of a subport's parent; empty: not a subport, or not known."""
    subport_faults: tuple[str, ...] = ()
    """The entries of its list of subports that do not count, each with its cause."""
    binding: model.Binding | None = None
    """The source addresses that its frames have to have; None: any."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its instance, that of its owner first, without empty ones."""
        return tuple(dict.fromkeys(filter(None, (self.instance_name, *self.record_names))))

    @property
    def endpoint(self) -> model.Endpoint:
        """Its endpoint; with ofport 0, which no port has, while it has no port number."""
        return model.Endpoint(self.ofport or 0, self.vid)

    @property
    def wired(self) -> bool:
        """Whether the switch has to have flows for this port."""
        return self.ofport is not None and self.state in model.WIRED


@dataclass(frozen=True, slots=True)
class PathFacts:
    """Result of the daemon's probe: a SYN that it sends through the switch to tap-metadata."""

    sent: bool = True
    """Whether the daemon sent a SYN; if not, ``cause`` says why."""
    answered: bool = False
    cause: str = ""
    seconds: float = 0.0
    whole: bool = True
    """Whether the answer's TCP checksum was right."""
    ip6: PathFacts | None = None
    """Result of the probe over IPv6; None if guests are served over IPv4 only."""

    def because(self, cause: str) -> PathFacts:
        """Return the result of a probe that shows nothing about the host, with the cause."""
        six = None if self.ip6 is None else self.ip6.because(cause)
        return replace(self, sent=False, cause=cause, ip6=six)

    def over(self, version: int) -> PathFacts:
        """Return the result for one version of IP."""
        if version == 4:
            return self
        return self.ip6 or PathFacts(sent=False, cause="guests are served over IPv4 only")
