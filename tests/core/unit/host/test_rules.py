"""dfmeta's rules come before those of others that could take packets to guests, and no others."""

import os
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

import pytest
from pyroute2.netlink.rtnl.fibmsg import fibmsg

from dfmeta.host.rules import Packets, Rule, plan_of

SOURCE = "169.254.169.254"
FROM = {"priority": 32764, "src": SOURCE, "src_len": 32, "table": 2, "family": 2}
OIF = {"priority": 32765, "oifname": "tap-metadata", "table": 2, "family": 2}
OWN = (FROM, OIF)
PACKETS = Packets(IPv4Network(SOURCE), IPv4Network("128.0.0.0/1"), "tap-metadata", frozenset({2}))
BY_MAIN = {"priority": 32765, "dst": "198.18.0.0/15", "table": 254, "family": 2}
MAIN = {"table": 254}
INVERT, GOTO, NOP, UNREACHABLE = 2, 2, 3, 7
RANGE = "1:9"


def rule(priority: int, table: int = 52, *, action: int = 1, flags: int = 0, **fields: Any) -> Rule:
    """Return a rule as the kernel sends it: a field of the header, or an attribute."""
    message = fibmsg()
    message["family"], message["action"], message["flags"] = fields.pop("family", 2), action, flags
    message["table"] = table if table < 256 else 252
    attributes: list[tuple[str, Any]] = [("FRA_PRIORITY", priority), ("FRA_TABLE", table)]
    for name, value in fields.items():
        if name in ("src_len", "dst_len", "tos"):
            message[name] = value
        else:
            attributes.append((f"FRA_{name.upper()}", value))
    message["attrs"] = attributes
    message.encode()
    made = Rule(bytes(message.data))
    made.decode()
    return made


def own(priority: int, *, table: int = 2) -> list[Rule]:
    return [
        rule(priority, table, src=SOURCE, src_len=32),
        rule(priority, table, oifname="tap-metadata"),
    ]


LOCAL, OF_MAIN = rule(0, 255), rule(32766, 254)
AT_REST = [own(32764)[0], own(32765)[1]]
TAKERS = {
    "exit node": rule(5270, 52),
    "wg-quick": rule(32763, 51820, flags=INVERT, fwmark=51820, fwmask=0xFFFFFFFF),
    "large table": rule(32763, 51820),
    "main table": rule(100, 254, suppress_prefixlen=0),
    "source": rule(9, src="169.254.0.0", src_len=16),
    "keys of some": rule(9, dst="128.0.0.0", dst_len=16),
    "all addresses of that half": rule(9, dst="128.0.0.0", dst_len=1),
    "unreachable": rule(9, 0, action=UNREACHABLE),
    "goto": rule(9, 0, action=GOTO, goto=32766),
    "own packets": rule(9, iifname="lo"),
    "the device": rule(9, 0, oifname="tap-metadata", action=UNREACHABLE),
    "TCP": rule(9, ip_proto=6),
    "source port": rule(9, sport_range=RANGE),
    "unmarked": rule(9, fwmark=0, fwmask=0xFF),
    "own user": rule(9, uid_range=f"{os.geteuid()}:{os.geteuid()}"),
    "not another source": rule(9, flags=INVERT, src="10.0.0.0", src_len=8),
}
UNRELATED = {
    "fwmark": rule(9, fwmark=0x200, fwmask=0xF00),
    "another source": rule(9, src="169.254.169.253", src_len=32),
    "another destination": rule(9, dst="10.0.0.0", dst_len=8),
    "another device": rule(9, oifname="eth0"),
    "arriving packets": rule(9, iifname="eth0"),
    "UDP": rule(9, ip_proto=17),
    "class": rule(9, tos=0x10),
    "tunnel": rule(9, tun_id=7),
    "VRF": rule(1000, 0, l3mdev=1),
    "another user": rule(9, uid_range=f"{os.geteuid() + 1}:{os.geteuid() + 1}"),
    "local table": rule(100, 255),
    "own table": rule(9, 2),
    "nop": rule(9, 0, action=NOP),
    "goto before": rule(9, 0, action=GOTO, goto=100),
}


@pytest.mark.parametrize("kind", TAKERS)
def test_rules_move_before_one_that_could_take_packets(kind: str) -> None:
    taker = TAKERS[kind]
    plan = plan_of([LOCAL, taker, *AT_REST, OF_MAIN], OWN, PACKETS)
    assert plan.contender is taker
    assert plan.add == [rule | {"priority": taker.priority - 1} for rule in OWN]
    assert plan.drop == [*OWN]
    moved = own(taker.priority - 1)
    for present in ([LOCAL, *moved, taker, OF_MAIN], [LOCAL, *moved, taker, *AT_REST, OF_MAIN]):
        plan = plan_of(present, OWN, PACKETS)
        assert (plan.add, plan.drop, plan.contender) == ([], [], None)


