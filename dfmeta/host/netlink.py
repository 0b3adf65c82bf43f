"""Address, neighbour, rules and route of tap-metadata, by netlink. Every ``ensure`` is idempotent.

Why two rules (rtnetlink(7), ip-rule(8)): ``oif`` is the specification's and covers a socket bound
to the device; ``from`` covers every value of rp_filter, whose look-up of the way back to a key has
no output interface.

Why a next hop: keys that were neighbours themselves would each take a place in the kernel's
neighbour table, which holds 1,024 for the whole host unless it is told otherwise (arp(7),
gc_thresh3), and an ARP exchange. Behind one next hop, which is told once and for good, they take
none; the reply flows set the destination MAC anyway.
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
from pyroute2.netlink.exceptions import NetlinkError

from dfmeta.exceptions import HostError
from dfmeta.flows.key import NEXT_HOP, NEXT_HOP_MAC

RULE_FROM = 32764
RULE_OIF = 32765
"""Priorities of our two rules; the specification shows the second."""
MAIN_TABLE_PRIORITY = 32766
_ONLINK = 4
"""RTNH_F_ONLINK of linux/rtnetlink.h: no other route has to lead to the next hop."""
_PERMANENT = 0x80
"""NUD_PERMANENT of linux/neighbour.h."""
_PREFIX_ADDRESS = 32


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the host's side of the packet path is to be."""

    device: str
    address: IPv4Address
    table: int


