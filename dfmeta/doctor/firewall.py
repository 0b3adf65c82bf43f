"""Check that the host's own packet filter accepts guests' connections to the proxy. Pure.

Each rule of a chain is a step that matches the packet, does not match, or cannot be decided. A
verdict is given only if every path through the chain ends in the same one.
:mod:`dfmeta.doctor.nft` and :mod:`dfmeta.doctor.iptables` parse the output of nft and iptables.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from dfmeta.doctor.facts import Settings
from dfmeta.doctor.finding import Finding, ok, unknown, wrong
from dfmeta.flows.family import IPV4
from dfmeta.identity.key import IN_PORT

Network = IPv4Network | IPv6Network

KEYS = IN_PORT.network(4)
"""Network of the source addresses (keys) of guests' IPv4 connections on tap-metadata."""


class Verdict(enum.Enum):
    """The action of a step for a packet that it matches."""

    ACCEPT = "accept"
    DROP = "drop"
    JUMP = "jump"
    GOTO = "goto"
    RETURN = "return"
    NOTHING = "nothing"
    """The step only counts, logs or marks."""
    ANYTHING = "anything"
    """The action is not known to this module."""
    FALL = "fall"
    """The packet reached the end of the chain; never the verdict of a step."""


@dataclass(frozen=True, slots=True)
class Syn:
    """The first packet of a guest's connection, as the INPUT chain sees it."""

    device: str
    address: IPv4Address | IPv6Address
    port: int
    keys: Network = KEYS
    """Network of its source address, of the same version."""

    @property
    def version(self) -> int:
        """Version of IP."""
        return self.address.version

    def is_for(self, network: Network) -> bool:
        """Return whether its destination is in *network*."""
        return self.address in network

    def is_from(self, network: Network) -> bool | None:
        """Return whether its source is in *network*; None if that depends on the guest."""
        first, last = int(network[0]), int(network[-1])
        first_key, last_key = int(self.keys[0]), int(self.keys[-1])
        if network.version != self.version or last < first_key or last_key < first:
            return False
        return True if first <= first_key and last_key <= last else None


@dataclass(frozen=True, slots=True)
class Step:
    """A rule of a chain."""

    holds: bool | None
    """Whether it matches the packet; None if that cannot be decided."""
    verdict: Verdict
    target: str = ""
    """Chain that a jump or goto leads to."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A base chain at the input hook, with the chains that it may call."""

    name: str
    """Name for the operator, such as ``nftables' chain inet filter input``."""
    start: str
    policy: Verdict
    chains: Mapping[str, tuple[Step, ...]]
    remedy: str
    """Command that lets the packet in."""


def fates(found: Filter) -> frozenset[Verdict]:
    """Return the possible verdicts of *found* on the packet: accept, drop, or both."""
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
    """Return the verdicts that *step* may lead to, and whether the chain may continue after it."""
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


def judge(filters: tuple[Filter, ...] | None, wanted: Settings) -> Finding:
    """Check that every filter accepts guests' connections.

    :param filters: None if neither nft nor iptables could be run.
    """
    if filters is None:
        return unknown(
            "firewall", "neither nft nor iptables can be run: the packet filter is not checked"
        )
    over = "" if wanted.family is IPV4 else f" over IPv{wanted.family.version}"
    packets = f"TCP{over} to port {wanted.port} that comes in on {wanted.tap}"
    judged = [(one, fates(one)) for one in filters]
    for found, ends in judged:
        if ends == {Verdict.DROP}:
            return wrong(
                "firewall",
                f"{found.name} drops {packets}",
                f"`{found.remedy}`, and the same in the firewall's configuration",
            )
    doubtful = [found.name for found, ends in judged if Verdict.DROP in ends]
    if doubtful:
        return unknown(
            "firewall",
            f"doctor cannot decide whether {', '.join(doubtful)} accepts {packets}: check that it "
            "does",
        )
    return ok("firewall", f"no rule of the input chains that doctor can parse drops {packets}")
