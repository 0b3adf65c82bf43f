"""Values that dfmeta's modules exchange. No I/O, no third-party imports.

Trust: the data of :class:`Port` comes from the host (OVSDB, libvirt, the store) and is trusted as
the operator's, except for an instance that is ``unverified``. :class:`GuestAddress` and
:class:`GuestRequest` come from a guest and are untrusted. Only the :class:`Endpoint` on which its
frames arrive identifies a guest.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

OFPORT_MAX = 0xFEFF
"""Highest number that OpenFlow gives to an ordinary port (OFPP_MAX is 0xff00, exclusive)."""
VID_MAX: Final = 4094
"""Largest VLAN id of a frame (IEEE 802.1Q, 9.6); the smallest is 1."""
TTL_MAX: Final = 21600
"""Seconds for which a token may be valid; EC2's limit."""
MTU: Final = (68, 65535)
"""Smallest MTU of IPv4 (RFC 791), and the largest one of a device."""
NAME_MAX: Final = 15
"""Largest number of characters of a device's name (IFNAMSIZ of linux/if.h, without the NUL)."""


class PortVlan(NamedTuple):
    """The VLAN columns of a port (ovs-vswitchd.conf.db(5), table Port)."""

    tag: int
    vlan_mode: str
    cvlans: tuple[int, ...]


TAP_VLAN = PortVlan(tag=4095, vlan_mode="dot1q-tunnel", cvlans=(1,))
"""VLAN columns of tap-metadata. NORMAL floods no frame to a port in that VLAN, and an explicit
output action ignores the VLAN. Neutron's dead ports are also in VLAN 4095, but without the inner
VLAN, which keeps their frames out."""
TAP_MTU = 1500
"""``mtu_request`` of tap-metadata in bytes, or the smallest MTU of the bridge's other ports if that
is larger. Without one, Open vSwitch gives internal ports the smallest MTU of the other ports: one
guest's small MTU would take IPv6, and below 88 bytes everything, from all guests. A port with a
request is one of these other ports: a smaller one would lower the internal ports of other programs
on a bridge of jumbo frames, a larger one would raise them on a bridge without other ports, where
Open vSwitch gives them 1500."""
TAP_MTU_MIN = 1280
"""Smallest ``mtu_request`` of an operator that stays: the smallest MTU of IPv6 (RFC 8200, 5)."""
ATTACHMENT_KEY = "dfmeta-attachment"
"""Key in ``external_ids`` of the ports of a container's attachment: its id."""
TAP_MARK = ("dfmeta", "tap")
"""Key and value in ``external_ids`` of tap-metadata's Interface row: dfmeta created the port."""
TAP_MAC = "02:64:66:6d:65:fe"
"""MAC of tap-metadata: the same on every host, so that a guest that migrates keeps a valid
neighbour entry."""


class MetaNames(NamedTuple):
    """Names of the second bridge of ``identity_scheme = meta_ip`` and of its ports."""

    bridge: str
    """``[df_metadata] meta_bridge``."""
    tap: str
    """The internal port that leads to the proxy."""
    patch_int: str
    """The patch port on the integration bridge."""
    patch_meta: str
    """Its peer, on the second bridge."""
    mac: str
    """MAC of the internal port: the gateway's Meta MAC."""


class MetaIds(NamedTuple):
    """The Meta addresses of a port in OVSDB, as text that may be invalid; empty: none."""

    ip: str = ""
    mac: str = ""
    ip6: str = ""


class NextHop(NamedTuple):
    """A guest next hop: an address on a guest's network, through which the guest has a route to the
    service. It belongs to a DHCP port, which may be gone; dfmeta answers ARP for it."""

    ip: str
    """IPv4 address as Python writes it."""
    mac: str = ""
    """The DHCP port's own MAC, in lower case with colons; empty: not known."""
    source: str = "ovsdb"
    """The identity source that gave it: ``ovsdb`` or ``neutron``."""


