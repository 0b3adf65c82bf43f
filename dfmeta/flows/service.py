"""The service table: sends known addresses to tap-metadata and first SYNs to the controller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dfmeta.flows import subport
from dfmeta.flows.family import IPV4, IPV6, Family, family_of
from dfmeta.flows.flow import (
    TCP_RST,
    Action,
    Flow,
    Output,
    SetField,
    ToController,
    flow,
    frames_of,
)
from dfmeta.flows.pipeline import CONTROLLER_ID, METADATA_IP, Purpose, Stage
from dfmeta.identity.key import IN_PORT, Keys
from dfmeta.model import Endpoint, GuestAddress


@dataclass(frozen=True, slots=True)
class Service:
    """The service in one version of IP."""

    family: Family
    ip: str
    """Address of the proxy's listener."""
    guest_ips: tuple[str, ...]
    """Addresses of the service for guests, on TCP port 80."""


@dataclass(frozen=True, slots=True)
class Tap:
    """The port that leads to the proxy."""

    ofport: int
    mac: str
    port: int
    """TCP port of the proxy's listener."""
    ip: str = METADATA_IP
    """IPv4 address of the proxy's listener (``host_ip``)."""
    guest_ip: str = METADATA_IP
    """IPv4 address of the service for guests (``ip``)."""
    ip6: str = ""
    """IPv6 address of the proxy's listener (``host_ip6``)."""
    guest_ip6: tuple[str, ...] = ()
    """IPv6 addresses of the service for guests (``ip6``); empty: no IPv6."""
    keys: Keys = IN_PORT
    """The key scheme, which identifies guests."""

    def services(self) -> Iterator[Service]:
        """Return the service in each version of IP that guests can use."""
        yield Service(IPV4, self.ip, (self.guest_ip,))
        if self.guest_ip6:
            yield Service(IPV6, self.ip6, self.guest_ip6)

    def service(self, version: int) -> Service:
        """Return the service in one version of IP; without addresses if guests cannot use it."""
        if version == 4:
            return Service(IPV4, self.ip, (self.guest_ip,))
        return Service(IPV6, self.ip6, self.guest_ip6)


def first_syn(
    endpoint: Endpoint, family: Family = IPV4, *, mac: str = "", floods: bool = False
) -> Flow:
    """Send the first packet of an unknown address to the controller; drop it if the guest *floods*.

    It may be a segment of a connection that the guest has had with another host, or over another
    port: the host answers it with a reset, and the guest connects again. Resets get no answer.

    :param mac: the only MAC whose SYNs are sent; empty: any MAC.
    """
    match = {
        **frames_of(endpoint),
        **({"eth_src": mac} if mac else {}),
        **family.tcp,
        "tcp_flags": (0, TCP_RST),
    }
    if floods:
        return flow(Purpose.SYN, match)
    if endpoint.vid:
        actions, goto = subport.to_controller(endpoint), Stage.SUBPORT
        return flow(Purpose.SYN, match, actions=actions, goto=goto)
    return flow(Purpose.SYN, match, actions=(ToController(CONTROLLER_ID),))


def known_address(endpoint: Endpoint, address: GuestAddress, *, slot: int, tap: Tap) -> Flow:
    """Send all TCP of *address* at *endpoint* to the proxy, with the key of *slot* as its source.

    The flow matches all TCP segments, not only SYNs, so that a connection keeps its slot. It
    matches both MAC and IP, which are under the guest's control: they only select one of the
    endpoint's own slots. An IPv6 flow also matches the address of the service: the answer has to
    come from the address that the guest has asked.
    """
    family = family_of(address.ip.version)
    asked = {family.destination: str(address.service)} if address.service is not None else {}
    match = {
        **frames_of(endpoint),
        "eth_src": address.mac,
        **family.tcp,
        family.source: str(address.ip),
        **asked,
    }
    if endpoint.vid:
        actions = (*subport.to_proxy(endpoint), *_translate(endpoint, slot, tap=tap))
        return flow(Purpose.ADDRESS, match, actions=actions, goto=Stage.SUBPORT)
    return flow(Purpose.ADDRESS, match, actions=towards_proxy(endpoint, slot, tap=tap))


def towards_proxy(endpoint: Endpoint, slot: int, *, tap: Tap) -> tuple[Action, ...]:
    """Return the actions that send a guest's first SYN, with its one VLAN tag, to the proxy.

    The flow of an untagged endpoint has the same.
    """
    translate = _translate(endpoint, slot, tap=tap)
    return *subport.untag(endpoint), *translate, Output(tap.ofport)


def _translate(endpoint: Endpoint, slot: int, *, tap: Tap) -> tuple[Action, ...]:
    """Return the actions that set the key of *slot* and the addresses of the proxy.

    They set eth_dst because the kernel drops a frame that is not addressed to tap-metadata's own
    MAC, and a guest may send it to the MAC of its gateway.
    """
    label = tap.keys.label(slot)
    if label is not None:
        # The second bridge does the rest: there the label stands for the address.
        return (SetField("eth_src", label),)
    key = tap.keys.key_of(endpoint, slot)
    service = tap.service(key.version)
    actions: list[Action] = [
        SetField("eth_dst", tap.mac),
        SetField(service.family.source, str(key)),
    ]
    if service.guest_ips != (service.ip,):
        actions.append(SetField(service.family.destination, service.ip))
    return (*actions, SetField("tcp_dst", tap.port))


def service_drop() -> Flow:
    """Drop frames that are neither SYNs nor from a known address."""
    return flow(Purpose.SERVICE_DROP, {})