class HostSide:
    """Makes the host's side so, says what it had to do, and can take it away again."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._addresses: frozenset[IPv4Address] = frozenset({wanted.address})

    def addresses(self) -> frozenset[IPv4Address]:
        """IPv4 addresses that the host had when last looked at; no key may be one of them."""
        return self._addresses

    def ensure(self) -> list[str]:
        """Bring the device up, with its address, its next hop, its route and both rules.

        :return: what had to be done, in words; empty when nothing.
        :raises HostError: when the device is missing or the kernel refuses.
        """
        with self._asking() as ipr:
            index = self._index(ipr)
            done = [
                self._ensure_up(ipr, index),
                self._ensure_address(ipr, index),
                self._ensure_neighbour(ipr, index),
                self._ensure_route(ipr, index),
                *(self._ensure_rule(ipr, rule) for rule in self._rules()),
            ]
            held = (message.get_attr("IFA_LOCAL") for message in ipr.get_addr(family=_INET))
            self._addresses = frozenset(IPv4Address(one) for one in held if one)
        return [one for one in done if one]

    def remove(self) -> list[str]:
        """Take the rules and the route away; address and next hop go with the device.

        :return: what was taken away, in words.
        :raises HostError: when the kernel refuses.
        """
        done = []
        with self._asking() as ipr:
            for rule in self._rules():
                if self._has_rule(ipr, rule):
                    self._ask(partial(ipr.rule, "del", **rule), f"rule {rule['priority']}")
                    done.append(f"rule {rule['priority']}")
            found = ipr.link_lookup(ifname=self.wanted.device)
            if found and default_routes(ipr, found[0], self.wanted.table):
                self._ask(lambda: ipr.route("del", **self._any_route(found[0])), "route")
                done.append(f"route in table {self.wanted.table}")
        return done

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Any]:
        try:
            with IPRoute() as ipr:
                yield ipr
        except NetlinkError as error:
            raise HostError(
                what="reading its state", device=self.wanted.device, cause=error
            ) from error

    def _index(self, ipr: Any) -> int:
        found = ipr.link_lookup(ifname=self.wanted.device)
        if not found:
            raise HostError(
                what="look-up", device=self.wanted.device, cause="there is no such device"
            )
        return int(found[0])

    def _ensure_up(self, ipr: Any, index: int) -> str:
        if ipr.get_links(index)[0]["flags"] & _IFF_UP:
            return ""
        self._ask(lambda: ipr.link("set", index=index, state="up"), "bringing it up")
        return "up"

    def _ensure_address(self, ipr: Any, index: int) -> str:
        address = str(self.wanted.address)
        for message in ipr.get_addr(family=_INET, index=index):
            if message.get_attr("IFA_LOCAL") == address and message["prefixlen"] == 32:
                return ""
        self._ask(
            lambda: ipr.addr("replace", index=index, address=address, prefixlen=_PREFIX_ADDRESS),
            f"address {address}/32",
        )
        return f"address {address}/32"

    def _ensure_neighbour(self, ipr: Any, index: int) -> str:
        if has_next_hop(ipr, index):
            return ""
        wanted = {"dst": NEXT_HOP, "lladdr": NEXT_HOP_MAC, "ifindex": index, "state": _PERMANENT}
        self._ask(lambda: ipr.neigh("replace", family=_INET, **wanted), f"neighbour {NEXT_HOP}")
        return f"neighbour {NEXT_HOP}"

    def _ensure_route(self, ipr: Any, index: int) -> str:
        # One of an earlier dfmeta has no next hop, and is replaced.
        if NEXT_HOP in default_routes(ipr, index, self.wanted.table):
            return ""
        self._ask(lambda: ipr.route("replace", **self._route(index)), "route")
        return f"route in table {self.wanted.table}"

    def _ensure_rule(self, ipr: Any, rule: dict[str, Any]) -> str:
        if self._has_rule(ipr, rule):
            return ""
        self._ask(lambda: ipr.rule("add", **rule), f"rule {rule['priority']}")
        return f"rule {rule['priority']}"

    def _any_route(self, index: int) -> dict[str, Any]:
        # Without a family the kernel answers EOPNOTSUPP to a default route of link scope.
        return {"dst": "default", "oif": index, "table": self.wanted.table, "family": _INET}

    def _route(self, index: int) -> dict[str, Any]:
        return self._any_route(index) | {"gateway": NEXT_HOP, "flags": _ONLINK}

    def _rules(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return (
            {
                "priority": RULE_FROM,
                "src": str(self.wanted.address),
                "src_len": 32,
                "table": self.wanted.table,
                "family": _INET,
            },
            {
                "priority": RULE_OIF,
                "oifname": self.wanted.device,
                "table": self.wanted.table,
                "family": _INET,
            },
        )

    def _has_rule(self, ipr: Any, rule: dict[str, Any]) -> bool:
        return any(
            found.get_attr("FRA_PRIORITY") == rule["priority"]
            and found.get_attr("FRA_TABLE") == rule["table"]
            and found.get_attr("FRA_SRC") == rule.get("src")
            and found.get_attr("FRA_OIFNAME") == rule.get("oifname")
            for found in ipr.get_rules(family=_INET)
        )

    def _ask(self, request: Callable[[], Any], what: str) -> None:
        try:
            request()
        except NetlinkError as error:
            if error.code != errno.EEXIST:
                raise HostError(what=what, device=self.wanted.device, cause=error) from error


def default_routes(ipr: Any, index: int, table: int) -> list[str]:
    """Next hops of the default routes of *table* through that device; empty text for none.

    :raises NetlinkError: when the kernel refuses.
    """
    try:
        routes = list(ipr.get_routes(family=_INET, table=table))
    except NetlinkError as error:
        if error.code == errno.ENOENT:
            return []  # the table comes into being with its first route
        raise
    return [
        route.get_attr("RTA_GATEWAY") or ""
        for route in routes
        if route["dst_len"] == 0
        and route.get_attr("RTA_OIF") == index
        and route.get_attr("RTA_TABLE") == table
    ]


def has_next_hop(ipr: Any, index: int) -> bool:
    """Whether the next hop's MAC is told to that device for good.

    :raises NetlinkError: when the kernel refuses.
    """
    return any(
        one.get_attr("NDA_DST") == NEXT_HOP
        and one.get_attr("NDA_LLADDR") == NEXT_HOP_MAC
        and one["state"] == _PERMANENT
        for one in ipr.get_neighbours(family=_INET, ifindex=index)
    )


_INET = int(socket.AF_INET)
_IFF_UP = 1
