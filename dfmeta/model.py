"""The values that dfmeta's parts hand to each other. No I/O, no third-party imports.

Trust: what :class:`Port` says comes from the host (OVSDB, libvirt, the store) and is the operator's
word, save for an instance that is ``claimed``. :class:`GuestAddress` and :class:`GuestRequest`
come from a guest and are claims; nothing decides who a guest is but the :class:`Endpoint` that its
frames came in on.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

OFPORT_MAX = 0xFEFF
"""Highest number that OpenFlow gives to an ordinary port (OFPP_MAX is 0xff00, exclusive)."""


class PortVlan(NamedTuple):
    """The VLAN columns of a port (ovs-vswitchd.conf.db(5), table Port)."""

    tag: int
    vlan_mode: str
    cvlans: tuple[int, ...]


TAP_VLAN = PortVlan(tag=4095, vlan_mode="dot1q-tunnel", cvlans=(1,))
"""Of tap-metadata: NORMAL floods no frame to a port in that VLAN, and explicit output ignores it.
Neutron's dead ports share VLAN 4095 alone; the inner VLAN keeps their frames out."""
TAP_MARK = ("dfmeta", "tap")
"""Key and value in ``external_ids`` of tap-metadata's Interface row: dfmeta has made the port."""
TAP_MAC = "02:64:66:6d:65:fe"
"""Of tap-metadata: the same on every host, so that a guest that migrates keeps a valid neighbour
entry."""


class PortState(enum.StrEnum):
    """Whether a port is served, and if not, why."""

    SERVED = "served"
    NO_INSTANCE = "no instance"
    """A VIF without an instance: its SYNs are held until one is known."""
    NO_OFPORT = "no ofport"
    """Open vSwitch has not given it a number, or could not."""
    DEAD = "dead"
    """Switched off by its owner: ``tag`` 4095 without ``vlan_mode`` trunk."""
    BROKEN = "broken"
    """Its columns hold something that cannot be a guest's port; ``Port.fault`` says what."""
    TRUNK = "trunk"
    """A patch port to the bridge of a Neutron trunk: no guest behind it is served."""
    NO_PROJECT = "no project"
    """It has flows, and the backend (Nova) answers no guest whose project is not known."""
    CUT_OFF = "cut off"
    """It has flows, and the switch or its device lets none of its frames through."""
    NO_CONNECTION = "no connection"
    """It has flows, its SYNs reach the switch, and no connection reaches the proxy."""


WIRED = frozenset(
    {
        PortState.SERVED,
        PortState.NO_INSTANCE,
        PortState.NO_PROJECT,
        PortState.CUT_OFF,
        PortState.NO_CONNECTION,
    }
)
"""States of ports that have flows on the switch."""
OBSERVED = (PortState.CUT_OFF, PortState.NO_PROJECT, PortState.NO_CONNECTION)
"""States of a port that are seen from outside (:mod:`dfmeta.conditions`): :attr:`Port.state` is
:attr:`PortState.SERVED` in each of them. The first that applies is shown."""


class Endpoint(NamedTuple):
    """Where a guest's frames enter the bridge: the only thing that identifies it.

    A tuple, since each request looks it up a dozen times.
    """

    ofport: int
    vid: int = 0
    """VLAN id of a nested container behind the port; 0 is the untagged port itself."""

    def __str__(self) -> str:
        return f"ofport {self.ofport}, VID {self.vid}" if self.vid else f"ofport {self.ofport}"


class PortId(NamedTuple):
    """A guest's port, for as long as its row stays: the port's own frames or those of one VLAN
    behind it, such as a container's.

    Two ports of one row have one ofport. They are two guests.
    """

    row: str
    """UUID of the Interface row: a port that was deleted and made again has another."""
    vid: int = 0
    """As :attr:`Endpoint.vid`."""


class Peer(NamedTuple):
    """A client that is known by its address alone, where no switch says which guest it is."""

    address: IPv4Address | IPv6Address | None
    """None: the connection of a trusted proxy, through which many guests ask."""
    connection: int = 0
    """Number of that connection; 0 for an address."""


Caller = Endpoint | Peer
"""The key of each client in the proxy's books: connections, rates, requests, complaints."""


