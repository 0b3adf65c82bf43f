"""Address, neighbour, rules and route of tap-metadata, by netlink. Every ``ensure`` is idempotent.

Two rules (rtnetlink(7), ip-rule(8)): the specification has the rule ``oif``, which covers a socket
bound to the device. The rule ``from`` makes every value of rp_filter work, because rp_filter looks
up the return path to a key without an output interface.

One next hop: without it, each key would be a neighbour itself, which takes an ARP exchange and an
entry of the kernel's neighbour table. The table holds 1,024 entries for the whole host by default
(arp(7), gc_thresh3). Keys behind one next hop with a permanent entry take no entries; the reply
flows set the destination MAC anyway.

A check runs at most once a second and costs the same on every host, even one with 10,000 routes
(BGP) and thousands of taps. So it reads only results that the kernel has filtered by device or
table. Two lists grow with the host: its addresses, which are read at once, at a hundredth of the
cost of a netlink message for each, and its rules, since one of another program may come before
dfmeta's (:mod:`dfmeta.host.rules`). A check changes nothing that is right: the kernel announces an
IPv6 address that is added again, by MLD.

IPv6 has the same objects. Its address has no duplicate address detection, since a listener cannot
be bound meanwhile, and no route of a network. The kernel removes it, with neighbour and route, when
the device goes down.
"""

import contextlib
import errno
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.ifaddrmsg import IFA_F_NODAD, IFA_F_NOPREFIXROUTE
from pyroute2.netlink.rtnl.ndmsg import NUD_PERMANENT
from pyroute2.netlink.rtnl.rtmsg import RTNH_F_ONLINK

from dfmeta import errors, model
from dfmeta.flows.family import IPV4, IPV6, Family
from dfmeta.host import ipv6
from dfmeta.host.device import held_addresses, is_up
from dfmeta.host.rtnetlink import Rtnetlink
from dfmeta.host.rules import MAIN_TABLE, Packets, Rule, RulePlan, plan_of
from dfmeta.identity.key import NEXT_HOP, NEXT_HOP_MAC
from dfmeta.runtime import clock, throttle

LOG = logging.getLogger(__name__)

RULE_FROM = 32764
RULE_OIF = 32765
"""Priorities of our two rules; the specification shows the second."""
MOVE_FIRST: Final = 0.004
"""Seconds of the first pause between two moves of the rules. The program of a VPN adds some rules
one after the other, and answers to guests must not leave by its tunnel."""
CALM: Final = 60.0
"""Seconds of the longest pause, and after the last pause until the rules move back to their own
priorities."""
ROUTE_MTU = model.TAP_MTU_MIN
"""Largest packet to a guest in bytes. Smaller links than tap-metadata's may follow behind a guest's
port, such as a container's behind a VM on an overlay network, and no ICMP error of them reaches the
host. Every link of IPv6 has this size. ovs-vswitchd's userspace datapath takes 5 % more CPU time
for a large answer than with 1500."""
_ABSENT: Final = frozenset({errno.ENOENT, errno.ESRCH, errno.EADDRNOTAVAIL, errno.ENODEV})
"""Errors for an object that does not exist: a rule, table or neighbour; a route; an address; any
object of a device that was removed at that moment."""


class KernelObject(NamedTuple):
    """An object of the kernel's routing."""

    kind: str
    """The method of :class:`~dfmeta.host.rtnetlink.Rtnetlink` that changes it."""
    what: str
    """Its name in the log."""
    key: Mapping[str, Any]
    """The values by which the kernel finds it."""
    values: Mapping[str, Any] = MappingProxyType({})
    """Its other values."""


