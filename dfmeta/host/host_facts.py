"""Reads the kernel's side of the packet path for dfmeta's commands; changes nothing."""

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import (
    IPv4Interface,
    IPv4Network,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
)
from pathlib import Path
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.ifinfmsg import IFF_LOWER_UP, IFF_UP

from dfmeta.errors import HostError
from dfmeta.flows.family import IPV4, Family
from dfmeta.host.device import tx_checksum
from dfmeta.host.listeners import TcpListener, tcp_listeners
from dfmeta.host.netlink import ROUTE_MTU, WantedSide, has_next_hop, routes_through
from dfmeta.host.rtnetlink import Rtnetlink
from dfmeta.host.rules import Rule
from dfmeta.identity.key import IN_PORT, Keys
from dfmeta.model import Endpoint

_NET = Path("/proc/sys/net")


@dataclass(frozen=True, slots=True)
class RuleFact:
    """One of dfmeta's two routing rules."""

    selector: str
    """As ip-rule(8) writes it: ``from 169.254.169.254`` or ``oif tap-metadata``."""
    priority: int
    """The present one, or that of a missing rule."""
    present: bool


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
    listeners: tuple[TcpListener, ...] = ()
    limits: LimitFacts = field(default_factory=LimitFacts)


def read_host(
    device: str,
    address: str,
    *,
    table: int,
    family: Family = IPV4,
    keys: Keys = IN_PORT,
    network: IPv4Network | IPv6Network | None = None,
) -> HostFacts:
    """Read the state of the tap-metadata *device*, its *address* and the routes of *table*.

    :param family: address family of the address, the rules, the route and the listeners.
    :param keys: the key scheme.
    :param network: network to which the main table has the route, without rules; None: *table* has
        a default route, and two rules lead there.
    :raises HostError: when the kernel does not answer, or does not have IPv6, and *family* is IPv6.
    """
    next_hop = keys.next_hop(family.version)
    guests = keys.network(family.version)
    wanted = WantedSide(device, ip_address(address), table, family, next_hop, network, guests)
    table = wanted.route_table
    try:
        with Rtnetlink() as rtnl:
            links = rtnl.links()
            names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in links}
            link = next(
                (candidate for candidate in links if names[candidate["index"]] == device), None
            )
            index, flags = (0, 0) if link is None else (link["index"], link["flags"])
            addresses = rtnl.addresses(family.af)
            rules = rtnl.rules(family.af)
            plan = wanted.plan(rules)
            return HostFacts(
                up=bool(flags & IFF_UP) if index else None,
                carrier=bool(flags & IFF_LOWER_UP),
                addresses=_addresses(addresses, names),
                rules=tuple(_rules(wanted, rules)),
                contender=str(plan.contender or ""),
                route=bool(index)
                and (next_hop, ROUTE_MTU)
                in routes_through(rtnl, index, table, family=family, to=network),
                neighbour=bool(index) and has_next_hop(rtnl, index, next_hop, family=family),
                way_back=_way_back(rtnl, names, addresses, address, family, keys),
                rp_filter=(
                    _knob("all", "rp_filter", family),
                    _knob(device, "rp_filter", family),
                ),
                arp_ignore=_knob("all", "arp_ignore", family),
                tx_checksum=_tx_checksum(device) if index else None,
                listeners=tuple(
                    listener
                    for listener in tcp_listeners()
                    if listener.address.version == family.version
                ),
                limits=_limits(),
            )
    except (OSError, NetlinkError) as error:
        raise HostError(what="reading the host's network", device=device, cause=error) from error


def _addresses(
    messages: list[Any], names: dict[int, str]
) -> tuple[tuple[str, IPv4Interface | IPv6Interface], ...]:
    return tuple(
        (names.get(message["index"], "?"), ip_interface((address, message["prefixlen"])))
        for message in messages
        if (address := _near_end(message))
    )


def _near_end(message: Any) -> str:
    """Return the host's end of an address; only a point-to-point one of IPv6 has IFA_LOCAL."""
    return str(message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS") or "")


def _rules(wanted: WantedSide, rules: Sequence[Rule]) -> Iterator[RuleFact]:
    """Yield the state of each of dfmeta's own rules; none where the main table has the route."""
    for wanted_rule in wanted.rules() if wanted.network is None else ():
        priorities = [rule.priority for rule in rules if rule.leads(wanted_rule)]
        selector = (
            f"from {wanted_rule['src']}"
            if "src" in wanted_rule
            else f"oif {wanted_rule['oifname']}"
        )
        yield RuleFact(selector, [*priorities, wanted_rule["priority"]][0], bool(priorities))


def _way_back(
    rtnl: Rtnetlink,
    names: dict[int, str],
    addresses: list[Any],
    address: str,
    family: Family,
    keys: Keys,
) -> str:
    """Return the device through which the kernel would send from *address* to a key.

    The route is looked up as ``ip route get`` does (ip-route(8)). When there is no route, the
    kernel's error is returned in words.
    """
    held = {_near_end(message) for message in addresses}
    # In one scheme a key depends on both numbers, in the other one on the slot alone.
    candidates = (
        str(keys.key_of(Endpoint(number), slot))
        for number in (1, 2)
        for slot in keys.slots(family.version)
    )
    key = next((key for key in candidates if key not in held), keys.probe_key(family.version))
    try:
        route = rtnl.route_to(key, src=address, family=family.af)
    except NetlinkError as error:
        return os.strerror(error.code)
    return names.get(route.get_attr("RTA_OIF"), "?")


def _limits() -> LimitFacts:
    return LimitFacts(
        somaxconn=_number("core/somaxconn") or 0,
        syncookies=_number("ipv4/tcp_syncookies") or 0,
        neighbours=max(len(Path("/proc/net/arp").read_text().splitlines()) - 1, 0),
        neighbours_max=_number("ipv4/neigh/default/gc_thresh3"),
        local_ports=_local_ports(),
    )


def _number(path: str) -> int | None:
    """Return a value of /proc/sys/net; None when the kernel does not have it."""
    try:
        return int((_NET / path).read_text())
    except FileNotFoundError:
        return None


def _local_ports() -> int:
    first, last = (_NET / "ipv4/ip_local_port_range").read_text().split()
    return int(last) - int(first) + 1


def _knob(device: str, name: str, family: Family) -> int:
    """Return a value of ip-sysctl; 0 when the device or the value does not exist."""
    return _number(f"ipv{family.version}/conf/{device}/{name}") or 0


def _tx_checksum(device: str) -> bool | None:
    try:
        return tx_checksum(device)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENODEV, errno.EPERM):
            return None
        raise