class PortState(enum.StrEnum):
    """State of a port: served, or the reason why it is not."""

    SERVED = "served"
    """Its instance is known; the guest may have asked for nothing yet."""
    NO_INSTANCE = "no instance"
    """A VIF without an instance: its SYNs are held until the instance is known."""
    NO_OFPORT = "no ofport"
    """Open vSwitch has not given the port a number, or could not."""
    DEAD = "dead"
    """Disabled by the port's owner: ``tag`` 4095 without ``vlan_mode`` trunk."""
    BROKEN = "broken"
    """The columns of its rows are invalid for a guest's port; ``Port.fault`` has the cause."""
    UNNAMED = "unnamed"
    """A subport without an instance of its own: its container's requests get 404."""
    NO_PROJECT = "no project"
    """The port has flows, but its project is not known, and the backend (Nova) needs it."""
    NO_META_IP = "no meta ip"
    """The port has flows, but all Meta IPs are taken, so that no request of its guest is served."""
    CUT_OFF = "cut off"
    """Its device is down or has no link, or the switch refuses its frames or its flows."""
    NO_CONNECTION = "no connection"
    """The port has flows and its SYNs reach the switch, but no connection reaches the proxy."""


WIRED = frozenset(PortState) - {PortState.NO_OFPORT, PortState.DEAD, PortState.BROKEN}
"""States of ports that have flows on the switch."""
OBSERVED = (
    PortState.CUT_OFF,
    PortState.NO_PROJECT,
    PortState.NO_META_IP,
    PortState.NO_CONNECTION,
)
"""States that are observed from outside the port's rows (:mod:`dfmeta.cmd.ports`):
:attr:`Port.state` is :attr:`PortState.SERVED` in each of them. The first that applies is shown."""


class PortKind(enum.StrEnum):
    """Kind of a guest's port."""

    PORT = "port"
    """A port without subports."""
    PARENT = "trunk parent"
    """The untagged port of a VM with a trunk."""
    SUBPORT = "subport"
    """A VLAN of a trunk, with a container behind it."""


class Endpoint(NamedTuple):
    """Place at which a guest's frames enter the bridge; the only identity of a guest.

    A tuple, because each request looks it up a dozen times.
    """

    ofport: int
    vid: int = 0
    """VLAN id of a nested container behind the port; 0 is the untagged port itself."""

    def __str__(self) -> str:
        return f"ofport {self.ofport}, VID {self.vid}" if self.vid else f"ofport {self.ofport}"


class PortId(NamedTuple):
    """Key of a guest's port, valid as long as its row exists: for the port's untagged frames, or
    for those of one VLAN behind it, such as a container's.

    Two ports of one row have the same ofport, but are two guests.
    """

    row: str
    """UUID of the Interface row; a port that was deleted and created again has another one."""
    vid: int = 0
    """VLAN id, see :attr:`Endpoint.vid`."""


class Peer(NamedTuple):
    """A client that is identified by its address only, because there is no switch."""

    address: IPv4Address | IPv6Address | None
    """None: the connection of a trusted proxy, which forwards requests of many guests."""
    connection: int = 0
    """Number of that connection; 0 for an address."""


Caller = Endpoint | Peer
"""Key of a client in the proxy's tables of connections, rates, requests and complaints."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The addresses that frames of a port have to have as their source."""

    mac: str
    """In lower case with colons."""
    ip: IPv4Address


