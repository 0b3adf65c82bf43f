"""Address, neighbour, rules and route of tap-metadata, by netlink. Every ``ensure`` is idempotent.

Why two rules (rtnetlink(7), ip-rule(8)): ``oif`` is the specification's and covers a socket bound
to the device; ``from`` covers every value of rp_filter, whose look-up of the way back to a key has
no output interface.

Why a next hop: keys that were neighbours themselves would each take a place in the kernel's
neighbour table, which holds 1,024 for the whole host unless it is told otherwise (arp(7),
gc_thresh3), and an ARP exchange. Behind one next hop, which is told once and for good, they take
none; the reply flows set the destination MAC anyway.

A look, one a second at most, costs the same on every host: it may have 10,000 routes (BGP), a
rule for each exposed address and thousands of taps. So it reads what the kernel has picked out, of
one device or one table, and never a list that grows with the host. Rules and addresses cannot be
picked out; the look asks for each to be added, and the kernel answers EEXIST where it is there.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_GETROUTE

from dfmeta.exceptions import HostError
from dfmeta.flows.family import IPV4, Family
from dfmeta.flows.key import NEXT_HOP, NEXT_HOP_MAC
from dfmeta.host.device import held_addresses

RULE_FROM = 32764
RULE_OIF = 32765
"""Priorities of our two rules; the specification shows the second."""
MAIN_TABLE_PRIORITY = 32766
_ONLINK = 4
"""RTNH_F_ONLINK of linux/rtnetlink.h: no other route has to lead to the next hop."""
_PERMANENT = 0x80
"""NUD_PERMANENT of linux/neighbour.h."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the host's side of the packet path is to be, for one version of IP."""

    device: str
    address: IPv4Address
    table: int
    family: Family = IPV4
    """Of the address and of the next hop."""
    next_hop: str = NEXT_HOP
    """Stands for all guests' keys."""

    def rules(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Both rules, as netlink takes them."""
        common = {"table": self.table, "family": self.family.af}
        source = {"src": str(self.address), "src_len": self.family.bits}
        return (
            {"priority": RULE_FROM, **source, **common},
            {"priority": RULE_OIF, "oifname": self.device, **common},
        )

    def route(self, index: int) -> dict[str, Any]:
        """The default route through the device with that *index*, whatever its next hop is."""
        # Without a family the kernel answers EOPNOTSUPP to a default route of link scope.
        family = self.family.af
        return {"dst": "default", "oif": index, "table": self.table, "family": family}

    def prefix(self) -> dict[str, Any]:
        """The address, as netlink takes it."""
        return {"address": str(self.address), "prefixlen": self.family.bits}


class HostSide:
    """Makes the host's side so, says what it had to do, and can take it away again."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._addresses: frozenset[IPv4Address] = frozenset({wanted.address})
        self._made: dict[str, Callable[[Any], object]] = {}
        """What was made, in words → what takes it away again."""

    def addresses(self) -> frozenset[IPv4Address]:
        """IPv4 addresses that the host had when last looked at; no key may be one of them."""
        return self._addresses

    def ensure(self) -> list[str]:
        """Bring the device up, with its address, its next hop, its route and both rules.

        :return: what had to be done, in words; empty when nothing.
        :raises HostError: when the device is missing or the kernel refuses.
        """
        with self._asking() as ipr:
            index = self._index()
            done = [
                self._ensure_up(ipr, index),
                self._ensure_address(ipr, index),
                self._ensure_neighbour(ipr, index),
                self._ensure_route(ipr, index),
                *(self._ensure_rule(ipr, rule) for rule in self.wanted.rules()),
            ]
            self._addresses = held_addresses()
        return [one for one in done if one]

    def remove(self) -> list[str]:
        """Take the rules and the route away; address and next hop go with the device.

        Another configuration may have had another table or another address: the device's own rule
        names the table, and nothing else may be in it.

        :return: what was taken away, in words.
        :raises HostError: when the kernel refuses.
        """
        done = []
        with self._asking() as ipr:
            for rule in self._left(ipr):
                what = f"rule {rule['priority']}"
                if self._ask(partial(ipr.rule, "del", **rule), what, but=errno.ENOENT):
                    done.append(what)
            with contextlib.suppress(OSError):  # no device, no route through it
                index = socket.if_nametoindex(self.wanted.device)
                if self._routes(ipr, index, self.wanted):
                    self._ask(lambda: ipr.route("del", **self.wanted.route(index)), "route")
                    done.append(f"route in table {self.wanted.table}")
        return done

    def undo(self) -> list[str]:
        """Take away what this process has made, and nothing that was there before it.

        :return: what was taken away, in words.
        :raises HostError: when the kernel does not answer.
        """
        done = []
        with self._asking() as ipr:
            for what, take_away in reversed(self._made.items()):
                # It may have gone together with another.
                with contextlib.suppress(NetlinkError):
                    take_away(ipr)
                    done.append(what)
        self._made.clear()
        return done

    def remove_former(self, former: Wanted) -> list[str]:
        """Take away what was made for another configuration, and is not wanted by this one.

        The former device, where it is another one, takes its address and its route along.

        :return: what was taken away, in words.
        :raises HostError: when the kernel refuses.
        """
        done = []
        with self._asking() as ipr:
            for rule in former.rules():
                if rule not in self.wanted.rules():
                    what = f"rule {rule['priority']}"
                    done.append(self._ask(partial(ipr.rule, "del", **rule), what, but=errno.ENOENT))
            if former.device == self.wanted.device:
                index = self._index()
                if former.table != self.wanted.table and self._routes(ipr, index, former):
                    route = former.route(index)
                    done.append(
                        self._ask(partial(ipr.route, "del", **route), f"route in {former.table}")
                    )
                if former.address != self.wanted.address:
                    done.append(
                        self._ask(
                            partial(ipr.addr, "delete", index=index, **former.prefix()),
                            f"address {former.address}",
                            but=errno.EADDRNOTAVAIL,
                        )
                    )
        return [one for one in done if one]

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Any]:
        try:
            with open_netlink() as ipr:
                yield ipr
        except (OSError, NetlinkError) as error:
            raise HostError(
                what="reading its state", device=self.wanted.device, cause=error
            ) from error

    def _index(self) -> int:
        try:
            return socket.if_nametoindex(self.wanted.device)
        except OSError as error:
            raise HostError(
                what="look-up", device=self.wanted.device, cause="there is no such device"
            ) from error

    def _ensure_up(self, ipr: Any, index: int) -> str:
        if ipr.get_links(index)[0]["flags"] & _IFF_UP:
            return ""
        return self._make(
            "up",
            lambda: ipr.link("set", index=index, state="up"),
            lambda again: again.link("set", index=index, state="down"),
        )

    def _ensure_address(self, ipr: Any, index: int) -> str:
        address = self.wanted.prefix()
        return self._make(
            f"address {self.wanted.address}/{self.wanted.family.bits}",
            lambda: ipr.addr("add", index=index, **address),
            lambda again: again.addr("delete", index=index, **address),
        )

    def _ensure_neighbour(self, ipr: Any, index: int) -> str:
        family, next_hop = self.wanted.family, self.wanted.next_hop
        if has_next_hop(ipr, index, next_hop, family=family):
            return ""
        common = {"family": family.af, "dst": next_hop, "ifindex": index}
        wanted = {"lladdr": NEXT_HOP_MAC, "state": _PERMANENT, **common}
        return self._make(
            f"neighbour {next_hop}",
            lambda: ipr.neigh("replace", **wanted),
            lambda again: again.neigh("delete", **common),
        )

    def _ensure_route(self, ipr: Any, index: int) -> str:
        # One of an earlier dfmeta has no next hop, and is replaced.
        if self.wanted.next_hop in self._routes(ipr, index, self.wanted):
            return ""
        route = self.wanted.route(index)
        new = route | {"gateway": self.wanted.next_hop, "flags": _ONLINK}
        return self._make(
            f"route in table {self.wanted.table}",
            lambda: ipr.route("replace", **new),
            lambda again: again.route("del", **route),
        )

    def _ensure_rule(self, ipr: Any, rule: dict[str, Any]) -> str:
        return self._make(
            f"rule {rule['priority']}",
            partial(ipr.rule, "add", **rule),
            lambda again: again.rule("del", **rule),
        )

    def _routes(self, ipr: Any, index: int, of: Wanted) -> list[str]:
        return default_routes(ipr, index, of.table, family=of.family)

    def _left(self, ipr: Any) -> list[dict[str, Any]]:
        """Rules of ours that are there: those of the device, and those of addresses.

        A rule of another address is ours where the device's own rule names the same table.
        """
        family = self.wanted.family
        common = {"family": family.af}
        found = [
            (one.get_attr("FRA_PRIORITY"), one.get_attr("FRA_TABLE"), one)
            for one in ipr.get_rules(family=family.af)
        ]
        by_device = [
            {"priority": RULE_OIF, "oifname": self.wanted.device, "table": table, **common}
            for priority, table, one in found
            if priority == RULE_OIF and one.get_attr("FRA_OIFNAME") == self.wanted.device
        ]
        tables = {rule["table"] for rule in by_device}
        own = self.wanted.table, str(self.wanted.address)
        by_address = [
            {
                "priority": RULE_FROM,
                "src": one.get_attr("FRA_SRC"),
                "src_len": family.bits,
                "table": table,
                **common,
            }
            for priority, table, one in found
            if priority == RULE_FROM
            and one["src_len"] == family.bits
            and (table in tables or (table, one.get_attr("FRA_SRC")) == own)
        ]
        # The device's own go last: they tell the tables, should this be broken off.
        return by_address + by_device

    def _make(
        self, what: str, request: Callable[[], Any], take_away: Callable[[Any], object]
    ) -> str:
        """As :meth:`_ask`, and remember how to take it away."""
        done = self._ask(request, what)
        if done:
            self._made[what] = take_away
        return done

    def _ask(self, request: Callable[[], Any], what: str, *, but: int = errno.EEXIST) -> str:
        """Have the kernel do it and say *what*; empty where it is so already, which is *but*.

        :raises HostError: when the kernel refuses for another reason.
        """
        try:
            request()
        except NetlinkError as error:
            if error.code == but:
                return ""
            raise HostError(what=what, device=self.wanted.device, cause=error) from error
        return what


