"""What nft and iptables print, and whether a guest's connection gets past it.

The rulesets are what nft 1.0.6 and iptables 1.8.9 (nf_tables) printed for rules that were loaded
into a kernel.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.flows.family import IPV6
from dfmeta.flows.key import IN_PORT
from dfmeta.inspect import iptables, nft
from dfmeta.inspect.finding import Status
from dfmeta.inspect.firewall import Filter, Step, Syn, Verdict, fates, judge
from tests.core.unit.inspect.values import SETTINGS

SYN = Syn("tap-metadata", IPv4Address("169.254.169.254"), 18080)
HOST_IP6 = "fd00:a9fe:a9fe:a9fe::a9fe"
SYN6 = Syn("tap-metadata", IPv6Address(HOST_IP6), 18080, IN_PORT.network(6))
ACCEPT, DROP = frozenset({Verdict.ACCEPT}), frozenset({Verdict.DROP})
EITHER = ACCEPT | DROP
WHERE = {"family": "inet", "table": "filter"}


def match(left: Any, right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def dport(value: Any, protocol: str = "tcp") -> dict[str, Any]:
    return match({"payload": {"protocol": protocol, "field": "dport"}}, value)


def saddr(value: Any) -> dict[str, Any]:
    return match({"payload": {"protocol": "ip", "field": "saddr"}}, value)


def meta(key: str, value: Any, op: str = "==") -> dict[str, Any]:
    return match({"meta": {"key": key}}, value, op)


GUESTS = [
    [dport(9), {"return": None}],
    [{"counter": {"packets": 0, "bytes": 0}}, {"drop": None}],
]
ESTABLISHED = match({"ct": {"key": "state"}}, ["established", "related"], "in")
INVALID = {
    "vmap": {
        "key": {"ct": {"key": "state"}},
        "data": {"set": [["invalid", {"drop": None}], ["established", {"accept": None}]]},
    }
}


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


@pytest.mark.parametrize(
    ("rules", "fate"),
    [
        ([], DROP),
        ([[ESTABLISHED, {"accept": None}]], DROP),
        ([[INVALID]], DROP),
        ([[meta("iifname", "lo"), {"accept": None}]], DROP),
        ([[meta("iif", "tap-metadata"), {"accept": None}]], ACCEPT),
        ([[meta("iifname", "eth0", "!="), {"accept": None}]], ACCEPT),
        ([[meta("iifname", {"set": ["eth0", "tap*"]}), {"accept": None}]], ACCEPT),
        ([[meta("iifgroup", 7), {"accept": None}]], EITHER),
        ([[meta("l4proto", "icmp"), {"accept": None}]], DROP),
        ([[meta("l4proto", {"set": ["udp", "tcp"]}), {"accept": None}]], ACCEPT),
        ([[meta("nfproto", "ipv4"), {"accept": None}]], ACCEPT),
        ([[dport(22), {"accept": None}]], DROP),
        ([[dport(18080), {"accept": None}]], ACCEPT),
        ([[dport(18080, "udp"), {"accept": None}]], DROP),
        ([[dport({"set": [22, {"range": [18000, 19000]}]}), {"accept": None}]], ACCEPT),
        ([[dport({"set": [{"elem": {"val": 18080, "timeout": 9}}]}), {"accept": None}]], ACCEPT),
        ([[dport("@ports"), {"counter": None}, {"accept": None}]], ACCEPT),
        ([[dport("@unheard"), {"accept": None}]], EITHER),
        ([[saddr({"prefix": {"addr": "10.0.0.0", "len": 8}}), {"accept": None}]], DROP),
        ([[saddr({"prefix": {"addr": "128.0.0.0", "len": 1}}), {"accept": None}]], ACCEPT),
        ([[saddr({"prefix": {"addr": "128.0.0.0", "len": 8}}), {"accept": None}]], EITHER),
        ([[saddr("odd"), {"accept": None}]], EITHER),
        (
            [
                [
                    match({"payload": {"protocol": "ip", "field": "daddr"}}, "169.254.169.254"),
                    {"accept": None},
                ]
            ],
            ACCEPT,
        ),
        ([[dport(18080), {"limit": {"rate": 5}}, {"accept": None}]], EITHER),
        ([[dport(18080), {"xt": {"type": "match", "name": "comment"}}, {"accept": None}]], EITHER),
        ([[{"xt": {"type": "target", "name": "REJECT"}}]], EITHER),
        ([[dport(18080), {"log": None}], [dport(18080), {"accept": None}]], ACCEPT),
        ([[{"jump": {"target": "guests"}}], [{"accept": None}]], DROP),
        ([[{"goto": {"target": "guests"}}], [{"accept": None}]], DROP),
        ([[meta("iifname", "eth0"), {"jump": {"target": "guests"}}], [{"accept": None}]], ACCEPT),
        ([[{"return": None}], [{"accept": None}]], DROP),
        ([[match({"a": 1}, 1, "<"), {"drop": None}], [{"accept": None}]], EITHER),
        ([[match({"meta": {"key": "iif"}}, "tap-metadata", "<"), {"accept": None}]], EITHER),
        ([[{"reject": {"type": "icmpx", "expr": "port-unreachable"}}]], DROP),
        (
            [
                [
                    {
                        "vmap": {
                            "key": {"payload": {"protocol": "tcp", "field": "dport"}},
                            "data": "@verdicts",
                        }
                    }
                ],
                [{"accept": None}],
            ],
            DROP,
        ),
    ],
)
def test_a_chain_that_drops_what_it_does_not_know(
    rules: list[list[Any]], fate: frozenset[Verdict]
) -> None:
    assert nft_fate(ruleset(*rules)) == fate


def test_a_chain_that_accepts_by_policy_drops_what_its_rules_say() -> None:
    assert nft_fate(ruleset(policy="accept")) == ACCEPT
    assert nft_fate(ruleset([dport(18080), {"drop": None}], policy="accept")) == DROP
    assert nft_fate(ruleset([meta("mark", 1), {"drop": None}], policy="accept")) == EITHER


def test_only_filters_at_the_input_hook_of_ipv4_count() -> None:
    assert nft.read(ruleset(hook="forward"), SYN, but_iptables=False) == ()
    assert nft.read(ruleset(type="nat"), SYN, but_iptables=False) == ()
    assert nft.read(ruleset(family="ip6"), SYN, but_iptables=False) == ()
    kept = ruleset(family="ip", name="INPUT")
    assert len(nft.read(kept, SYN, but_iptables=False)) == 1
    assert nft.read(kept, SYN, but_iptables=True) == ()


@pytest.mark.parametrize(
    "document", [{}, {"nftables": [1]}, {"nftables": [{"rule": {"family": "ip"}}]}]
)
def test_what_is_no_ruleset_is_refused(document: dict[str, Any]) -> None:
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


def iptables_fate(text: str, syn: Syn = SYN) -> frozenset[Verdict]:
    (found,) = iptables.read(text, syn)
    return fates(found)


def test_what_iptables_prints_is_followed_through_its_chains() -> None:
    assert iptables_fate(PRINTED) == ACCEPT
    without = "\n".join(line for line in PRINTED.splitlines() if not line.startswith("-A X"))
    assert iptables_fate(without) == DROP


@pytest.mark.parametrize(
    ("rule", "fate"),
    [
        ("-j ACCEPT", ACCEPT),
        ("-i tap-metadata -j ACCEPT", ACCEPT),
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
        ("-p tcp -m tcp --tcp-flags ACK NONE -j ACCEPT", ACCEPT),
        ("-m limit --limit 5/sec -j ACCEPT", EITHER),
        ("-m set --match-set allowed src -j ACCEPT", EITHER),
        ("-d nonsense -j ACCEPT", EITHER),
        ("-j SOMETHING", EITHER),
        ("-j LOG --log-prefix 'a -j ACCEPT'", DROP),
        ("-j X", DROP),
        ("-g X", DROP),
        ("-j RETURN", DROP),
        ("", DROP),
        ("-m comment --comment 'unbalanced", DROP),
    ],
)
def test_a_rule_of_iptables(rule: str, fate: frozenset[Verdict]) -> None:
    assert iptables_fate(f"-P INPUT DROP\n-N X\n-A INPUT {rule}\n") == fate


def test_iptables_without_an_input_chain_says_nothing() -> None:
    assert iptables.read("", SYN) == ()


@given(st.text())
def test_any_text_is_read_or_passed_over(text: str) -> None:
    iptables.read(f"-P INPUT DROP\n-A INPUT {text}", SYN)


@pytest.mark.parametrize(
    ("syn", "network", "held"),
    [
        (SYN, "0.0.0.0/0", True),
        (SYN, "10.0.0.0/8", False),
        (SYN, "130.0.0.0/8", None),
        (SYN, "::/0", False),
        (SYN6, "::/0", True),
        (SYN6, "fd00::/8", True),
        (SYN6, "fe80::/10", False),
        (SYN6, "fd00:a9fe:a9fe:a9fe:1::/80", None),
        (SYN6, "128.0.0.0/1", False),
    ],
)
def test_a_source_may_be_a_key_in_part(syn: Syn, network: str, held: bool | None) -> None:
    assert syn.is_from(ip_network(network)) is held


# Over IPv6


def of_ip6(name: str, value: Any, op: str = "==") -> dict[str, Any]:
    return match({"payload": {"protocol": "ip6", "field": name}}, value, op)


@pytest.mark.parametrize(
    ("rule", "fate"),
    [
        ([dport(18080)], ACCEPT),
        ([meta("nfproto", "ipv6")], ACCEPT),
        ([meta("nfproto", "ipv4")], DROP),
        ([of_ip6("nexthdr", "tcp")], ACCEPT),
        ([of_ip6("nexthdr", "ipv6-icmp")], DROP),
        ([of_ip6("daddr", HOST_IP6)], ACCEPT),
        ([of_ip6("daddr", "fe80::1")], DROP),
        ([of_ip6("saddr", {"prefix": {"addr": "fd00::", "len": 8}})], ACCEPT),
        ([of_ip6("saddr", "fd00::1", "!=")], ACCEPT),
        ([of_ip6("saddr", {"prefix": {"addr": "fd00:a9fe:a9fe:a9fe:1::", "len": 80}})], EITHER),
        ([of_ip6("hoplimit", 255)], EITHER),
        ([saddr({"prefix": {"addr": "0.0.0.0", "len": 0}})], DROP),
        ([match({"payload": {"protocol": "ip", "field": "saddr"}}, "10.0.0.1", "!=")], DROP),
        ([dport(53, "udp")], DROP),
        ([match({"payload": {"protocol": "udp", "field": "dport"}}, 53, "!=")], DROP),
    ],
)
def test_a_rule_of_nftables_for_ipv6(rule: list[Any], fate: frozenset[Verdict]) -> None:
    assert nft_fate(ruleset([*rule, {"accept": None}]), SYN6) == fate


def test_a_table_for_one_version_is_passed_over_for_the_other() -> None:
    both = ruleset()
    for family in ("ip", "ip6"):
        both["nftables"].append(
            {
                "chain": {
                    "family": family,
                    "table": "filter",
                    "name": "INPUT",
                    "type": "filter",
                    "hook": "input",
                    "policy": "drop",
                }
            }
        )
    for syn, family in ((SYN, "ip"), (SYN6, "ip6")):
        names = [one.name for one in nft.read(both, syn, but_iptables=False)]
        where = f"{family} filter INPUT"
        assert names == ["nftables' chain inet filter input", f"nftables' chain {where}"]
        assert len(nft.read(both, syn, but_iptables=True)) == 1
        (*_, last) = nft.read(both, syn, but_iptables=False)
        assert last.remedy.startswith(f"nft insert rule {where} iifname")


@pytest.mark.parametrize(
    ("rule", "fate"),
    [
        ("-j ACCEPT", ACCEPT),
        ("-p tcp -m tcp --dport 18080 -j ACCEPT", ACCEPT),
        ("-p ipv6-icmp -j ACCEPT", DROP),
        ("-p ipv6-icmp -m icmp6 --icmpv6-type 1 -j ACCEPT", DROP),
        (f"-d {HOST_IP6}/128 -j ACCEPT", ACCEPT),
        ("-d fe80::/64 -p udp -m udp --dport 546 -j ACCEPT", DROP),
        ("-s fd00::/8 -j ACCEPT", ACCEPT),
        ("! -s fe80::/10 -j ACCEPT", ACCEPT),
        ("-m rt --rt-type 0 -j ACCEPT", EITHER),
    ],
)
def test_a_rule_of_ip6tables(rule: str, fate: frozenset[Verdict]) -> None:
    assert iptables_fate(f"-P INPUT DROP\n-A INPUT {rule}\n", SYN6) == fate


def test_ip6tables_is_named_with_its_command() -> None:
    (found,) = iptables.read("-P INPUT DROP\n", SYN6)
    assert found.name == "ip6tables' chain INPUT"
    assert found.remedy == "ip6tables -I INPUT -i tap-metadata -p tcp --dport 18080 -j ACCEPT"
    line = judge((found,), replace(SETTINGS, host_ip6=HOST_IP6).over(IPV6))
    assert line.status is Status.WRONG
    assert "drops TCP over IPv6 to port 18080" in line.text


def one(*steps: Step, policy: Verdict = Verdict.DROP) -> Filter:
    return Filter("chain a", "a", policy, {"a": steps}, "let it in")


def test_one_filter_that_drops_is_enough() -> None:
    assert judge(None, SETTINGS).status is Status.UNKNOWN
    allowed = judge((), SETTINGS)
    assert allowed.status is Status.OK
    # Other hooks are not read, and nothing is said of them.
    assert allowed.text == (
        "no rule of the input chains that doctor can parse drops TCP to port 18080 that comes in "
        "on tap-metadata"
    )
    found = judge((one(Step(True, Verdict.ACCEPT)), one()), SETTINGS)
    assert found.status is Status.WRONG
    assert found.text == "chain a drops TCP to port 18080 that comes in on tap-metadata"
    assert found.remedy.startswith("`let it in`")
    unsure = judge((one(Step(None, Verdict.ACCEPT)),), SETTINGS)
    assert unsure.status is Status.UNKNOWN
    assert "cannot decide whether chain a accepts" in unsure.text
