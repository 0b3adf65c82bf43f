"""``dfmeta ports``: guests' ports and their identities, as the running daemon knows them."""

import contextlib
import sys
from datetime import UTC, datetime
from typing import Any, Final

import click
from oslo_config import cfg

from dfmeta import errors, model
from dfmeta.cli import common, port_argument
from dfmeta.cli.client import agent_of, with_running
from dfmeta.conf.metadata import keys_of
from dfmeta.doctor import agent, finding

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
UNATTACHED: Final = dict.fromkeys((*ATTACHED, "attachment"))
WELL: Final = frozenset({model.PortState.SERVED, model.PortState.UNNAMED, model.PortState.DEAD})
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


@common.command(
    "ports",
    "dfmeta ports",
    "dfmeta ports web1",
    "dfmeta ports --failing",
    "dfmeta ports --format json",
    failed="dfmeta-agent does not answer",
)
@common.listing_options
@click.argument("port", required=False, shell_complete=port_argument.complete_port)
@click.option(
    "--failing",
    is_flag=True,
    help="Show only ports with a fault: ports of guests that fail, and ports in a state other than "
    "served and dead.",
)
def ports(conf: cfg.ConfigOpts, *, port: str | None, fmt: str, wide: bool, failing: bool) -> None:
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
    rows = with_running(conf, lambda: agent_of(conf).ask("/ports"))
    names = agent_of(conf).record_names()
    rows = [{**row, "record_names": [*names.get(row["instance"], ())]} for row in rows]
    if port is not None:
        rows = _named(conf, rows, port)
    subports = any(row["kind"] == model.PortKind.SUBPORT for row in rows)
    attachments = _attachments(conf) if subports else {}
    rows = [{**row, **attachments.get(row["iface_id"], UNATTACHED)} for row in rows]
    if failing:
        rows = [row for row in rows if row["state"] not in WELL or _fails(row)]
    if fmt == common.JSON:
        common.print_rows(rows, {field: field for field in FIELDS}, fmt)
        return
    now = datetime.now(UTC)
    columns = {**COLUMNS, ANSWER: "LAST ANSWER"}
    if all(row["kind"] == model.PortKind.PORT for row in rows):
        columns = {key: title for key, title in columns.items() if key not in TRUNKS}
    if not any(row["attachment"] for row in rows):
        columns = {key: title for key, title in columns.items() if key not in ATTACHED}
    if any(row["meta_mac"] for row in rows):
        columns["addresses"] = META_ADDRESSES
    # A fault in the column would make every line of a pipe as long as itself; a remedy has no
    # column.
    piped = not sys.stdout.isatty()
    shown = [_for_people(row, now, brief=piped) for row in rows]
    notes = [_note(row) for row in rows] if piped else ()
    drop = [key for key in DROP if key in columns]
    common.print_rows(shown, columns, fmt, styles=STYLES, drop=drop, wide=wide, notes=notes)


def _named(conf: cfg.ConfigOpts, rows: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the rows of the ports that *text* names.

    :raises UsageError: when there is none.
    """
    keys = keys_of(conf)
    matching = port_argument.find(conf, (agent.read_port(row, keys) for row in rows), text)
    if not matching:
        raise errors.UsageError(
            cause=f"no port has the name, iface-id, MAC, instance (id or name) or address {text}",
            remedy="`dfmeta ports` lists the ports",
        )
    names = {(port.name, port.vid) for port in matching}
    return [row for row in rows if (row["port"], row["vid"]) in names]


def _note(row: dict[str, Any]) -> str:
    """Return the fault of a port, and the remedy if its guest fails."""
    last = row["last_failure"]
    return "; ".join(filter(None, [row["fault"], last["remedy"] if _fails(row) else ""]))


def _fails(row: dict[str, Any]) -> bool:
    return bool(row["last_failure"] and row["last_failure"]["failing"])


def _attachments(conf: cfg.ConfigOpts) -> dict[str, dict[str, Any]]:
    """Return the members that attachments add to the rows of their ports, by iface-id.

    Empty where attachments are off, and while their database does not answer: the ports are shown
    all the same.
    """
    with contextlib.suppress(errors.NotRunningError):
        return {
            row["port_id"]: {
                "container": row["container"],
                "network": row["network"],
                "attachment": row["id"],
            }
            for row in agent_of(conf).ask("/attachments")
        }
    return {}


def _for_people(row: dict[str, Any], now: datetime, *, brief: bool) -> dict[str, Any]:
    """Return a row of the table.

    :param brief: leave the fault of the port out.
    """
    addresses = [_address(address) for address in row["addresses"]]
    state = f"{row['state']}: {row['fault']}" if row["fault"] and not brief else row["state"]
    name = row["instance_name"] or next(iter(row["record_names"]), "")
    values = {"addresses": addresses, "state": state, "instance_name": name}
    return {**row, **values, ANSWER: answer_of(row, now)}


def _address(row: dict[str, Any]) -> str:
    service = f" to {row['service']}" if row["service"] else ""
    name = f"{row['key']}, {row['meta_mac']}" if row["meta_mac"] else row["slot"]
    return f"{name}: {row['ip']} {row['mac']}{service}"


def answer_of(row: dict[str, Any], now: datetime) -> str:
    """Return a short text on a guest's last answer; empty if it has sent no request."""
    last, requests = row["last_failure"], row["requests"]
    if last and last["failing"]:
        times = "" if last["times"] == 1 else f", {last['times']} times"
        since = finding.time_of_day(datetime.fromisoformat(last["failing_since"]), now)
        return f"fails since {since}: {last['status'] or 'no answer'}{times}: {last['brief']}"
    if requests:
        ago = finding.span((now - datetime.fromisoformat(requests["last_at"])).total_seconds())
        return f"{requests['last_status'] or 'no answer'}, {ago} ago"
    return ""