def open_netlink() -> Any:
    """Open a routing socket whose dumps the kernel filters (netlink(7), NETLINK_GET_STRICT_CHK).

    :raises OSError: when there is no descriptor for it, or the kernel is older than 4.20.
    """
    return IPRoute(strict_check=True)


def default_routes(ipr: Any, index: int, table: int, *, family: Family = IPV4) -> list[str]:
    """Next hops of the default routes of *table* through that device; empty text for none.

    :param ipr: of :func:`open_netlink`.
    :raises NetlinkError: when the kernel refuses.
    """
    # By numbers: what goes with "dump", pyroute2 from 0.8 on takes for a filter in Python of a dump
    # of all tables, with strict checking as well.
    dump = RTM_GETROUTE, NLM_F_REQUEST | NLM_F_DUMP
    try:
        routes = list(ipr.route(dump, family=family.af, table=table, oif=index))
    except NetlinkError as error:
        if error.code == errno.ENOENT:
            return []  # the table comes into being with its first route
        raise
    return [route.get_attr("RTA_GATEWAY") or "" for route in routes if route["dst_len"] == 0]


def has_next_hop(ipr: Any, index: int, next_hop: str = NEXT_HOP, *, family: Family = IPV4) -> bool:
    """Whether the next hop's MAC is permanent on that device.

    :param next_hop: an address of *family*.
    :raises NetlinkError: when the kernel refuses.
    """
    try:
        (found,) = ipr.neigh("get", family=family.af, dst=next_hop, ifindex=index)
    except NetlinkError as error:
        if error.code == errno.ENOENT:
            return False
        raise
    return bool(found.get_attr("NDA_LLADDR") == NEXT_HOP_MAC and found["state"] == _PERMANENT)


_IFF_UP = 1
