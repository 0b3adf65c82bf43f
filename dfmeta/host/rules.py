"""Routing rules of the kernel (ip-rule(8)): those of others that could take the proxy's packets.

The program of a VPN puts its rules before all others, as ``ip rule add`` without a priority does.
They would send the answers to guests into its own table. What that table has at present does not
count here, since its routes may come later: a rule counts if its selectors may match such a packet.

Trust: rules are of the host's administrator.
"""

import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final

from pyroute2.netlink.rtnl.fibmsg import (
    FR_ACT_GOTO,
    FR_ACT_NOP,
    FR_ACT_TO_TBL,
    FR_ACT_VALUES,
    fibmsg,
)

_HEADER: Final = struct.Struct("=16x8B I")
"""struct nlmsghdr, then struct fib_rule_hdr (linux/fib_rules.h)."""
_ATTRIBUTE: Final = struct.Struct("=HH")
_PAIR: Final = struct.Struct("=II")
_FRA: Final = {
    **{number: name.removeprefix("FRA_") for number, name, _type in fibmsg.nla_map},
    25: "DSCP",
}
"""Attributes (linux/fib_rules.h); pyroute2 does not have the last one."""
_NEVER_OURS: Final = ("TUN_ID", "L3MDEV", "DSCP")
"""Selectors of tunnels, of VRFs and of a class of traffic, which answers to guests do not have."""
_OTHERS: Final = frozenset(
    ["FWMARK", "FWMASK", "IIFNAME", "UID_RANGE", "IP_PROTO", "SPORT_RANGE", "DPORT_RANGE"]
)
"""Selectors that a plain rule does not have, beside these."""
_INVERT: Final = 2
"""FIB_RULE_INVERT."""
_LOCAL, MAIN_TABLE, _COMPAT = 255, 254, 252
_TABLES: Final = {_LOCAL: "local", MAIN_TABLE: "main", 253: "default"}
"""Tables of linux/rtnetlink.h and their names; _COMPAT stands for all above 255."""
_NO_LIMIT: Final = 0xFFFFFFFF
"""FRA_SUPPRESS_PREFIXLEN of a rule without it: -1."""
Network = IPv4Network | IPv6Network


def header_table(table: int) -> int:
    """Return what stands for *table* in the header of a route or rule, which has a byte for it."""
    return table if table <= _LOCAL else _COMPAT


@dataclass(frozen=True, slots=True)
class Packets:
    """The packets from the proxy to guests.

    :ivar source: the proxy's address, as a network of one address.
    :ivar to: network of the guests' keys; None: any address.
    :ivar device: the device by which they are to leave.
    :ivar tables: the tables that lead there.
    """

    source: Network
    to: Network | None
    device: str
    tables: frozenset[int]