@dataclass(frozen=True, slots=True)
class WantedSide:
    """Desired state of the host's side of the packet path, for one version of IP."""

    device: str
    address: IPv4Address | IPv6Address
    table: int
    family: Family = IPV4
    """Address family of the address and of the next hop."""
    next_hop: str = NEXT_HOP
    """Next hop of all guests' keys."""
    network: IPv4Network | IPv6Network | None = None
    """Network of all guests' keys if the main table has a route to it; None: a table of dfmeta's
    own has a default route, and two rules lead there."""
    keys: IPv4Network | IPv6Network | None = None
    """Network of all guests' keys; None: not known."""

    @property
    def route_table(self) -> int:
        """Number of the table with the route."""
        return self.table if self.network is None else MAIN_TABLE

    def rules(self) -> tuple[dict[str, Any], ...]:
        """Return the rules in the form that netlink takes.

        For a route of the main table there is one, which is needed only while the rule of another
        program comes before that of the main table.
        """
        common = {"table": self.route_table, "family": self.family.af}
        if self.network is not None:
            return ({"priority": RULE_OIF, "dst": str(self.network), **common},)
        source = {"src": str(self.address), "src_len": self.family.bits}
        return (
            {"priority": RULE_FROM, **source, **common},
            {"priority": RULE_OIF, "oifname": self.device, **common},
        )

    def plan(self, rules: Sequence[Rule]) -> RulePlan:
        """Return what is to be changed of the *rules* of the host."""
        source, tables = ip_network(self.address), frozenset({self.route_table})
        packets = Packets(source, self.network or self.keys, self.device, tables)
        enough = {"table": MAIN_TABLE} if self.network is not None else None
        return plan_of(rules, self.rules(), packets, enough=enough)

    def route(self, index: int) -> KernelObject:
        """Return the route through the device with *index*."""
        # RTNH_F_ONLINK: the next hop needs no other route.
        # Without a family the kernel answers EOPNOTSUPP to a default route of link scope.
        to = "default" if self.network is None else str(self.network)
        return KernelObject(
            "route",
            self.name_of(f"route in table {self.route_table}"),
            {"dst": to, "oif": index, "table": self.route_table, "family": self.family.af},
            {"gateway": self.next_hop, "flags": RTNH_F_ONLINK, "mtu": ROUTE_MTU},
        )

    def neighbour(self, index: int) -> KernelObject:
        """Return the next hop behind the device with *index*."""
        key = {"family": self.family.af, "dst": self.next_hop, "ifindex": index}
        return KernelObject("neigh", f"neighbour {self.next_hop}", key, {"lladdr": NEXT_HOP_MAC})

    def address_of(self, index: int) -> KernelObject:
        """Return the address of the device with *index*."""
        name, bits = str(self.address), self.family.bits
        key = {"index": index, "address": name, "prefixlen": bits, "family": self.family.af}
        flags = IFA_F_NODAD | IFA_F_NOPREFIXROUTE if self.family is IPV6 else 0
        return KernelObject("addr", f"address {name}/{bits}", key, {"flags": flags})

    def objects(self, index: int) -> tuple[KernelObject, KernelObject, KernelObject]:
        """Return route, neighbour and address of the device with *index*."""
        return self.route(index), self.neighbour(index), self.address_of(index)

    def rule(self, rule: Mapping[str, Any]) -> KernelObject:
        """Return one of the rules, at any priority: those that have moved share a priority."""
        what = self.name_of(f"rule {rule['priority']}")
        if rule not in self.rules():
            selectors = {"from": "src", "oif": "oifname", "to": "dst"}
            words = [f"{word} {rule[key]}" for word, key in selectors.items() if key in rule]
            what = " ".join([what, *words])
        return KernelObject("rule", what, rule)

    def name_of(self, kind: str) -> str:
        """Return the name of a rule or a route for the log, which tells both families apart."""
        return kind if self.family is IPV4 else f"IPv{self.family.version} {kind}"