@dataclass(frozen=True, slots=True)
class Port:
    """A guest's port (VIF) on the integration bridge: the data of OVSDB's row and of the identity
    sources."""

    name: str
    row: str
    """See :attr:`PortId.row`."""
    ofport: int | None
    vid: int = field(default=0, kw_only=True)
    """VLAN id of the guest's frames at that ofport; 0: untagged."""
    iface_id: str = ""
    mac: str = ""
    instance_id: str = ""
    project_id: str = ""
    instance_name: str = ""
    """Name of the instance. Its owner chose it: for display only, never for decisions."""
    unverified: bool = False
    """The instance id comes from a field that a tenant can write (Neutron's device_id). It is
    served only after the backend has checked that ``project_id`` is the instance's project
    (CVE-2013-6419)."""
    dead: bool = False
    fault: str = ""
    kind: PortKind = field(default=PortKind.PORT, kw_only=True)
    segmentation_id: int = field(default=0, kw_only=True)
    """VLAN id of a subport on its trunk; 0: not a subport, or not known. It differs from ``vid``
    where the trunk's bridge removes the tag, so that frames enter this bridge untagged."""
    parent: str = field(default="", kw_only=True)
    """Name of the port of a subport's parent; empty: not a subport, or not known."""
    mtu: int = field(default=0, kw_only=True)
    """MTU of a subport's network in bytes, from its parent's list; 0: not known."""
    subport_faults: tuple[str, ...] = field(default=(), kw_only=True)
    """The wrong entries of subports in its row, each with its cause."""
    unnamed: bool = field(default=False, kw_only=True)
    """A subport for which no identity source gives an instance."""
    meta: MetaIds = field(default=MetaIds(), kw_only=True)
    """Meta addresses that its row has, from dfmeta or from Neutron's metadata_path."""
    next_hops: tuple[NextHop, ...] | None = field(default=(), kw_only=True)
    """The guest next hops of its guest; None: Neutron has not been asked for them yet."""
    next_hop_faults: tuple[str, ...] = field(default=(), kw_only=True)
    """The wrong entries of guest next hops in its row, each with its cause."""
    attachments: bool = field(default=False, kw_only=True)
    """Its row allows the VM to make attachments for its containers."""
    attached: str = field(default="", kw_only=True)
    """Id of the attachment of a subport, whose device a program in the VM makes; empty: none."""
    binding: Binding | None = field(default=None, kw_only=True)
    """The source addresses of a subport that dfmeta has made for an attachment; None: any."""
    patch: bool = field(default=False, kw_only=True)
    """A patch port whose name fits into OpenFlow. Open vSwitch gives such a device another MAC at
    each of its starts, so that its name alone identifies it."""
    device_mac: str = ""
    """MAC of the device itself, if the name is too long to identify it in OpenFlow."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)
    """Field name → identity source that gave the field, for display."""

    @property
    def id(self) -> PortId:
        """Key of the port."""
        return PortId(self.row, self.vid)

    @property
    def endpoint(self) -> Endpoint | None:
        """Endpoint of the port's frames, or None while the port has no usable number."""
        if self.ofport is None or self.fault:
            return None
        return Endpoint(self.ofport, self.vid)

    @property
    def vm(self) -> str:
        """Name of the port of the virtual machine: that of the parent for a subport."""
        return self.parent or self.name

    @property
    def only_mac(self) -> str:
        """The only MAC that is served at the endpoint; empty: any MAC.

        All containers of a virtual machine send through one port, which no anti-spoofing rule of
        the bridge's owner distinguishes by VLAN.
        """
        return self.mac if self.vid else ""

    @property
    def state(self) -> PortState:
        """State of the port, from its own fields."""
        if self.fault:
            return PortState.BROKEN
        if self.dead:
            return PortState.DEAD
        if self.ofport is None:
            return PortState.NO_OFPORT
        if self.instance_id:
            return PortState.SERVED
        return PortState.UNNAMED if self.unnamed else PortState.NO_INSTANCE

    def identify(self, incarnation: int) -> Identity:
        """Return the identity of the port's guest."""
        return Identity(
            instance_id=self.instance_id,
            project_id=self.project_id,
            port_id=self.iface_id,
            port_name=self.name,
            incarnation=incarnation,
            unverified=self.unverified,
            instance_name=self.instance_name,
            vm=self.vm,
            mac=self.mac,
        )

    def with_notes_of(self, new: Port) -> Port:
        """Return this port with those fields of *new* that do not concern the guest's identity."""
        return replace(
            self,
            meta=new.meta,
            next_hops=new.next_hops,
            next_hop_faults=new.next_hop_faults,
            kind=new.kind,
            segmentation_id=new.segmentation_id,
            parent=new.parent,
            mtu=new.mtu,
            subport_faults=new.subport_faults,
            attachments=new.attachments,
            attached=new.attached,
            binding=new.binding,
        )

    def only_gains(self, new: Port) -> bool:
        """Return whether *new* is the port of the same guest, and only adds fields to this one."""
        who = ("id", "ofport", "iface_id", "instance_id", "unnamed", "dead", "fault", "only_mac")
        same = all(getattr(self, name) == getattr(new, name) for name in who)
        # An unverified instance may become verified, but not the other way round.
        gains = self.project_id in ("", new.project_id) and self.unverified >= new.unverified
        return same and gains


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of the guest behind an endpoint, valid while ``incarnation`` stays the same."""

    instance_id: str
    """Empty: a subport without an instance, whose requests get 404."""
    project_id: str
    port_id: str
    port_name: str
    incarnation: int
    """Grows with every change of the port, its instance or its project; never repeats in a
    process. An answer is sent only while the incarnation is the one of its request."""
    unverified: bool = False
    """See :attr:`Port.unverified`."""
    instance_name: str = ""
    """See :attr:`Port.instance_name`. The instance's owner may see it; no decision uses it."""
    vm: str = ""
    """See :attr:`Port.vm`. Limits of a virtual machine count by it; empty: by the port."""
    mac: str = ""
    """MAC of the guest's device, from the host; empty: not known."""


