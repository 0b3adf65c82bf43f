"""Base chains of the host's packet filter that drop each packet that no rule accepts.

Whether guests' packets pass is shown by the daemon's probe (the check ``path``): no rule is judged
here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from dfmeta.doctor.finding import Finding, listed, ok, unknown
from dfmeta.host.programs import run

_HOOKS: Final = ("ingress", "prerouting", "input", "output", "postrouting")
"""Hooks that a guest's packet, or its answer, passes (nft(8))."""
_VERSIONS: Final = {"ip": (4,), "ip6": (6,), "inet": (4, 6), "netdev": (4, 6)}
"""Family of an nftables' table → versions of IP."""
_IPTABLES: Final = {4: "iptables", 6: "ip6tables"}


@dataclass(frozen=True, slots=True)
class Chain:
    """A base chain whose policy is ``drop``."""

    name: str
    versions: tuple[int, ...]


def read_chains() -> tuple[Chain, ...] | None:
    """Return the base chains with the policy ``drop``; None if no program can list them."""
    listing = run(["nft", "-j", "list", "chains"])
    tables = {version: run([name, "-w", "-S"]) for version, name in _IPTABLES.items()}
    if listing is None and not any(tables.values()):
        return None
    return (*_of_nftables(listing or "{}"), *_of_iptables(tables))


def firewall(chains: tuple[Chain, ...] | None, version: int) -> Finding:
    """List the packet filter's base chains that drop each packet that no rule accepts.

    :param chains: None if no program can list them.
    :param version: version of IP.
    """
    if chains is None:
        return unknown("firewall", "neither nft nor iptables can be run")
    names = [one.name for one in chains if version in one.versions]
    if not names:
        return ok("firewall", "no base chain of the packet filter has the policy drop")
    return ok(
        "firewall",
        f"packets that no rule accepts are dropped by {listed(names)}: the line path shows "
        "whether guests' packets are",
    )


def _of_nftables(listing: str) -> Iterator[Chain]:
    try:
        rows = json.loads(listing).get("nftables", ())
    except (ValueError, RecursionError, AttributeError):
        return
    for chain in (row["chain"] for row in rows if "chain" in row):
        if chain.get("policy") == "drop" and chain.get("hook") in _HOOKS:
            yield Chain(_name(chain), _VERSIONS.get(chain["family"], ()))


def _name(chain: dict[str, Any]) -> str:
    return f"nftables' chain {chain['family']} {chain['table']} {chain['name']}"


def _of_iptables(tables: dict[int, str | None]) -> Iterator[Chain]:
    for version, rules in tables.items():
        for name in ("INPUT", "OUTPUT"):
            if f"-P {name} DROP" in (rules or "").splitlines():
                yield Chain(f"{_IPTABLES[version]}' chain {name}", (version,))
