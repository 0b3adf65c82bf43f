"""``dfmeta ports``: who is on which port, as the running daemon sees it."""

from __future__ import annotations

from typing import Any, Final

import click

from dfmeta.cmd.client import ask_agent
from dfmeta.cmd.common import JSON, config_options, ending, format_option, load_config, print_rows

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
FIELDS: Final = (*COLUMNS, "iface_id", "mac", "fault", "requests", "last_failure")
STYLES: Final = {
    "state": {
        "served": "green",
        "no instance": "yellow",
        "dead": "dim",
        "no ofport": "bold red",
        "broken": "bold red",
    }
}


@click.command(
    "ports",
    epilog=ending(
        "dfmeta ports", "dfmeta ports --format json", failed="dfmeta-agent does not answer"
    ),
)
@config_options
@format_option
def ports(config_files: tuple[str, ...], *, fmt: str) -> None:
    """Show every guest port: key and slots, instance, project, where each is from, state.

    A port is served when its state is "served"; any other state says why not. Under SLOT: ADDRESS
    stand the addresses that guests have asked from, under FROM who named instance and project.
    """
    rows = ask_agent(load_config(config_files), "/ports")
    if fmt == JSON:
        print_rows(rows, {field: field for field in FIELDS}, fmt)
        return
    print_rows([_for_people(row) for row in rows], COLUMNS, fmt, styles=STYLES)


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    addresses = [f"{one['slot']}: {one['ip']} {one['mac']}" for one in row["addresses"]]
    state = f"{row['state']}: {row['fault']}" if row["fault"] else row["state"]
    return {**row, "addresses": addresses, "state": state}
