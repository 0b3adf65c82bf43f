"""Parse the output of ``iptables -S`` and ``ip6tables -S`` (iptables(8)). Pure.

A match that this module does not know counts as undecided.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from ipaddress import ip_network

from dfmeta.doctor.firewall import Filter, Step, Syn, Verdict
from dfmeta.flows.family import IPV4

_START = "INPUT"
_TARGETS = {
    "ACCEPT": Verdict.ACCEPT,
    "DROP": Verdict.DROP,
    "REJECT": Verdict.DROP,
    "RETURN": Verdict.RETURN,
}
_HARMLESS = frozenset({"LOG", "NFLOG", "MARK", "CONNMARK", "TCPMSS", "AUDIT", "TRACE"})
_MODULES = frozenset({"tcp", "conntrack", "state", "multiport", "comment"})
_Test = Callable[[str, Syn], bool | None]


def read(text: str, syn: Syn) -> tuple[Filter, ...]:
    """Parse the filter table; return an empty tuple if *text* has no INPUT chain."""
    policy = Verdict.ACCEPT
    chains: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        match _words(line):
            case ["-P", name, target, *_]:
                chains.setdefault(name, [])
                if name == _START:
                    policy = _TARGETS.get(target, Verdict.ACCEPT)
            case ["-N", name, *_]:
                chains.setdefault(name, [])
            case ["-A", name, *rest]:
                chains.setdefault(name, []).append(rest)
    if _START not in chains:
        return ()
    steps = {
        name: tuple(_step(rule, syn, chains.keys()) for rule in rules)
        for name, rules in chains.items()
    }
    remedy = f"{command(syn)} -I {_START} -i {syn.device} -p tcp --dport {syn.port} -j ACCEPT"
    return (Filter(f"{command(syn)}' chain {_START}", _START, policy, steps, remedy),)


def command(syn: Syn) -> str:
    """Return the program for the version of IP of *syn*."""
    return "iptables" if syn.version == IPV4.version else "ip6tables"


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _step(rule: list[str], syn: Syn, chains: Collection[str]) -> Step:
    holds: bool | None = True
    verdict, target = Verdict.NOTHING, ""
    for negated, option, values in _options(rule):
        if option in ("-j", "-g"):
            verdict, target = _target(option, values[0] if values else "", chains)
            break  # the remaining words are the target's own options
        held = _test(option, values, syn)
        held = held if held is None or not negated else not held
        if held is False:
            return Step(False, Verdict.NOTHING)
        holds = None if held is None else holds
    return Step(holds, verdict, target)


def _options(rule: list[str]) -> Iterator[tuple[bool, str, list[str]]]:
    """Yield each option of *rule* as: preceded by ``!`` or not, name, values."""
    negated, option = False, ""
    values: list[str] = []
    for word in rule:
        starts = word.startswith("-") and len(word) > 1 and not word[1:].isdigit()
        if (word == "!" or starts) and option:
            yield negated, option, values
            negated, option, values = False, "", []
        if word == "!":
            negated = True
        elif starts:
            option = word
        else:
            values.append(word)
    if option:
        yield negated, option, values


def _target(option: str, name: str, chains: Collection[str]) -> tuple[Verdict, str]:
    if name in _TARGETS:
        return _TARGETS[name], ""
    if name in _HARMLESS:
        return Verdict.NOTHING, ""
    if name not in chains:
        return Verdict.ANYTHING, ""
    return (Verdict.GOTO if option == "-g" else Verdict.JUMP), name


def _test(option: str, values: list[str], syn: Syn) -> bool | None:
    if option in ("-m", "--match"):
        return True if values and values[0] in _MODULES else _protocol_module(values)
    test = _TESTS.get(option)
    try:
        return None if test is None else test(" ".join(values), syn)
    except ValueError:
        return None


def _protocol_module(values: list[str]) -> bool | None:
    return False if values and values[0] in ("udp", "icmp", "icmp6", "ipv6-icmp") else None


def _device(pattern: str, syn: Syn) -> bool:
    if pattern.endswith("+"):
        return syn.device.startswith(pattern[:-1])
    return syn.device == pattern


def _ports(text: str, syn: Syn) -> bool:
    for part in text.split(","):
        low, _, high = part.partition(":")
        if int(low or 0) <= syn.port <= int(high or (65535 if ":" in part else low)):
            return True
    return False


def _destination(text: str, syn: Syn) -> bool:
    return syn.is_for(ip_network(text, strict=False))


def _source(text: str, syn: Syn) -> bool | None:
    return syn.is_from(ip_network(text, strict=False))


def _state(text: str, _syn: Syn) -> bool:
    return "NEW" in text.split(",")


def _flags(text: str, _syn: Syn) -> bool:
    mask, wanted = (set(part.split(",")) for part in text.split(" "))
    return wanted - {"NONE"} == ({"SYN"} if mask & {"SYN", "ALL"} else set())


_TESTS: Mapping[str, _Test] = {
    "-i": _device,
    "-p": lambda text, _syn: text in ("tcp", "6", "all"),
    "-d": _destination,
    "-s": _source,
    "--dport": _ports,
    "--dports": _ports,
    "--ctstate": _state,
    "--state": _state,
    "--comment": lambda _text, _syn: True,
    "--tcp-flags": _flags,
}
