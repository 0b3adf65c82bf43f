"""``dfmeta ports``: who is on which port, as the running daemon sees it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import click

from dfmeta.cli.common import (
    JSON,
    config_options,
    ending,
    format_option,
    load_config,
    print_rows,
    wide_option,
)
from dfmeta.cli.in_force import ask_running
from dfmeta.inspect.moments import clock, span
from dfmeta.model import PortState

COLUMNS: Final = {
    "port": "PORT",
    "ofport": "OFPORT",
    "key": "KEY",
    "addresses": "SLOT: ADDRESS",
    "instance": "INSTANCE",
    "instance_name": "NAME",
    "project": "PROJECT",
    "sources": "FROM",
    "state": "STATE",
}
ANSWER: Final = "last_answer"
DROP: Final = ("sources", "key", "project", "ofport", "addresses", "instance_name")
"""What a narrow terminal does without, the least important one first."""
FIELDS: Final = (*COLUMNS, "iface_id", "mac", "fault", "connections", "requests", "last_failure")
WELL: Final = frozenset({PortState.SERVED, PortState.DEAD})
"""States in which a port is as its owner wants it."""
STYLES: Final = {
    "state": {
        "served": "green",
        "no instance": "yellow",
        "dead": "dim",
        "no ofport": "bold red",
        "broken": "bold red",
        "trunk": "bold red",
        "no project": "bold red",
        "cut off": "bold red",
        "no connection": "bold red",
    },
    ANSWER: {"fails": "bold red"},
}


@click.command(
    "ports",
    epilog=ending(
        "dfmeta ports",
        "dfmeta ports --failing",
        "dfmeta ports --format json",
        failed="dfmeta-agent does not answer",
    ),
)
@config_options
@format_option
@wide_option
@click.option(
    "--failing",
    is_flag=True,
    help="Show only the ports that are not well: those whose guests fail, and those in every "
    "state other than served and dead.",
)
def ports(config_files: tuple[str, ...], *, fmt: str, wide: bool, failing: bool) -> None:
    """Show every guest port: key, slots, instance, project, where each is from, state, last answer.

    The state "served" says that the port has its flows, its instance and, with Nova, its project;
    any other state says what is missing. LAST ANSWER is what the guest was answered: the last
    status and when; or, of a guest that lacks what it needs, since when it fails, with which
    status, how often that came, and why. It is empty while a guest has not asked since the start of
    dfmeta-agent. A guest's own odd requests (a bad token, a malformed request, too many) make no
    guest fail that was given its metadata. Under SLOT: ADDRESS stand the addresses that guests
    have asked from, under FROM who named instance and project.
    """
    rows = ask_running(load_config(config_files), "/ports")
    if failing:
        rows = [row for row in rows if not _well(row)]
    if fmt == JSON:
        print_rows(rows, {field: field for field in FIELDS}, fmt)
        return
    now = datetime.now(UTC)
    columns = {**COLUMNS, ANSWER: "LAST ANSWER"}
    shown = [_for_people(row, now) for row in rows]
    print_rows(shown, columns, fmt, styles=STYLES, drop=DROP, wide=wide)


def _well(row: dict[str, Any]) -> bool:
    last = row["last_failure"]
    return row["state"] in WELL and not (last and last["failing"])


def _for_people(row: dict[str, Any], now: datetime) -> dict[str, Any]:
    addresses = [f"{one['slot']}: {one['ip']} {one['mac']}" for one in row["addresses"]]
    state = f"{row['state']}: {row['fault']}" if row["fault"] else row["state"]
    return {**row, "addresses": addresses, "state": state, ANSWER: answer_of(row, now)}


def answer_of(row: dict[str, Any], now: datetime) -> str:
    """What a guest was answered, in a few words; empty: it has not asked."""
    last, requests = row["last_failure"], row["requests"]
    if last and last["failing"]:
        times = "" if last["times"] == 1 else f", {last['times']} times"
        since = clock(datetime.fromisoformat(last["failing_since"]), now)
        said = last["status"] or "no answer"
        return f"fails since {since}: {said}{times}: {last['brief']}"
    if requests:
        ago = span((now - datetime.fromisoformat(requests["last_at"])).total_seconds())
        return f"{requests['last_status'] or 'no answer'}, {ago} ago"
    return ""