class Rule:
    """A rule, as the kernel sends it.

    A host may have a rule for each of thousands of addresses. So the message is read here, which
    takes a tenth of the time that pyroute2's decoder takes.
    """

    __slots__ = (
        *("_attributes", "_data", "action", "dst_len", "family", "flags", "src_len", "table"),
        "tos",
    )

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._attributes: dict[str, bytes] = {}
        self.table = 0
        """The table that it leads to; 0 for another action."""

    def decode(self) -> None:
        """Read the message, as pyroute2's classes do after they are made."""
        data, attributes, unpack, size = self._data, self._attributes, _ATTRIBUTE.unpack_from, 4
        names = _FRA
        self.family, self.dst_len, self.src_len, self.tos, table, _, _, self.action, self.flags = (
            _HEADER.unpack_from(data)
        )
        at, end = _HEADER.size, len(data) - size
        while at <= end:
            length, kind = unpack(data, at)
            attributes[names.get(kind, "")] = data[at + size : at + length]
            at += (length + 3) & ~3 or size
        if self.action == FR_ACT_TO_TBL:
            self.table = self._number("TABLE", table)

    @property
    def priority(self) -> int:
        """Priority; the smallest comes first."""
        return self._number("PRIORITY")

    @property
    def source(self) -> str:
        """Address of its selector ``from``; empty without one."""
        return self._address("SRC") if self.src_len else ""

    @property
    def destination(self) -> str:
        """Network of its selector ``to``; empty without one."""
        return f"{self._address('DST')}/{self.dst_len}" if self.dst_len else ""

    @property
    def output(self) -> str:
        """Device of its selector ``oif``; empty without one."""
        return self._name("OIFNAME")

    @property
    def is_plain(self) -> bool:
        """Whether it has no other selectors than ``from``, ``to`` and ``oif``."""
        return not (
            self.flags & _INVERT
            or self.tos
            or any(map(self._number, _NEVER_OURS))
            or not _OTHERS.isdisjoint(self._attributes)
        )

    def is_of(self, device: str) -> bool:
        """Return whether it leads what leaves by *device* to a table, whatever else it is."""
        return (
            "OIFNAME" in self._attributes
            and self.output == device
            and bool(self.table)
            and self.is_plain
            and not self.source
        )

    def leads(self, wanted: Mapping[str, Any]) -> bool:
        """Return whether it is dfmeta's rule *own*, at any priority.

        :param own: as :meth:`dfmeta.host.rtnetlink.Rtnetlink.rule` takes it.
        """
        return (
            self.table == wanted["table"]
            and self.is_plain
            and (self.source, self.src_len) == (wanted.get("src", ""), wanted.get("src_len", 0))
            and self.destination == wanted.get("dst", "")
            and self.output == wanted.get("oifname", "")
            # A rule that suppresses default routes alone leads to the others.
            and self._number("SUPPRESS_PREFIXLEN", _NO_LIMIT) in (0, _NO_LIMIT)
        )

    def takes(self, packets: Packets, *, before: int) -> bool:
        """Return whether it could send packets to guests elsewhere.

        :param before: priority of dfmeta's rule: one that leads to a rule before that does not.
        """
        if self.action == FR_ACT_NOP or self.table == _LOCAL or self.table in packets.tables:
            return False
        if self.action == FR_ACT_GOTO and self._number("GOTO") <= before:
            return False
        # One with "not" counts whatever it leaves out: to come before it does no harm.
        return bool(self.flags & _INVERT) or all(self._matches(packets))

    def _matches(self, packets: Packets) -> Iterator[bool]:
        """Yield whether each selector may match some of the packets."""
        if self.dst_len and packets.to is not None:
            yield self._overlaps("DST", self.dst_len, packets.to)
        if self.src_len:
            yield self._overlaps("SRC", self.src_len, packets.source)
        if "OIFNAME" in self._attributes:
            yield self.output == packets.device
        if "IIFNAME" in self._attributes:
            # The kernel takes lo for the device on which the host's own packets arrive.
            yield self._name("IIFNAME") == "lo"
        yield not self._number("FWMARK")
        yield not self.tos and not any(map(self._number, _NEVER_OURS))
        if "IP_PROTO" in self._attributes:
            yield self._attributes["IP_PROTO"][0] == socket.IPPROTO_TCP
        if "UID_RANGE" in self._attributes:
            first, last = _PAIR.unpack_from(self._attributes["UID_RANGE"])
            yield first <= os.geteuid() <= last

    def _overlaps(self, kind: str, length: int, packets: Network) -> bool:
        """Return whether addresses of *packets* are in the network of a selector."""
        network = int.from_bytes(self._attributes.get(kind, b""), "big")
        common = packets.max_prefixlen - min(length, packets.prefixlen)
        return not (network ^ int(packets.network_address)) >> common

    def __str__(self) -> str:
        """Return it as ``ip rule show`` does, with the selectors that matter here."""
        return f"{self.priority}: {self.text}"

    @property
    def text(self) -> str:
        """Selectors and target, as ``ip rule show`` has them."""
        words = [*["not"] * bool(self.flags & _INVERT), "from"]
        words.append(f"{self._address('SRC')}/{self.src_len}" if self.src_len else "all")
        if self.dst_len:
            words += ["to", self.destination]
        if self._number("FWMARK") or self._number("FWMASK"):
            words += ["fwmark", hex(self._number("FWMARK"))]
        for kind, name in (("IIFNAME", "iif"), ("OIFNAME", "oif")):
            if kind in self._attributes:
                words += [name, self._name(kind)]
        return " ".join([*words, *self._target()])

    def _target(self) -> list[str]:
        if self.action == FR_ACT_GOTO:
            return ["goto", str(self._number("GOTO"))]
        if self.action != FR_ACT_TO_TBL:
            name = FR_ACT_VALUES.get(self.action, f"action {self.action}")
            return [name.removeprefix("FR_ACT_").lower()]
        words = ["lookup", _TABLES.get(self.table, str(self.table))]
        if self._number("SUPPRESS_PREFIXLEN", _NO_LIMIT) != _NO_LIMIT:
            words += ["suppress_prefixlength", str(self._number("SUPPRESS_PREFIXLEN"))]
        return words

    def _number(self, kind: str, default: int = 0) -> int:
        value = self._attributes.get(kind)
        return default if value is None else int.from_bytes(value, sys.byteorder)

    def _name(self, kind: str) -> str:
        return self._attributes.get(kind, b"").partition(b"\0")[0].decode(errors="replace")

    def _address(self, kind: str) -> str:
        value = self._attributes.get(kind)
        return socket.inet_ntop(self.family, value) if value else "any"


