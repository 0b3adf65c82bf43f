"""What nft and iptables print, and whether a guest's connection gets past it.

The rulesets are what nft 1.0.6 and iptables 1.8.9 (nf_tables) printed for rules that were loaded
into a kernel.
"""

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.doctor import iptables, nft
from dfmeta.doctor.firewall import Filter, Step, Syn, Verdict, fates, judge
from dfmeta.flows.family import IPV6
from dfmeta.identity.key import IN_PORT
from tests.core.unit.doctor.values import OK, SETTINGS, UNKNOWN, WRONG, expect

SYN = Syn("tap-metadata", IPv4Address("169.254.169.254"), 18080)
HOST_IP6 = "fd00:a9fe:a9fe:a9fe::a9fe"
SYN6 = Syn("tap-metadata", IPv6Address(HOST_IP6), 18080, IN_PORT.network(6))
ACCEPT, DROP = frozenset({Verdict.ACCEPT}), frozenset({Verdict.DROP})
EITHER = ACCEPT | DROP
WHERE = {"family": "inet", "table": "filter"}


def match(left: Any, right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def payload(protocol: str, field: str, value: Any, op: str = "==") -> dict[str, Any]:
    return match({"payload": {"protocol": protocol, "field": field}}, value, op)


def dport(value: Any, protocol: str = "tcp") -> dict[str, Any]:
    return payload(protocol, "dport", value)


def saddr(value: Any) -> dict[str, Any]:
    return payload("ip", "saddr", value)


def meta(key: str, value: Any, op: str = "==") -> dict[str, Any]:
    return match({"meta": {"key": key}}, value, op)


def network(address: str, length: int) -> dict[str, Any]:
    return {"prefix": {"addr": address, "len": length}}


YES: dict[str, Any] = {"accept": None}
NO: dict[str, Any] = {"drop": None}
GUESTS = [[dport(9), {"return": None}], [{"counter": {"packets": 0, "bytes": 0}}, NO]]
ESTABLISHED = match({"ct": {"key": "state"}}, ["established", "related"], "in")
STATES = {"set": [["invalid", NO], ["established", YES]]}
INVALID = {"vmap": {"key": {"ct": {"key": "state"}}, "data": STATES}}
PORT_KEY = {"payload": {"protocol": "tcp", "field": "dport"}}


def ruleset(*rules: list[Any], policy: str = "drop", **chain: Any) -> dict[str, Any]:
    base = {"name": "input", "type": "filter", "hook": "input", "prio": 0, "policy": policy}
    items: list[dict[str, Any]] = [
        {"metainfo": {"version": "1.0.6"}},
        {"table": {"family": "inet", "name": "filter", "handle": 1}},
        {"set": WHERE | {"name": "ports", "type": "inet_service", "elem": [22, 18080]}},
        {"map": WHERE | {"name": "verdicts", "elem": [[18080, {"jump": {"target": "guests"}}]]}},
        {"chain": WHERE | base | chain},
        {"chain": WHERE | {"name": "guests"}},
        {"chain": {"family": "ip6", "table": "filter", "name": "input6", "hook": "input"}},
    ]
    items += [{"rule": WHERE | {"chain": "guests", "expr": rule}} for rule in GUESTS]
    items += [{"rule": WHERE | {"chain": "input", "expr": list(rule)}} for rule in rules]
    return {"nftables": items}


def nft_fate(document: dict[str, Any], syn: Syn = SYN) -> frozenset[Verdict]:
    found = nft.read(document, syn, but_iptables=False)
    return fates(found[0])


ACCEPTING: list[tuple[list[dict[str, Any]], frozenset[Verdict]]] = [
    ([ESTABLISHED], DROP),
    ([meta("iif", "tap-metadata")], ACCEPT),
    ([meta("iifname", "eth0", "!=")], ACCEPT),
    ([meta("iifname", {"set": ["eth0", "tap*"]})], ACCEPT),
    ([meta("iifgroup", 7)], EITHER),
    ([meta("iif", "tap-metadata", "<")], EITHER),
    ([meta("l4proto", "icmp")], DROP),
    ([meta("l4proto", {"set": ["udp", "tcp"]})], ACCEPT),
    ([meta("nfproto", "ipv4")], ACCEPT),
    ([dport(18080)], ACCEPT),
    ([dport(18080, "udp")], DROP),
    ([dport({"set": [22, {"range": [18000, 19000]}]})], ACCEPT),
    ([dport("@ports"), {"counter": None}], ACCEPT),
    ([dport("@unheard")], EITHER),
    ([saddr(network("10.0.0.0", 8))], DROP),
    ([saddr(network("128.0.0.0", 1))], ACCEPT),
    ([saddr(network("128.0.0.0", 8))], EITHER),
    ([payload("ip", "daddr", "169.254.169.254")], ACCEPT),
    ([dport(18080), {"limit": {"rate": 5}}], EITHER),
    ([dport(18080), {"xt": {"type": "match", "name": "comment"}}], EITHER),
]
"""Matches of a rule that accepts in a chain that drops, and the fate of a SYN."""
ACCEPTING6: list[tuple[list[dict[str, Any]], frozenset[Verdict]]] = [
    ([meta("nfproto", "ipv6")], ACCEPT),
    ([meta("nfproto", "ipv4")], DROP),
    ([payload("ip6", "nexthdr", "tcp")], ACCEPT),
    ([payload("ip6", "nexthdr", "ipv6-icmp")], DROP),
    ([payload("ip6", "daddr", HOST_IP6)], ACCEPT),
    ([payload("ip6", "saddr", network("fd00::", 8))], ACCEPT),
    ([payload("ip6", "saddr", "fd00::1", "!=")], ACCEPT),
    ([payload("ip6", "saddr", network("fd00:a9fe:a9fe:a9fe:1::", 80))], EITHER),
    ([payload("ip6", "hoplimit", 255)], EITHER),
    ([saddr(network("0.0.0.0", 0))], DROP),
    ([payload("ip", "saddr", "10.0.0.1", "!=")], DROP),
    ([payload("udp", "dport", 53, "!=")], DROP),
]
CHAINS: list[tuple[list[list[dict[str, Any]]], frozenset[Verdict]]] = [
    ([], DROP),
    ([[INVALID]], DROP),
    ([[{"xt": {"type": "target", "name": "REJECT"}}]], EITHER),
    ([[dport(18080), {"log": None}], [dport(18080), YES]], ACCEPT),
    ([[{"jump": {"target": "guests"}}], [YES]], DROP),
    ([[{"goto": {"target": "guests"}}], [YES]], DROP),
    ([[meta("iifname", "eth0"), {"jump": {"target": "guests"}}], [YES]], ACCEPT),
    ([[{"return": None}], [YES]], DROP),
    ([[match({"a": 1}, 1, "<"), NO], [YES]], EITHER),
    ([[{"reject": {"type": "icmpx", "expr": "port-unreachable"}}]], DROP),
    ([[{"vmap": {"key": PORT_KEY, "data": "@verdicts"}}], [YES]], DROP),
]
"""Rules of a chain that drops."""


def test_chain_of_nftables_decides_as_the_kernel_does() -> None:
    for rows, syn in ((ACCEPTING, SYN), (ACCEPTING6, SYN6)):
        for matches, fate in rows:
            assert nft_fate(ruleset([*matches, YES]), syn) == fate, matches
    for rules, fate in CHAINS:
        assert nft_fate(ruleset(*rules)) == fate, rules
    for rules, fate in (
        ([], ACCEPT),
        ([[dport(18080), NO]], DROP),
        ([[meta("mark", 1), NO]], EITHER),
    ):
        assert nft_fate(ruleset(*rules, policy="accept")) == fate, rules


def test_filters_at_the_input_hook_of_the_version_count_alone() -> None:
    for chain in ({"hook": "forward"}, {"type": "nat"}, {"family": "ip6"}):
        assert nft.read(ruleset(**chain), SYN, but_iptables=False) == ()
    kept = ruleset(family="ip", name="INPUT")
    assert len(nft.read(kept, SYN, but_iptables=False)) == 1
    assert nft.read(kept, SYN, but_iptables=True) == ()
    both = ruleset()
    chain = {"table": "filter", "name": "INPUT", "type": "filter", "hook": "input"}
    for family in ("ip", "ip6"):
        both["nftables"].append({"chain": {"family": family, "policy": "drop"} | chain})
    for syn, family in ((SYN, "ip"), (SYN6, "ip6")):
        where = f"{family} filter INPUT"
        found = nft.read(both, syn, but_iptables=False)
        names = ["nftables' chain inet filter input", f"nftables' chain {where}"]
        assert [one.name for one in found] == names
        assert found[-1].remedy.startswith(f"nft insert rule {where} iifname")
        assert len(nft.read(both, syn, but_iptables=True)) == 1
    odd: list[dict[str, Any]] = [{}, {"nftables": [1]}, {"nftables": [{"rule": {"family": "ip"}}]}]
    for document in odd:
        with pytest.raises(ValueError, match="not a ruleset"):
            nft.read(document, SYN, but_iptables=False)


PRINTED = """\
-P INPUT DROP
-P FORWARD ACCEPT
-P OUTPUT ACCEPT
-N X
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A INPUT -i tap+ -j X
-A INPUT -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j REJECT --reject-with tcp-reset
-A INPUT ! -i eth0 -p tcp -m tcp --dport 1000:20000 -j LOG
-A X -d 169.254.169.254/32 -p tcp -m multiport --dports 80,18080 \
-m comment --comment "a b" -j ACCEPT
"""
RULES = [
    ("-j ACCEPT", ACCEPT),
    ("! -i tap-metadata -j ACCEPT", DROP),
    ("-p udp -m udp --dport 18080 -j ACCEPT", DROP),
    ("-p tcp -m tcp --dport :20000 -j ACCEPT", ACCEPT),
    ("-p tcp -m tcp --dport 18081: -j ACCEPT", DROP),
    ("-p tcp -m tcp ! --dport 22 -j ACCEPT", ACCEPT),
    ("-s 10.0.0.0/8 -j ACCEPT", DROP),
    ("-s 128.0.0.0/8 -j ACCEPT", EITHER),
    ("-m conntrack --ctstate NEW -j ACCEPT", ACCEPT),
    ("-m state --state INVALID -j ACCEPT", DROP),
    ("-p tcp -m tcp --tcp-flags SYN,ACK SYN -j ACCEPT", ACCEPT),
    ("-p tcp -m tcp --tcp-flags SYN,ACK SYN,ACK -j ACCEPT", DROP),
    ("-m limit --limit 5/sec -j ACCEPT", EITHER),
    ("-m set --match-set allowed src -j ACCEPT", EITHER),
    ("-j SOMETHING", EITHER),
    ("-j LOG --log-prefix 'a -j ACCEPT'", DROP),
    ("-g X", DROP),
    ("-j RETURN", DROP),
    ("", DROP),
    ("-m comment --comment 'unbalanced", DROP),
]
RULES6 = [
    ("-p tcp -m tcp --dport 18080 -j ACCEPT", ACCEPT),
    ("-p ipv6-icmp -j ACCEPT", DROP),
    ("-p ipv6-icmp -m icmp6 --icmpv6-type 1 -j ACCEPT", DROP),
    (f"-d {HOST_IP6}/128 -j ACCEPT", ACCEPT),
    ("-d fe80::/64 -p udp -m udp --dport 546 -j ACCEPT", DROP),
    ("! -s fe80::/10 -j ACCEPT", ACCEPT),
]


def iptables_fate(text: str, syn: Syn = SYN) -> frozenset[Verdict]:
    (found,) = iptables.read(text, syn)
    return fates(found)


def test_chains_of_iptables_are_followed() -> None:
    assert iptables_fate(PRINTED) == ACCEPT
    without = "\n".join(line for line in PRINTED.splitlines() if not line.startswith("-A X"))
    assert iptables_fate(without) == DROP
    for rows, syn in ((RULES, SYN), (RULES6, SYN6)):
        for rule, fate in rows:
            text = f"-P INPUT DROP\n-N X\n-A INPUT {rule}\n"
            assert iptables_fate(text, syn) == fate, rule
    assert iptables.read("", SYN) == ()


@given(st.text())
def test_any_text_is_read_or_passed_over(text: str) -> None:
    iptables.read(f"-P INPUT DROP\n-A INPUT {text}", SYN)


def test_filter_that_drops_is_a_fault_whatever_others_do() -> None:
    def chain(*steps: Step) -> Filter:
        return Filter("chain a", "a", Verdict.DROP, {"a": steps}, "let it in")

    (ip6tables,) = iptables.read("-P INPUT DROP\n", SYN6)
    assert ip6tables.name == "ip6tables' chain INPUT"
    insert = "`ip6tables -I INPUT -i tap-metadata -p tcp --dport 18080 -j ACCEPT`"
    over6 = replace(SETTINGS, host_ip6=HOST_IP6).over(IPV6)
    accepting, unsure = chain(Step(True, Verdict.ACCEPT)), chain(Step(None, Verdict.ACCEPT))
    drops = "chain a drops TCP to port 18080 that comes in on tap-metadata"
    # Other hooks are not read, and nothing is said of them.
    none = "no rule of the input chains that doctor can parse drops TCP to port 18080 that comes in"
    expect(
        [
            (judge(None, SETTINGS), UNKNOWN, ""),
            (judge((), SETTINGS), OK, f"{none} on tap-metadata"),
            (judge((accepting, chain()), SETTINGS), WRONG, drops, "`let it in`"),
            (judge((unsure,), SETTINGS), UNKNOWN, "cannot decide whether chain a accepts"),
            (judge((ip6tables,), over6), WRONG, "drops TCP over IPv6 to port 18080", insert),
        ]
    )