@dataclass(frozen=True, slots=True)
class GuestAddress:
    """Source addresses of a guest's SYN. Untrusted: used to reach the guest, not to identify it."""

    mac: str
    ip: IPv4Address | IPv6Address
    service: IPv6Address | None = None
    """Address of the service that the guest uses; None for IPv4, where the service has only one."""


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Source address of a guest's request in ``dfmeta-store``, which has no switch."""

    ip: IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class GuestRequest:
    """A guest's HTTP request, as the backends see it. All fields are untrusted."""

    method: str
    path: str
    """Origin-form path as the guest sent it, still percent-encoded, without the query."""
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers, with names in lower case. Never copied unchanged into a request to a backend."""
    body: bytes = b""
    guest_ip: str = ""
    """The address that the guest uses, for X-Forwarded-For; not an identity."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A backend's answer. The body is forwarded unchanged, byte for byte."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=UTF-8"
    """Value of Content-Type; empty: none is sent."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers in order; a name may occur more than once. Content-Type and hop-by-hop
    headers are never included. Content-Length is included for a HEAD that is answered without the
    body that it describes. For a HEAD with neither a body nor a Content-Length here, the length is
    unknown, and no Content-Length is sent."""
    known: bool = True
    """False: it is a 404 because the backend has no record of the guest, whatever the path."""
    remark: str = ""
    """A sentence for the operator, with the things to check, if the status shows a fault of the
    host or the backend. The guest does not get it."""


class AnswerTerms(NamedTuple):
    """How long a backend may take, and whether the request is to be answered."""

    deadline: float = math.inf
    """Monotonic seconds until which the backend may wait for other hosts and for the database, the
    answer included."""
    should_answer: Callable[[str | None], bool] = lambda _mode: True
    """Whether the request is to be answered, given :attr:`View.http_tokens`. A backend in another
    process then sends the answer along with the view."""


ANYTIME: Final = AnswerTerms()


@dataclass(frozen=True, slots=True)
class View:
    """A backend's data on a guest, looked up once for one request."""

    http_tokens: str | None
    """A :class:`~dfmeta.proxy.tokens.TokenMode`'s value; "" if the backend leaves it to the
    configuration; None if the backend does not know the guest, or only by an incorrect claim: then
    there is no document that a token could protect."""
    answer: Callable[[], Answer]
    """Answers the request, at most once. Raises :class:`~dfmeta.errors.BackendError` if there
    is no answer to forward, and its :class:`~dfmeta.errors.BackendTimeoutError` if a request
    that must not be repeated was sent and not answered."""


@dataclass(frozen=True, slots=True)
class HttpHost:
    """Address of an HTTP server."""

    host: str
    """A name or an address, without brackets."""
    port: int

    @property
    def authority(self) -> str:
        """Host and port in the form of a URL (RFC 3986, 3.2.2)."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_UNICAST: Final = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}", re.ASCII)


def is_unicast(mac: str) -> bool:
    """Return whether a device can have a MAC: of lower case with colons, no group, not all zero."""
    return _UNICAST.fullmatch(mac) is not None and mac != "00:00:00:00:00:00"
