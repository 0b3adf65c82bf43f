"""Parse the output of ``nft -j list ruleset`` (libnftables-json(5)). Pure.

An expression that this module does not know counts as undecided.

Trust: the operator's own firewall; it may contain anything that nft can write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any, Final

from dfmeta.doctor.firewall import Filter, Network, Step, Syn, Verdict

_FAMILY: Final[Mapping[int, str]] = {4: "ip", 6: "ip6"}
"""Version of IP → family of the tables for it, which is also the name of its header."""
_BOTH: Final = "inet"
_NFPROTO: Final[Mapping[int, tuple[object, ...]]] = {4: ("ipv4", 2), 6: ("ipv6", 10)}
_PROTOCOL: Final[Mapping[int, str]] = {4: "protocol", 6: "nexthdr"}
"""Version of IP → field of its header with the transport protocol."""
_VERDICTS = {
    "accept": Verdict.ACCEPT,
    "drop": Verdict.DROP,
    "reject": Verdict.DROP,
    "return": Verdict.RETURN,
    "jump": Verdict.JUMP,
    "goto": Verdict.GOTO,
}
_HARMLESS = frozenset(
    {"counter", "log", "mangle", "comment", "notrack", "ct helper", "set", "last"}
)
_TCP = "tcp"
_TRANSPORTS = frozenset({"tcp", "th"})
_OTHERS = frozenset({"udp", "icmp", "icmpv6", "sctp", "udplite", "dccp", "esp", "ah", "comp"})
"""Headers that a TCP SYN does not have."""

_Key = tuple[str, str]


@dataclass(slots=True)
class _Ruleset:
    chains: dict[_Key, dict[str, list[Sequence[Any]]]] = field(default_factory=dict)
    """Family and table → chain → expressions of each rule."""
    bases: list[Mapping[str, Any]] = field(default_factory=list)
    sets: dict[_Key, dict[str, Any]] = field(default_factory=dict)


def read(document: Mapping[str, Any], syn: Syn, *, but_iptables: bool) -> tuple[Filter, ...]:
    """Read the filters that *syn* passes through.

    :param document: the parsed JSON.
    :param but_iptables: leave out iptables' own chain in nft, which ``iptables -S`` shows better.
    :raises ValueError: if *document* is not a ruleset.
    """
    ruleset = _sort(document, (_FAMILY[syn.version], _BOTH))
    filters = []
    for base in ruleset.bases:
        key, name = (base["family"], base["table"]), base["name"]
        if but_iptables and (*key, name) == (_FAMILY[syn.version], "filter", "INPUT"):
            continue
        steps = {
            chain: tuple(_step(rule, syn, ruleset.sets.get(key, {})) for rule in rules)
            for chain, rules in ruleset.chains.get(key, {}).items()
        }
        where = f"{key[0]} {key[1]} {name}"
        filters.append(
            Filter(
                name=f"nftables' chain {where}",
                start=name,
                policy=Verdict.DROP if base.get("policy") == "drop" else Verdict.ACCEPT,
                chains=steps,
                remedy=f"nft insert rule {where} iifname {syn.device} tcp dport {syn.port} accept",
            )
        )
    return tuple(filters)


def _sort(document: Mapping[str, Any], families: Collection[str]) -> _Ruleset:
    ruleset = _Ruleset()
    try:
        for item in document["nftables"]:
            ((kind, body),) = item.items()
            if body.get("family") not in families:
                continue
            key = (body["family"], body.get("table", ""))
            if kind == "chain":
                ruleset.chains.setdefault(key, {}).setdefault(body["name"], [])
                if body.get("hook") == "input" and body.get("type") == "filter":
                    ruleset.bases.append(body)
            elif kind == "rule":
                ruleset.chains.setdefault(key, {}).setdefault(body["chain"], []).append(
                    body["expr"]
                )
            elif kind in ("set", "map"):
                ruleset.sets.setdefault(key, {})[body["name"]] = body.get("elem", [])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a ruleset of nft: {error}") from error
    return ruleset


def _step(expressions: Sequence[Any], syn: Syn, sets: Mapping[str, Any]) -> Step:
    holds: bool | None = True
    for expression in expressions:
        ((kind, body),) = expression.items()
        if kind == "match":
            holds = _and(holds, _match(body, syn, sets))
        elif kind == "vmap":
            return _vmap(holds, body, syn, sets)
        elif kind in _VERDICTS:
            target = body["target"] if kind in ("jump", "goto") else ""
            return Step(holds, _VERDICTS[kind], target)
        elif kind == "xt" and body and body.get("type") == "target":
            return Step(holds, Verdict.ANYTHING)
        elif kind not in _HARMLESS:
            holds = _and(holds, None)  # a rate limit, for example
    return Step(holds, Verdict.NOTHING)


def _vmap(holds: bool | None, body: Any, syn: Syn, sets: Mapping[str, Any]) -> Step:
    data = body.get("data")
    pairs = data.get("set", []) if isinstance(data, dict) else sets.get(str(data)[1:], [])
    for element, verdict in pairs:
        ((kind, target),) = verdict.items()
        hit = _holds(body.get("key"), element, syn, sets)
        if hit is None or kind not in _VERDICTS:
            return Step(_and(holds, hit), Verdict.ANYTHING)
        if hit:
            return Step(holds, _VERDICTS[kind], (target or {}).get("target", ""))
    return Step(holds, Verdict.NOTHING)


def _match(body: Any, syn: Syn, sets: Mapping[str, Any]) -> bool | None:
    if _is_of_others(body.get("left"), syn):
        return False  # whatever the operator: nft compares only what the packet has
    held = _holds(body.get("left"), body.get("right"), syn, sets)
    if held is None or body.get("op") in ("==", "in"):
        return held
    return not held if body.get("op") == "!=" else None


def _is_of_others(left: Any, syn: Syn) -> bool:
    """Return whether *left* is a field of a header that the packet does not have."""
    match left:
        case {"payload": {"protocol": str(header)}}:
            others = {name for version, name in _FAMILY.items() if version != syn.version}
            return header in _OTHERS or header in others
        case _:
            return False


def _holds(left: Any, right: Any, syn: Syn, sets: Mapping[str, Any]) -> bool | None:
    match left:
        case {"meta": {"key": "iifname" | "iif"}}:
            return _among(right, sets, lambda one: _device(one, syn.device))
        case {"meta": {"key": "l4proto"}}:
            return _among(right, sets, lambda one: one in (_TCP, 6))
        case {"meta": {"key": "nfproto"}}:
            return _among(right, sets, lambda one: one in _NFPROTO[syn.version])
        case _ if _is_of_others(left, syn):
            return False
        case {"payload": {"protocol": header, "field": "dport"}} if header in _TRANSPORTS:
            return _among(right, sets, lambda one: _number(one, syn.port))
        case {"payload": {"protocol": header, "field": name}} if header == _FAMILY[syn.version]:
            return _of_header(name, right, syn, sets)
        case {"ct": {"key": "state"}}:
            return _among(right, sets, lambda one: one == "new")
        case _:
            return None


def _of_header(name: str, right: Any, syn: Syn, sets: Mapping[str, Any]) -> bool | None:
    """Judge a field of the IP header."""
    if name == _PROTOCOL[syn.version]:
        return _among(right, sets, lambda one: one in (_TCP, 6))
    if name == "daddr":
        return _among(right, sets, lambda one: _network(one, syn.is_for))
    return _among(right, sets, lambda one: _network(one, syn.is_from)) if name == "saddr" else None


def _among(right: Any, sets: Mapping[str, Any], test: Any) -> bool | None:
    """Return whether *test* holds for one of the values in *right*; None if that is undecided."""
    if isinstance(right, str) and right.startswith("@"):
        if right[1:] not in sets:
            return None
        right = {"set": sets[right[1:]]}
    values = right.get("set", [right]) if isinstance(right, dict) else right
    results = [test(_bare(value)) for value in (values if isinstance(values, list) else [values])]
    if True in results:
        return True
    return None if None in results else False


def _bare(value: Any) -> Any:
    """Return an element of a set without its timeout, counter or comment."""
    if isinstance(value, dict) and "elem" in value:
        return value["elem"].get("val")
    return value


def _device(pattern: Any, device: str) -> bool | None:
    if not isinstance(pattern, str):
        return None
    if pattern.endswith("*"):
        return device.startswith(pattern[:-1])
    return pattern == device


def _number(value: Any, port: int) -> bool | None:
    match value:
        case int():
            return value == port
        case {"range": [int(low), int(high)]}:
            return low <= port <= high
        case _:
            return None


def _network(value: Any, test: Callable[[Network], bool | None]) -> bool | None:
    """Return what *test* says of a network; None if *value* is none."""
    try:
        match value:
            case str():
                return test(ip_network(value))
            case {"prefix": {"addr": str(address), "len": int(length)}}:
                return test(ip_network((address, length), strict=False))
    except ValueError:
        return None
    return None


def _and(first: bool | None, second: bool | None) -> bool | None:
    if first is False or second is False:
        return False
    return None if first is None or second is None else True
