"""Whether the host's own packet filter lets guests' connections in to the proxy. Pure.

The rules of a chain are steps with three values, holds, does not hold, cannot be said, so that a
verdict is given only where every way through the chain ends in the same one. nft's and iptables'
forms are read by :mod:`dfmeta.inspect.nft` and :mod:`dfmeta.inspect.iptables`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from dfmeta.inspect.facts import Settings
from dfmeta.inspect.finding import Finding, ok, unknown, wrong

KEYS = IPv4Network("128.0.0.0/1")
"""Where the source addresses of guests' connections lie on tap-metadata."""


class Verdict(enum.Enum):
    """What a step does with a packet that it holds for."""

    ACCEPT = "accept"
    DROP = "drop"
    JUMP = "jump"
    GOTO = "goto"
    RETURN = "return"
    NOTHING = "nothing"
    """It counts, logs or marks."""
    ANYTHING = "anything"
    """It is not one of those that are understood."""
    FALL = "fall"
    """The end of the chain; never a step's own."""


@dataclass(frozen=True, slots=True)
class Syn:
    """A first packet of a guest's connection, as INPUT sees it."""

    device: str
    address: IPv4Address
    port: int


@dataclass(frozen=True, slots=True)
class Step:
    """A rule."""

    holds: bool | None
    """Whether it holds for the packet; None when that cannot be said."""
    verdict: Verdict
    target: str = ""
    """Chain of a jump or goto."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A base chain at the input hook, with the chains that it may call."""

    name: str
    """As people find it again, such as ``inet filter input``."""
    start: str
    policy: Verdict
    chains: Mapping[str, tuple[Step, ...]]
    remedy: str
    """Command that lets the packet in."""


def fates(found: Filter) -> frozenset[Verdict]:
    """What may become of the packet in *found*: accepted, dropped, or either."""
    ends = _walk(found.chains, found.start)
    return frozenset(found.policy if end is Verdict.FALL else end for end in ends)


def _walk(chains: Mapping[str, tuple[Step, ...]], name: str) -> set[Verdict]:
    possible: set[Verdict] = set()
    for step in chains.get(name, ()):
        if step.holds is False or step.verdict is Verdict.NOTHING:
            continue
        ends, goes_on = _outcome(chains, step)
        possible |= ends
        if step.holds and not goes_on:
            return possible
    return possible | {Verdict.FALL}


def _outcome(chains: Mapping[str, tuple[Step, ...]], step: Step) -> tuple[set[Verdict], bool]:
    """Ends that *step* may lead to, and whether the chain may go on behind it."""
    match step.verdict:
        case Verdict.RETURN:
            return {Verdict.FALL}, False
        case Verdict.JUMP:
            ends = _walk(chains, step.target)
            return ends - {Verdict.FALL}, Verdict.FALL in ends
        case Verdict.GOTO:
            return _walk(chains, step.target), False
        case Verdict.ANYTHING:
            return {Verdict.ACCEPT, Verdict.DROP}, True
        case verdict:
            return {verdict}, False


def source_in(network: IPv4Network) -> bool | None:
    """Whether a guest's key lies in *network*; None when only some do."""
    if KEYS.subnet_of(network):
        return True
    return None if network.overlaps(KEYS) else False


def judge(filters: tuple[Filter, ...] | None, wanted: Settings) -> Finding:
    """Whether every filter lets guests in.

    :param filters: None when neither nft nor iptables is there to be asked.
    """
    if filters is None:
        return unknown(
            "firewall", "neither nft nor iptables is on PATH: the host's filter is not looked at"
        )
    what = f"TCP to port {wanted.port} that comes in on {wanted.tap}"
    judged = [(one, fates(one)) for one in filters]
    for found, ends in judged:
        if ends == {Verdict.DROP}:
            return wrong(
                "firewall",
                f"{found.name} drops {what}",
                f"`{found.remedy}`, and the same in the firewall's configuration",
            )
    doubtful = [found.name for found, ends in judged if Verdict.DROP in ends]
    if doubtful:
        return unknown(
            "firewall",
            f"cannot tell whether {', '.join(doubtful)} lets {what} in: see that it does",
        )
    return ok("firewall", f"no rule of the input chains that doctor can read drops {what}")
