"""Check of the daemon's own probe of the packet path through the host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from dfmeta.doctor.facts import Settings
from dfmeta.doctor.finding import Finding, ok, unknown, wrong
from dfmeta.flows.family import IPV6
from dfmeta.model import HttpHost

CHECKS = {4: "path", 6: "path-ipv6"}
"""Version of IP → name of the check."""


_SAVE: Final[Mapping[int, str]] = {4: "iptables-save", 6: "ip6tables-save"}
_RULES: Final = ("rule-from", "rule-oif")
"""Checks that a host with a second bridge has not."""
_LINES: Final[Mapping[int, tuple[str, ...]]] = {
    4: ("rp_filter", *_RULES, "route", "neighbour", "listener", "firewall"),
    6: (*_RULES, "route", "neighbour", "listener", "firewall"),
}


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
    ip6: PathFacts | None = None
    """Result of the probe over IPv6; None if guests are served over IPv4 only."""

    def because(self, cause: str) -> PathFacts:
        """Return the result of a probe that shows nothing about the host, with the cause."""
        six = None if self.ip6 is None else self.ip6.because(cause)
        return replace(self, asked=False, cause=cause, ip6=six)

    def over(self, version: int) -> PathFacts:
        """Return the result for one version of IP."""
        if version == 4:
            return self
        return self.ip6 or PathFacts(asked=False, cause="guests are served over IPv4 only")


def path(facts: PathFacts | None, wanted: Settings) -> Finding:
    """Check that the host lets a SYN from the switch reach the proxy, and the answer return.

    :param facts: the result for the version of IP of *wanted*; None if the daemon does not run.
    """
    check = CHECKS[wanted.family.version]
    if facts is None:
        return unknown(check, "not probed: dfmeta-agent, which sends the probe, does not answer")
    if not facts.asked:
        return unknown(check, f"not probed: {facts.cause}")
    where = HttpHost(wanted.host_ip, wanted.port or 0).authority
    if not facts.answered:
        version = wanted.family.version
        return wrong(
            check,
            f"guests' SYNs do not reach the proxy: {facts.cause}",
            f"fix the problems that the lines {_lines(wanted)} name; if all of them are ok, a "
            f"packet filter in another hook drops the SYN: `nft list ruleset`, `{_SAVE[version]}`, "
            f"`tc filter show dev {wanted.tap} ingress`: accept TCP to {where} that comes in on "
            f"{wanted.tap}, and TCP from {where} that leaves by {wanted.tap}",
        )
    if not facts.whole:
        return wrong(
            check,
            f"{wanted.tap} answers with an incomplete TCP checksum, and guests drop such answers",
            f"`ethtool -K {wanted.tap} tx off`",
        )
    return ok(
        check,
        f"a SYN from {wanted.bridge} to {where} by {wanted.tap} was answered, with a correct "
        f"checksum, in {facts.seconds * 1000:.1f} ms: filters, rules and listener let it pass",
    )


def _lines(wanted: Settings) -> str:
    """Return the names of the checks of which one may name the cause."""
    end = "-ipv6" if wanted.family is IPV6 else ""
    names = [f"{one}{end}" for one in _LINES[wanted.family.version]]
    if wanted.meta is not None:
        rules = {f"{one}{end}" for one in _RULES}
        names = ["meta-patch", "flows", *(one for one in names if one not in rules)]
    return f"{', '.join(names[:-1])} and {names[-1]}"
