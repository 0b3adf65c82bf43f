"""Run nft, iptables, ip6tables and systemctl, if they are installed, and read their output."""

from __future__ import annotations

import json

from dfmeta.doctor import iptables, nft
from dfmeta.doctor.firewall import Filter, Syn
from dfmeta.host.programs import run


def read_filters(syn: Syn) -> tuple[Filter, ...] | None:
    """Read the host's filters for *syn*; None if neither nft nor iptables can be run."""
    table = run([iptables.command(syn), "-w", "-S"])
    ruleset = run(["nft", "-j", "list", "ruleset"])
    if table is None and ruleset is None:
        return None
    filters = iptables.read(table, syn) if table is not None else ()
    if ruleset is not None:
        try:
            document = json.loads(ruleset)
            filters += nft.read(document, syn, but_iptables=table is not None)
        except (ValueError, RecursionError):
            return filters or None
    return filters
