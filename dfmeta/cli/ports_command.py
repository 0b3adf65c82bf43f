"""``dfmeta ports``: guests' ports and their identities, as the running daemon knows them."""

from __future__ import annotations

import contextlib
import sys
from datetime import UTC, datetime
from typing import Any, Final

import click
from oslo_config import cfg

from dfmeta.cli.client import agent_of, ask_agent
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
from dfmeta.cli.port_argument import find
from dfmeta.conf.metadata import keys_of
from dfmeta.doctor.agent import known
from dfmeta.doctor.finding import span, time_of_day
from dfmeta.errors import NotRunningError, UsageError
from dfmeta.model import PortKind, PortState

COLUMNS: Final = {
    "port": "PORT",
    "ofport": "OFPORT",
    "key": "KEY",
    "addresses": "SLOT: ADDRESS",
    "kind": "KIND",
    "segmentation_id": "VID",
    "parent": "PARENT",
    "container": "CONTAINER",
    "network": "NETWORK",
    "instance": "INSTANCE",
    "instance_name": "NAME",
    "project": "PROJECT",
    "sources": "FROM",
    "state": "STATE",
}
ANSWER: Final = "last_answer"
DROP: Final = (
    *("sources", "key", "project", "ofport", "kind", "addresses", "instance_name", "network"),
    *("parent", "container"),
)
"""Columns that are left out on a narrow terminal, the least important one first."""
FIELDS: Final = (
    *COLUMNS,
    *("key6", "meta_mac", "iface_id", "mac", "fault", "connections", "requests", "last_failure"),
    *("next_hops", "next_hop_faults", "vid", "subport_faults", "attachment", "record_names"),
)
META_ADDRESSES: Final = "META IP, META MAC: ADDRESS"
"""Heading of the addresses with ``identity_scheme = meta_ip``."""
TRUNKS: Final = ("kind", "segmentation_id", "parent")
"""Columns that are shown only on a host with trunks."""
ATTACHED: Final = ("container", "network")
"""Columns that are shown only on a host with attachments."""
WELL: Final = frozenset({PortState.SERVED, PortState.UNNAMED, PortState.DEAD})
"""States of a port without a fault."""
STYLES: Final = {
    "state": {
        "served": "green",
        "no instance": "yellow",
        "dead": "dim",
        "no ofport": "bold red",
        "broken": "bold red",
        "unnamed": "dim",
        "no project": "bold red",
        "no meta ip": "bold red",
        "cut off": "bold red",
        "no connection": "bold red",
    },
    ANSWER: {"fails": "bold red"},
}


@click.command(
    "ports",
    epilog=ending(
        "dfmeta ports",
        "dfmeta ports web1",
        "dfmeta ports --failing",
        "dfmeta ports --format json",
        failed="dfmeta-agent does not answer",
    ),
)
@config_options
@format_option
@wide_option
@click.argument("port", required=False)
@click.option(
    "--failing",
    is_flag=True,
    help="Show only ports with a fault: ports of guests that fail, and ports in a state other than "
    "served and dead.",
)
def ports(
    config_files: tuple[str, ...], *, port: str | None, fmt: str, wide: bool, failing: bool
) -> None:
    """Show every guest port: key, slots, instance, project, their sources, state, last answer.

    PORT is a port's name, iface-id, MAC or guest's address, or an instance's id or name, also the
    name or host name in its record: only the ports that match are shown. NAME is the instance's
    name, else that of its record. A port in the state "served" has its flows, its instance and,
    with Nova, its project; any other state names the missing part. LAST ANSWER shows the status and
    time of the last answer to the guest. If the guest fails to get its metadata, it shows the time
    since which it fails, the status, the number of such answers and the reason. It is empty if the
    guest has sent no request since the start of dfmeta-agent. A guest that has received its
    metadata does not count as failing because of its own bad requests (a wrong token, a malformed
    request, too many requests). SLOT: ADDRESS lists the addresses that guests have sent requests
    from, an IPv6 address with the address of the service that it uses; each version of IP has its
    own slots. With Meta IPs, KEY is the Meta IP of the port's first address, and each address has
    the Meta IP and the Meta MAC that stand for it. FROM names the identity sources of instance and
    project. On a host with trunks, KIND is port, trunk parent or subport, and a subport has its
    VLAN id on the trunk and the port of its parent. A subport in the state "unnamed" has no
    instance: its requests get 404. A subport that is an attachment has the id and the network of
    its container.
    """
    conf = load_config(config_files)
    rows = _with_names(conf, ask_running(conf, "/ports"))
    if port is not None:
        rows = _asked(conf, rows, port)
    found = _attachments(conf) if any(map(_is_subport, rows)) else {}
    rows = [{**row, **_attached(found.get(row.get("iface_id")))} for row in rows]
    if failing:
        rows = [row for row in rows if not _well(row)]
    if fmt == JSON:
        print_rows(rows, {field: field for field in FIELDS}, fmt)
        return
    now = datetime.now(UTC)
    columns = {**COLUMNS, ANSWER: "LAST ANSWER"}
    if all(row.get("kind", PortKind.PORT) == PortKind.PORT for row in rows):
        columns = {key: title for key, title in columns.items() if key not in TRUNKS}
    if not any(row["attachment"] for row in rows):
        columns = {key: title for key, title in columns.items() if key not in ATTACHED}
    if any(row.get("meta_mac") for row in rows):
        columns["addresses"] = META_ADDRESSES
    # A fault in the column would make every line of a pipe as long as itself; a remedy has no
    # column.
    piped = not sys.stdout.isatty()
    shown = [_for_people(row, now, brief=piped) for row in rows]
    notes = [_note(row) for row in rows] if piped else ()
    drop = [one for one in DROP if one in columns]
    print_rows(shown, columns, fmt, styles=STYLES, drop=drop, wide=wide, notes=notes)