@pytest.mark.parametrize("kind", UNRELATED)
def test_rules_stay_behind_one_that_takes_no_packet(kind: str) -> None:
    plan = plan_of([LOCAL, UNRELATED[kind], *AT_REST, OF_MAIN], OWN, PACKETS)
    assert (plan.add, plan.drop, plan.contender) == ([], [], None)


def test_missing_rules_are_added_at_their_priority_or_before_a_taker() -> None:
    assert plan_of([LOCAL, OF_MAIN], OWN, PACKETS).add == [*OWN]
    assert plan_of([LOCAL, AT_REST[0], OF_MAIN], OWN, PACKETS).add == [OIF]
    late = plan_of([LOCAL, rule(7), OF_MAIN], OWN, PACKETS)
    assert (late.add, late.drop) == ([rule | {"priority": 6} for rule in OWN], [])


def test_nothing_precedes_the_first_priority() -> None:
    plan = plan_of([LOCAL, rule(0), *AT_REST, OF_MAIN], OWN, PACKETS)
    assert (plan.add, plan.drop) == ([], [])
    assert plan.contender is not None
    assert plan_of([LOCAL, rule(0), OF_MAIN], OWN, PACKETS).add == [*OWN]
    assert plan_of([LOCAL, rule(1), OF_MAIN], OWN, PACKETS).add[0]["priority"] == 0


def test_rules_move_back_when_the_taker_is_gone() -> None:
    plan = plan_of([LOCAL, *own(5269), OF_MAIN], OWN, PACKETS)
    assert plan.add == [*OWN]
    assert plan.drop == [rule | {"priority": 5269} for rule in OWN]
    assert plan.contender is None


def test_rules_of_a_former_table_or_device_take_nothing() -> None:
    of_device = rule(32765, 300, oifname="tap-former")
    for former in (own(32764, table=300), [own(32764, table=300)[0], of_device]):
        plan = plan_of([LOCAL, *former, OF_MAIN], OWN, PACKETS)
        assert (plan.add, plan.contender) == ([*OWN], None)


def test_a_route_of_the_main_table_needs_a_rule_only_behind_a_taker() -> None:
    packets = Packets(
        ip_network("198.18.0.1"), ip_network("198.18.0.0/15"), "tap-meta", frozenset({254})
    )
    at_rest = plan_of([LOCAL, OF_MAIN], [BY_MAIN], packets, enough=MAIN)
    assert (at_rest.add, at_rest.drop, at_rest.contender) == ([], [], None)
    late = plan_of([LOCAL, rule(5270), OF_MAIN], [BY_MAIN], packets, enough=MAIN)
    assert late.add == [BY_MAIN | {"priority": 5269}]
    by_wg_quick = [LOCAL, TAKERS["main table"], rule(5270), OF_MAIN]
    assert plan_of(by_wg_quick, [BY_MAIN], packets, enough=MAIN).add == []
    ahead = rule(5269, 254, dst="198.18.0.0", dst_len=15)
    stays = plan_of([LOCAL, ahead, rule(5270), OF_MAIN], [BY_MAIN], packets, enough=MAIN)
    assert (stays.add, stays.drop, stays.contender) == ([], [], None)
    gone = plan_of([LOCAL, ahead, OF_MAIN], [BY_MAIN], packets, enough=MAIN)
    assert (gone.add, gone.drop) == ([], [BY_MAIN | {"priority": 5269}])


def test_selectors_of_ipv6_are_those_of_its_keys() -> None:
    key = IPv6Network("fd00:a9fe:a9fe:a9fe::/64")
    packets = Packets(ip_network("fd00::1"), key, "tap-metadata", frozenset({2}))
    for to, length, takes in (("fd00::", 8, True), ("2001:db8::", 32, False)):
        taker = rule(9, family=10, dst=to, dst_len=length)
        assert taker.takes(packets, before=32764) is takes
        assert str(taker) == f"9: from all to {to}/{length} lookup 52"


def test_text_is_that_of_ip_rule() -> None:
    for kind, text in (
        ("exit node", "5270: from all lookup 52"),
        ("wg-quick", "32763: not from all fwmark 0xca6c lookup 51820"),
        ("main table", "100: from all lookup main suppress_prefixlength 0"),
        ("source", "9: from 169.254.0.0/16 lookup 52"),
        ("unreachable", "9: from all unreachable"),
        ("goto", "9: from all goto 32766"),
        ("own packets", "9: from all iif lo lookup 52"),
    ):
        assert str(TAKERS[kind]) == text
