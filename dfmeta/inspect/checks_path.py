"""Judgement on the daemon's own probe of the way through the host. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dfmeta.inspect.facts import Settings
from dfmeta.inspect.finding import Finding, ok, unknown, wrong


@dataclass(frozen=True, slots=True)
class PathFacts:
    """How a SYN that the daemon sent through the switch to tap-metadata fared."""

    asked: bool = True
    """Whether the daemon sent one; else ``cause`` says why not."""
    answered: bool = False
    cause: str = ""
    seconds: float = 0.0
    whole: bool = True
    """Whether the answer's TCP checksum was right."""


def path(facts: PathFacts | None, wanted: Settings) -> Finding:
    """Whether the host lets a SYN from the switch to the proxy, and its answer back.

    :param facts: None when the daemon does not run.
    """
    if facts is None:
        return unknown("path", "not probed: dfmeta-agent, which sends the probe, does not run")
    if not facts.asked:
        return unknown("path", f"not probed: {facts.cause}")
    where = f"{wanted.host_ip}:{wanted.port}"
    if not facts.answered:
        return wrong(
            "path",
            f"guests' SYNs do not reach the proxy: {facts.cause}",
            "mend what the lines rp_filter, rules, route, neighbour, listener and firewall name; "
            "where all of them are ok, a packet filter in another hook drops it: `nft list "
            f"ruleset`, `iptables-save`, `tc filter show dev {wanted.tap} ingress`: let TCP to "
            f"{where} in by {wanted.tap}, and TCP from {where} out by it",
        )
    if not facts.whole:
        return wrong(
            "path",
            f"{wanted.tap} answers with an unfinished TCP checksum, which guests drop",
            f"`ethtool -K {wanted.tap} tx off`",
        )
    return ok(
        "path",
        f"a SYN from {wanted.bridge} to {where} by {wanted.tap} was answered, with a right "
        f"checksum, in {facts.seconds * 1000:.1f} ms: filters, rules and listener let it pass",
    )
