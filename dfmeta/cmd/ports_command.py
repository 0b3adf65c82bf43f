"""``dfmeta ports``: who is on which port, as the running daemon sees it."""

from __future__ import annotations

from typing import Any, Final

import click

from dfmeta.cmd.client import ask_agent
from dfmeta.cmd.common import JSON, config_options, format_option, load_config, print_rows

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
FIELDS: Final = (*COLUMNS, "iface_id", "mac", "fault")


@click.command("ports")
@config_options
@format_option
def ports(config_files: tuple[str, ...], *, fmt: str) -> None:
    """Show every guest port: key and slots, instance, project, where each is from, state."""
    rows = ask_agent(load_config(config_files), "/ports")
    if fmt == JSON:
        print_rows(rows, {field: field for field in FIELDS}, fmt)
        return
    print_rows([_for_people(row) for row in rows], COLUMNS, fmt)


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    addresses = [f"{one['slot']}: {one['ip']} {one['mac']}" for one in row["addresses"]]
    state = f"{row['state']}: {row['fault']}" if row["fault"] else row["state"]
    return {**row, "addresses": addresses, "state": state}
