"""Check of the daemon's own probe of the packet path through the host. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dfmeta.inspect.facts import Settings
from dfmeta.inspect.finding import Finding, ok, unknown, wrong


@dataclass(frozen=True, slots=True)
class PathFacts:
    """Result of the probe: a SYN that the daemon sends through the switch to tap-metadata."""

    asked: bool = True
    """Whether the daemon sent a SYN; if not, ``cause`` says why."""
    answered: bool = False
    cause: str = ""
    seconds: float = 0.0
    whole: bool = True
    """Whether the answer's TCP checksum was right."""


def path(facts: PathFacts | None, wanted: Settings) -> Finding:
    """Check that the host lets a SYN from the switch reach the proxy, and the answer return.

    :param facts: None if the daemon does not run.
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
            "fix the problems that the lines rp_filter, rule-from, rule-oif, route, neighbour, "
            "listener and firewall name; if all of them are ok, a packet filter in another hook "
            "drops the SYN: `nft list ruleset`, `iptables-save`, `tc filter show dev "
            f"{wanted.tap} ingress`: accept TCP to {where} that comes in on {wanted.tap}, and TCP "
            f"from {where} that leaves by {wanted.tap}",
        )
    if not facts.whole:
        return wrong(
            "path",
            f"{wanted.tap} answers with an incomplete TCP checksum, and guests drop such answers",
            f"`ethtool -K {wanted.tap} tx off`",
        )
    return ok(
        "path",
        f"a SYN from {wanted.bridge} to {where} by {wanted.tap} was answered, with a correct "
        f"checksum, in {facts.seconds * 1000:.1f} ms: filters, rules and listener let it pass",
    )