class HostSide:
    """Configures the host's side, reports the changes that it made, and can remove them."""

    def __init__(self, wanted: WantedSide) -> None:
        self.wanted = wanted
        self._addresses: frozenset[IPv4Address | IPv6Address] = frozenset({wanted.address})
        self._made: dict[str, KernelObject] = {}
        """Name of an object that was made → the object."""
        self._moves = throttle.Backoff(MOVE_FIRST, CALM)
        self._has_warned = False
        self.is_late = False
        """Whether the rule of another program still came before dfmeta's after the last check."""

    def addresses(self) -> frozenset[IPv4Address | IPv6Address]:
        """Return the host's addresses as of the last check; no key may be one of them.

        They are those of the family of ``wanted``.
        """
        return self._addresses

    def ensure(self) -> list[str]:
        """Bring the device up, with its address, its next hop, its route and both rules.

        :return: a description of each change that was made; empty when none was needed.
        :raises HostError: when the device is missing or the kernel refuses.
        """
        with self._asking() as ipr:
            index = self._index()
            done = [
                *self.settle(),
                self._ensure_up(ipr, index),
                *self._remove_generated(ipr, index),
                self._ensure_address(ipr, index),
                self._ensure_neighbour(ipr, index),
                self._ensure_route(ipr, index),
                *self._ensure_rules(ipr),
            ]
            self._addresses = self._held()
        return [change for change in done if change]

    def lead(self) -> list[str]:
        """Bring the rules before those of other programs that could take packets to guests.

        :return: a description of each change that was made.
        :raises HostError: when the kernel refuses.
        """
        with self._asking() as ipr:
            return list(self._ensure_rules(ipr))

    def settle(self) -> list[str]:
        """Put the settings of the device in force that it needs before it comes up.

        :return: a description of each change that was made; empty for IPv4, which needs none.
        :raises HostError: when the kernel refuses.
        """
        return ipv6.settle(self.wanted.device) if self.wanted.family is IPV6 else []

    def remove(self, *, device_stays: bool = False, keep: WantedSide | None = None) -> list[str]:
        """Remove the rules and the route.

        An earlier configuration may have used another table or another address. The device's own
        rule names the table, and dfmeta is the only user of that table.

        :param device_stays: remove the address and the next hop as well, which else are removed
            with the device.
        :param keep: the current configuration, if this one is a former one; its objects stay.
        :return: a description of each removed object.
        :raises HostError: when the kernel refuses.
        """
        wanted, done = self.wanted, list[str]()
        if wanted.family is IPV6 and not ipv6.in_kernel():
            return []
        kept = [rule | {"priority": 0} for rule in keep.rules()] if keep is not None else []
        with self._asking() as ipr:
            for rule in self._present_rules(ipr):
                if rule | {"priority": 0} not in kept:
                    what = wanted.name_of(f"rule {rule['priority']}")
                    done.append(self._drop(ipr, KernelObject("rule", what, rule)))
            with contextlib.suppress(OSError):  # no device, no route through it
                index = socket.if_nametoindex(wanted.device)
                route, *others = wanted.objects(index)
                objects = [route] if self._routes(ipr, index, wanted) else []
                objects += others if device_stays else []
                staying = [each.key for each in keep.objects(index)] if keep is not None else []
                done += [self._drop(ipr, each) for each in objects if each.key not in staying]
        return [change for change in done if change]

    def undo(self) -> list[str]:
        """Remove everything that this process has added, and nothing that existed before.

        :return: a description of each removed object.
        :raises HostError: when the kernel does not answer.
        """
        done = []
        with self._asking() as ipr:
            for made in reversed(self._made.values()):
                # The kernel may have removed it together with another object.
                with contextlib.suppress(NetlinkError):
                    _send(ipr, made, "down" if made.kind == "link" else "del")
                    done.append(made.what)
        self._made.clear()
        return done

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Rtnetlink]:
        try:
            with Rtnetlink() as ipr:
                yield ipr
        except (OSError, NetlinkError) as error:
            raise errors.HostError(
                what="reading the network configuration", device=self.wanted.device, cause=error
            ) from error

    def _index(self) -> int:
        try:
            return socket.if_nametoindex(self.wanted.device)
        except OSError as error:
            raise errors.HostError(
                what="lookup", device=self.wanted.device, cause="there is no such device"
            ) from error

    def _ensure_up(self, ipr: Rtnetlink, index: int) -> str:
        if is_up(self.wanted.device):
            return ""
        return self._make(ipr, KernelObject("link", "up", {"index": index}), "up")

    def _held(self) -> frozenset[IPv4Address | IPv6Address]:
        if self.wanted.family is IPV6:
            return frozenset(entry.address for entry in ipv6.held())
        return frozenset(held_addresses())

    def _remove_generated(self, ipr: Rtnetlink, index: int) -> Iterator[str]:
        """Remove link-local IPv6 addresses, which a kernel generates for a device that comes up.

        It did so if the device was up before its settings were made. dfmeta uses no such address.
        """
        if self.wanted.family is not IPV6:
            return
        for entry in ipv6.held():
            if entry.address.is_link_local and entry.device == self.wanted.device:
                key = self.wanted.address_of(index).key
                key = {**key, "address": str(entry.address), "prefixlen": entry.prefix_length}
                yield self._drop(ipr, KernelObject("addr", f"no address {entry.address}", key))

    def _ensure_address(self, ipr: Rtnetlink, index: int) -> str:
        address = self.wanted.address_of(index)
        for message in ipr.addresses(self.wanted.family.af, index=index):
            present = message.get_attr("IFA_ADDRESS"), message["prefixlen"]
            if present == (address.key["address"], address.key["prefixlen"]):
                return ""
        return self._make(ipr, address)

    def _ensure_neighbour(self, ipr: Rtnetlink, index: int) -> str:
        family, next_hop = self.wanted.family, self.wanted.next_hop
        if has_next_hop(ipr, index, next_hop, family=family):
            return ""
        return self._make(ipr, self.wanted.neighbour(index), "replace")

    def _ensure_route(self, ipr: Rtnetlink, index: int) -> str:
        # A route with another next hop or MTU is replaced.
        routes = self._routes(ipr, index, self.wanted)
        if (self.wanted.next_hop, ROUTE_MTU) in routes:
            return ""
        route = self.wanted.route(index)
        if self.wanted.network is None:
            return self._make(ipr, route, "replace")
        # Other programs have routes in the main table: "replace" could take one of theirs.
        for _ in routes:
            self._drop(ipr, route)
        done = self._make(ipr, route)
        if not done:
            raise errors.HostError(
                what=route.what,
                device=self.wanted.device,
                cause=f"the host has another route to {self.wanted.network}",
                remedy=f"`ip route show {self.wanted.network}` shows it: delete it, or set another "
                "network in [METADATA] provider_cidr, and for IPv6 in [df_metadata] key_prefix6",
            )
        return done

    def _ensure_rules(self, ipr: Rtnetlink) -> Iterator[str]:
        """Add missing rules, and move those that come after a rule that could take their packets.

        A moved rule is added first, so that there is one at any time. Two programs that both want
        to be first never end: each pause between two moves is twice as long as the one before. The
        rules move back some time after the last move, so that a rule of another program that is put
        in again and again does not find them at their own priority each time.
        """
        now = clock.now()
        plan = self.wanted.plan(ipr.rules(self.wanted.family.af))
        contender = plan.contender
        self.is_late = contender is not None and (not plan.add or self._moves.rests(now))
        if contender is not None and self.is_late:
            self._warn(contender, now)
            return
        if contender is not None:
            self._moves.failed(now)
        elif now >= self._moves.until + CALM:
            self._moves.succeeded()
            self._has_warned = False
        elif plan.is_return:
            return
        former = [self.wanted.rule(rule) for rule in plan.drop]
        of_another_run = bool(former) and not any(rule.what in self._made for rule in former)
        for rule in map(self.wanted.rule, plan.add):
            before = f" before '{contender}'" if contender is not None else ""
            if self._make(ipr, rule):
                yield rule.what + before
            if of_another_run:
                self._made.pop(rule.what, None)
        for rule in former:
            self._made.pop(rule.what, None)
            self._drop(ipr, rule)

    def _warn(self, contender: Rule, now: float) -> None:
        """Log once that the rules do not come before *contender*, unless it is for a moment."""
        if self._has_warned or now < self._moves.until < now + clock.CHECK_INTERVAL:
            return
        self._has_warned = True
        LOG.warning(
            "The rule '%s' of another program takes packets to guests, and comes before the %s of "
            "%s again after each move: they move more and more rarely; `dfmeta doctor` has the "
            "remedy",
            contender,
            self.wanted.name_of("rules"),
            self.wanted.device,
        )

    def _routes(self, ipr: Rtnetlink, index: int, of: WantedSide) -> list[tuple[str, int]]:
        return routes_through(ipr, index, of.route_table, family=of.family, to=of.network)

    def _present_rules(self, ipr: Rtnetlink) -> list[dict[str, Any]]:
        """Return dfmeta's existing rules: those for the device and those for addresses.

        A rule for another address is dfmeta's if a rule of the device names the same table, and
        it has the priority of that or the first one of dfmeta.
        """
        rules, wanted = ipr.rules(self.wanted.family.af), self.wanted
        common = {"family": wanted.family.af}
        if wanted.network is not None:
            return _rules_of(wanted, rules)
        by_device = [
            {"priority": rule.priority, "oifname": wanted.device, "table": rule.table, **common}
            for rule in rules
            if rule.is_of(wanted.device)
        ]
        tables = {present["table"] for present in by_device}
        priorities = {RULE_FROM, *(present["priority"] for present in by_device)}
        bits, key = wanted.family.bits, (wanted.table, str(wanted.address))
        by_address = [
            {
                "priority": rule.priority,
                "src": rule.source,
                "src_len": bits,
                "table": rule.table,
                **common,
            }
            for rule in rules
            if rule.src_len == bits
            and rule.is_plain
            and not (rule.output or rule.destination)
            and (
                (rule.table, rule.source) == key
                or (rule.priority in priorities and rule.table in tables)
            )
        ]
        # The device's own rules come last: after an interrupted removal they still name the tables.
        return by_address + by_device

    def _make(self, ipr: Rtnetlink, new: KernelObject, command: str = "add") -> str:
        """Make an object, and note that; return its name, or empty text if it exists already."""
        done = self._change(ipr, new, command, errno.EEXIST)
        if done:
            self._made[new.what] = new
        return done

    def _drop(self, ipr: Rtnetlink, old: KernelObject) -> str:
        """Remove an object; return its name, or empty text if it does not exist."""
        return self._change(ipr, old, "del", *_ABSENT)

    def _change(self, ipr: Rtnetlink, of: KernelObject, command: str, *but: int) -> str:
        """Send a command for an object; return its name, or empty text for an error in *but*.

        :raises HostError: when the kernel refuses for another reason.
        """
        try:
            _send(ipr, of, command)
        except NetlinkError as error:
            if error.code in but:
                return ""
            raise errors.HostError(what=of.what, device=self.wanted.device, cause=error) from error
        return of.what


