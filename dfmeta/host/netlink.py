"""Address, rules and route of tap-metadata, by netlink. Every ``ensure`` is idempotent.

Why two rules (rtnetlink(7), ip-rule(8)): ``oif`` is the specification's and covers a socket bound
to the device; ``from`` covers every value of rp_filter, whose look-up of the way back to a key has
no output interface.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from dfmeta.exceptions import HostError

RULE_FROM = 32764
RULE_OIF = 32765
"""Priorities of our two rules; the specification shows the second."""
MAIN_TABLE_PRIORITY = 32766
_LINK_SCOPE = 253
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
        """Bring the device up, with its address, its route and both rules.

        :return: what had to be done, in words; empty when nothing.
        :raises HostError: when the device is missing or the kernel refuses.
        """
        with IPRoute() as ipr:
            index = self._index(ipr)
            done = [
                self._ensure_up(ipr, index),
                self._ensure_address(ipr, index),
                self._ensure_route(ipr, index),
                *(self._ensure_rule(ipr, rule) for rule in self._rules()),
            ]
            held = (message.get_attr("IFA_LOCAL") for message in ipr.get_addr(family=_INET))
            self._addresses = frozenset(IPv4Address(one) for one in held if one)
        return [one for one in done if one]

    def remove(self) -> list[str]:
        """Take the rules and the route away; the address goes with the device.

        :return: what was taken away, in words.
        :raises HostError: when the kernel refuses.
        """
        done = []
        with IPRoute() as ipr:
            for rule in self._rules():
                if self._has_rule(ipr, rule):
                    self._ask(partial(ipr.rule, "del", **rule), f"rule {rule['priority']}")
                    done.append(f"rule {rule['priority']}")
            found = ipr.link_lookup(ifname=self.wanted.device)
            if found and self._has_route(ipr, found[0]):
                self._ask(lambda: ipr.route("del", **self._route(found[0])), "route")
                done.append(f"route in table {self.wanted.table}")
        return done

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

    def _ensure_route(self, ipr: Any, index: int) -> str:
        if self._has_route(ipr, index):
            return ""
        self._ask(lambda: ipr.route("replace", **self._route(index)), "route")
        return f"route in table {self.wanted.table}"

    def _ensure_rule(self, ipr: Any, rule: dict[str, Any]) -> str:
        if self._has_rule(ipr, rule):
            return ""
        self._ask(lambda: ipr.rule("add", **rule), f"rule {rule['priority']}")
        return f"rule {rule['priority']}"

    def _route(self, index: int) -> dict[str, Any]:
        # Without a family the kernel answers EOPNOTSUPP to a default route of link scope.
        return {
            "dst": "default",
            "oif": index,
            "table": self.wanted.table,
            "scope": _LINK_SCOPE,
            "family": _INET,
        }

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

    def _has_route(self, ipr: Any, index: int) -> bool:
        try:
            routes = list(ipr.get_routes(family=_INET, table=self.wanted.table))
        except NetlinkError as error:
            if error.code == errno.ENOENT:
                return False  # the table comes into being with its first route
            raise HostError(
                what="reading routes", device=self.wanted.device, cause=error
            ) from error
        return any(
            route["dst_len"] == 0
            and route.get_attr("RTA_OIF") == index
            and route.get_attr("RTA_TABLE") == self.wanted.table
            for route in routes
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


_INET = int(socket.AF_INET)
_IFF_UP = 1
