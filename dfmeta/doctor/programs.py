"""Run nft, iptables, ip6tables and systemctl, if they are installed, and read their output."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence

from dfmeta.doctor import iptables, nft
from dfmeta.doctor.firewall import Filter, Syn

TIMEOUT = 10.0


def read_filters(syn: Syn) -> tuple[Filter, ...] | None:
    """Read the host's filters for *syn*; None if neither nft nor iptables can be run."""
    table = _run([iptables.command(syn), "-w", "-S"])
    ruleset = _run(["nft", "-j", "list", "ruleset"])
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


def active(unit: str) -> bool | None:
    """Return whether *unit* is active (systemctl(1), is-active); None: systemctl failed."""
    states = _run(["systemctl", "show", "--property=ActiveState", "--value", unit])
    return states.strip() == "active" if states is not None else None


def _run(command: Sequence[str]) -> str | None:
    """Return the output of *command*; None if it does not exist, fails or hangs."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603  # fixed arguments, found on the operator's own PATH
            [program, *command[1:]],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