def _with_names(conf: cfg.ConfigOpts, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = agent_of(conf).record_names()
    return [{**row, "record_names": [*names.get(row["instance"], ())]} for row in rows]


def _asked(conf: cfg.ConfigOpts, rows: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the rows of the ports that *text* names.

    :raises UsageError: when there is none.
    """
    keys = keys_of(conf)
    found = find(conf, (known(row, keys) for row in rows), text)
    if not found:
        raise UsageError(
            cause=f"no port has the name, iface-id, MAC, instance (id or name) or address {text}",
            remedy="`dfmeta ports` lists the ports",
        )
    named = {(one.name, one.vid) for one in found}
    return [row for row in rows if (row["port"], row.get("vid", 0)) in named]


def _note(row: dict[str, Any]) -> str:
    """Return the fault of a port, and the remedy if its guest fails."""
    last = row["last_failure"]
    return "; ".join(filter(None, [row["fault"], last["remedy"] if _fails(row) else ""]))


def _fails(row: dict[str, Any]) -> bool:
    return bool(row["last_failure"] and row["last_failure"]["failing"])


def _is_subport(row: dict[str, Any]) -> bool:
    # A daemon of an older version that still runs has no subports.
    return bool(row.get("kind") == PortKind.SUBPORT)


def _attachments(conf: cfg.ConfigOpts) -> dict[Any, dict[str, Any]]:
    """Return the attachments by the iface-id of their ports.

    Empty where attachments are off, and while their database does not answer: the ports are shown
    all the same.
    """
    with contextlib.suppress(NotRunningError):
        return {one["port_id"]: one for one in ask_agent(conf, "/attachments")}
    return {}


def _attached(one: dict[str, Any] | None) -> dict[str, Any]:
    """Return the members that an attachment adds to the row of its port."""
    if one is None:
        return dict.fromkeys(("container", "network", "attachment"))
    return {"container": one["container"], "network": one["network"], "attachment": one["id"]}


def _well(row: dict[str, Any]) -> bool:
    return row["state"] in WELL and not _fails(row)


def _for_people(row: dict[str, Any], now: datetime, *, brief: bool) -> dict[str, Any]:
    """Return a row of the table.

    :param brief: leave the fault of the port out.
    """
    addresses = [_address(one) for one in row["addresses"]]
    state = f"{row['state']}: {row['fault']}" if row["fault"] and not brief else row["state"]
    name = row["instance_name"] or next(iter(row["record_names"]), "")
    values = {"addresses": addresses, "state": state, "instance_name": name}
    return {**row, **values, ANSWER: answer_of(row, now)}


def _address(one: dict[str, Any]) -> str:
    # A daemon of an older version that still runs has no IPv6.
    service = f" to {one['service']}" if one.get("service") else ""
    label = one.get("meta_mac")
    name = f"{one['key']}, {label}" if label else one["slot"]
    return f"{name}: {one['ip']} {one['mac']}{service}"


def answer_of(row: dict[str, Any], now: datetime) -> str:
    """Return a short text on a guest's last answer; empty if it has sent no request."""
    last, requests = row["last_failure"], row["requests"]
    if last and last["failing"]:
        times = "" if last["times"] == 1 else f", {last['times']} times"
        since = time_of_day(datetime.fromisoformat(last["failing_since"]), now)
        said = last["status"] or "no answer"
        return f"fails since {since}: {said}{times}: {last['brief']}"
    if requests:
        ago = span((now - datetime.fromisoformat(requests["last_at"])).total_seconds())
        return f"{requests['last_status'] or 'no answer'}, {ago} ago"
    return ""