@dataclass(frozen=True, slots=True)
class RulePlan:
    """Changes that bring dfmeta's rules before those of others that could take its packets.

    :ivar add: rules to add.
    :ivar drop: dfmeta's rules that come too late, and are to be removed after that.
    :ivar taker: the first rule of another program that could take its packets; None: there is none.
    :ivar late: dfmeta's rules that it precedes, or preceded if they were there.
    """

    add: list[dict[str, Any]]
    drop: list[dict[str, Any]]
    taker: Rule | None
    late: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def is_return(self) -> bool:
        """Whether it moves rules back to their own priority, or removes those not needed now."""
        return bool(self.drop) and not self.late

    @property
    def contender(self) -> Rule | None:
        """The rule of another program that takes packets to guests now; None: there is none."""
        return self.taker if self.late else None


def plan_of(
    rules: Sequence[Rule],
    wanted: Sequence[Mapping[str, Any]],
    packets: Packets,
    *,
    enough: Mapping[str, Any] | None = None,
) -> RulePlan:
    """Return the changes that *own* rules need.

    Each has its own priority, or comes directly before the rule of another program that could take
    its packets.

    :param rules: all rules, in the order of the kernel.
    :param own: dfmeta's rules with their own priorities.
    :param enough: a rule of the host that makes own rules unnecessary if nothing comes before it.
    """
    # A former configuration may have had another table or device, and its rules go soon. Only
    # dfmeta has rules of its device, and rules from its address with that priority.
    places = {(rule["priority"], rule["src"]) for rule in wanted if "src" in rule}
    former = {
        present.table
        for present in rules
        if present.is_of(packets.device) or (present.priority, present.source) in places
    }
    packets = replace(packets, tables=packets.tables | former)
    first = min(
        (present.priority for present in rules for rule in wanted if present.leads(rule)),
        default=None,
    )
    before = wanted[0]["priority"] if first is None else first
    taker = next((present for present in rules if present.takes(packets, before=before)), None)
    ahead = list(rules if taker is None else rules[: rules.index(taker)])
    plan = RulePlan([], [], taker)
    if enough is not None and any(present.leads(enough) for present in ahead):
        # The table that all programs use is in force.
        plan.drop.extend(
            _at(rule, present) for rule in wanted for present in rules if present.leads(rule)
        )
        return plan
    for rule in wanted:
        _plan_one(plan, rule, [present for present in rules if present.leads(rule)], ahead)
    return plan


def _plan_one(
    plan: RulePlan, rule: Mapping[str, Any], places: Sequence[Rule], ahead: Sequence[Rule]
) -> None:
    """Add the changes to *plan* that one of dfmeta's rules needs.

    :param places: the host's rules that are this one.
    :param ahead: the host's rules before the first one of others that takes packets.
    """
    wanted = _priority_before(plan.taker, rule["priority"])
    good = [place for place in places if place in ahead]
    if wanted == rule["priority"]:
        if all(place.priority != wanted for place in good):
            plan.add.append(dict(rule))
            plan.drop.extend(_at(rule, place) for place in places)
    elif not good:
        plan.late.append(rule)
        if wanted is not None:
            plan.add.append({**rule, "priority": wanted})
            plan.drop.extend(_at(rule, place) for place in places)
        elif not places:
            plan.add.append(dict(rule))


def _at(rule: Mapping[str, Any], place: Rule) -> dict[str, Any]:
    return {**rule, "priority": place.priority}


def _priority_before(taker: Rule | None, priority: int) -> int | None:
    """Return the priority at which a rule precedes *taker*; None: nothing precedes priority 0."""
    if taker is None or taker.priority > priority:
        return priority
    return taker.priority - 1 if taker.priority else None