@dataclass(frozen=True, slots=True)
class Port:
    """A guest's port (VIF) on the integration bridge: OVSDB's row and what the identity sources
    know of it."""

    name: str
    row: str
    """See :attr:`PortId.row`."""
    ofport: int | None
    vid: int = field(default=0, kw_only=True)
    """VLAN id of the guest's frames at that ofport; 0: they are untagged."""
    iface_id: str = ""
    mac: str = ""
    instance_id: str = ""
    project_id: str = ""
    instance_name: str = ""
    """What people call the instance. Its owner chose it: for listings, never to decide by."""
    unverified: bool = False
    """The instance stands where a tenant can write it (Neutron's device_id): it is served only
    after whoever answers has checked that ``project_id`` is the instance's (CVE-2013-6419)."""
    dead: bool = False
    fault: str = ""
    trunk: bool = False
    """It leads to a trunk's bridge; ``fault`` says whether it is the parent's or a subport's."""
    device_mac: str = ""
    """MAC of the device itself, where the name alone is too long to know it by in OpenFlow."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)
    """Field name → identity source that gave it, for people."""

    @property
    def id(self) -> PortId:
        """The key that it is known by."""
        return PortId(self.row, self.vid)

    @property
    def endpoint(self) -> Endpoint | None:
        """Where its frames come in, or None while it has no usable number."""
        if self.ofport is None or self.fault:
            return None
        return Endpoint(self.ofport, self.vid)

    @property
    def state(self) -> PortState:
        """Whether it is served, in one word."""
        if self.trunk:
            return PortState.TRUNK
        if self.fault:
            return PortState.BROKEN
        if self.dead:
            return PortState.DEAD
        if self.ofport is None:
            return PortState.NO_OFPORT
        return PortState.SERVED if self.instance_id else PortState.NO_INSTANCE


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is behind an endpoint, for as long as ``incarnation`` stays the same."""

    instance_id: str
    project_id: str
    port_id: str
    port_name: str
    incarnation: int
    """Grows with every change of the port, its instance or its project; never repeats in a
    process. An answer leaves only while it is still the one that the request was asked under."""
    unverified: bool = False
    """See :attr:`Port.unverified`."""
    instance_name: str = ""
    """See :attr:`Port.instance_name`. Whoever chose it may be told it; nothing follows of it."""


@dataclass(frozen=True, slots=True)
class GuestAddress:
    """What a guest called itself in its SYN. Untrusted; used to reach it, never to know it."""

    mac: str
    ip: IPv4Address


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The address that a guest asks from where no switch says who it is: in ``dfmeta-store``."""

    ip: IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class GuestRequest:
    """A guest's HTTP request, as the backends see it. All of it is untrusted."""

    method: str
    path: str
    """Origin-form path as the guest wrote it, still percent-encoded, without the query."""
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case. Never copied upstream as they are."""
    body: bytes = b""
    guest_ip: str = ""
    """The address that the guest uses, for X-Forwarded-For; not an identity."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a backend answers. The body is bytes and stays so, byte for byte."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=UTF-8"
    """Value of Content-Type; empty: none is sent."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers, in their order, a name perhaps more than once. Content-Type and hop-by-hop
    headers never stand here. Content-Length does for a HEAD that is answered without the body it
    is about; a HEAD with neither a body nor a Content-Length here has none that is known, and
    none is sent."""


@dataclass(frozen=True, slots=True)
class View:
    """What a backend knows of a guest, looked up once for one request."""

    http_tokens: str | None
    """A :class:`~dfmeta.proxy.tokens.TokenMode`'s value; "" where the backend leaves it to the
    configuration; None when the backend does not know the guest, or only by a claim that is wrong:
    there is nothing then for a token to open."""
    answer: Callable[[], Answer]
    """Answers the request, at most once. Raises :class:`~dfmeta.exceptions.BackendError` when there
    is no answer to pass on, and its :class:`~dfmeta.exceptions.BackendTimeoutError` when a request
    that must not be repeated was sent and not answered."""


@dataclass(frozen=True, slots=True)
class HttpHost:
    """Where an HTTP server is."""

    host: str
    """A name or an address, without brackets."""
    port: int

    @property
    def authority(self) -> str:
        """As it stands in a URL (RFC 3986, 3.2.2)."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