def _send(ipr: Rtnetlink, of: KernelObject, command: str) -> None:
    values = of.values if command in ("add", "replace") else {}
    getattr(ipr, of.kind)(command, **of.key, **values)


def _rules_of(wanted: WantedSide, rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Return those of the host's *rules* that are the rules of *wanted*, at any priority."""
    return [
        wanted_rule | {"priority": rule.priority}
        for wanted_rule in wanted.rules()
        for rule in rules
        if rule.leads(wanted_rule)
    ]


def routes_through(
    ipr: Rtnetlink,
    index: int,
    table: int,
    *,
    family: Family = IPV4,
    to: IPv4Network | IPv6Network | None = None,
) -> list[tuple[str, int]]:
    """Return next hop and MTU of the routes of *table* through the device with *index*.

    A route without a next hop gives empty text, and one without an MTU 0.

    :param to: only the routes to that network; None: the default routes.
    :raises NetlinkError: when the kernel refuses.
    """
    try:
        routes = ipr.route("list", family=family.af, table=table, oif=index)
    except NetlinkError as error:
        if error.code in _ABSENT:
            return []  # the kernel creates a table with its first route
        raise
    wanted = (0, None) if to is None else (to.prefixlen, str(to.network_address))
    return [
        (route.get_attr("RTA_GATEWAY") or "", _mtu_of(route))
        for route in routes
        if (route["dst_len"], route.get_attr("RTA_DST")) == wanted
    ]


def _mtu_of(route: Any) -> int:
    metrics = route.get_attr("RTA_METRICS")
    return int(metrics.get_attr("RTAX_MTU") or 0) if metrics is not None else 0


def has_next_hop(
    ipr: Rtnetlink, index: int, next_hop: str = NEXT_HOP, *, family: Family = IPV4
) -> bool:
    """Return whether the next hop has a permanent neighbour entry on that device.

    :param next_hop: an address of *family*.
    :raises NetlinkError: when the kernel refuses.
    """
    try:
        (entry,) = ipr.neigh("get", family=family.af, dst=next_hop, ifindex=index)
    except NetlinkError as error:
        if error.code == errno.ENOENT:
            return False
        raise
    return bool(entry.get_attr("NDA_LLADDR") == NEXT_HOP_MAC and entry["state"] == NUD_PERMANENT)
