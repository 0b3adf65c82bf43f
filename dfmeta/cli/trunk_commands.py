"""``dfmeta subport`` and ``dfmeta trunk``: trunks and their subports, in OVSDB."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar
from uuid import UUID

import click
from oslo_config import cfg

from dfmeta.cli import common, port_argument
from dfmeta.errors import OvsdbError, SubportListError, UsageError
from dfmeta.model import MTU, VID_MAX, Port, PortKind
from dfmeta.ovsdb import subport_list, trunk_bridge
from dfmeta.ovsdb.idl import OvsdbClient
from dfmeta.ovsdb.rows import Interface, Snapshot
from dfmeta.ovsdb.snapshot import read_snapshot

COLUMNS: Final = {
    "parent": "PARENT",
    "vid": "VID",
    "port": "PORT",
    "port_id": "PORT ID",
    "instance": "INSTANCE",
    "project": "PROJECT",
    "mac": "MAC",
    "mtu": "MTU",
    "attachment": "ATTACHMENT",
    "listed": "LISTED",
    "fault": "FAULT",
}
DROP: Final = ("mtu", "attachment", "project", "mac", "port_id", "listed", "port")
"""Columns that are left out on a narrow terminal, the least important one first."""
_INSTANCE: Final = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
F = TypeVar("F", bound=Callable[..., Any])


@common.group("subport")
def subport() -> None:
    """Manage the instances of subports, the VLANs of a VM's trunk.

    The list of subports is a key of the parent's row in OVSDB. It goes with the port.
    """


def _parent_options(function: F) -> F:
    """Give a command PORT and ``--vid``."""
    function = click.option(
        "--vid",
        required=True,
        type=click.IntRange(1, VID_MAX),
        help="VLAN id (segmentation id) of the subport on its trunk.",
    )(function)
    return click.argument("port", shell_complete=port_argument.complete_port)(function)


@subport.subcommand(
    "add",
    f"dfmeta subport add tap3f1a9c22-5e --vid 100 --instance {_INSTANCE}",
    f"dfmeta subport add tpi-3f1a9c22-5e --vid 100 --instance {_INSTANCE}",
    failed="OVSDB does not answer",
)
@common.config_options
@_parent_options
@click.option(
    "--instance",
    "instance_id",
    default="",
    help="UUID of the instance; its record answers requests.",
)
@click.option(
    "--project", "project_id", default="", help="Project of the instance. Default: the parent's."
)
@click.option("--mac", default="", help="MAC of the subport's device.")
@click.option(
    "--mtu",
    type=click.IntRange(*MTU),
    help="MTU of the subport's network, in bytes. Default: the parent's.",
)
@click.option("--port-id", default="", help="Id of the subport's port, of Neutron for example.")
def add(conf: cfg.ConfigOpts, *, port: str, **members: Any) -> None:
    """Add a subport to the list of its parent PORT, or replace it.

    PORT is the name, iface-id, MAC or instance of the parent's port. Where the VLAN has a port of
    its own on the bridge, the entry describes that port, and external_ids:dfmeta-instance of that
    port comes first. Without --instance, requests of the subport get 404, unless subport_identity
    is parent.
    """
    try:
        entry = subport_list.entry_of(members)
    except SubportListError as error:
        raise UsageError(cause=error.cause, remedy="See dfmeta subport add --help") from error
    parent, snapshot = port_argument.parent_of(conf, port)
    _change(conf, parent, lambda text: subport_list.with_entry(text, entry))
    vid = members["vid"]
    named = f"instance {entry.instance_id}" if entry.instance_id else "no instance"
    click.echo(f"{parent.name}, VID {vid}: {named}")
    vids = {row.segmentation_id for row in _subports(snapshot, parent.bridge, parent.name)}
    if parent.type == "patch" and vid not in vids:
        click.echo(f"The trunk of {parent.name} has no subport with VID {vid} yet.", err=True)


@subport.subcommand(
    "delete", "dfmeta subport delete tap3f1a9c22-5e --vid 100", failed="OVSDB does not answer"
)
@common.config_options
@_parent_options
def delete(conf: cfg.ConfigOpts, *, port: str, vid: int) -> None:
    """Remove a subport from the list of its parent PORT.

    A port of its own on the bridge stays; Neutron, or the program that made it, removes it. The
    entry of an attachment comes back: `dfmeta attachment delete` removes the attachment.
    """
    parent, _snapshot = port_argument.parent_of(conf, port)
    if not _change(conf, parent, lambda text: subport_list.without(text, vid)):
        raise UsageError(
            cause=f"{parent.name} has no entry of VID {vid}",
            remedy=f"`dfmeta subport list {parent.name}` shows its subports",
        )
    click.echo(f"{parent.name}, VID {vid}: deleted")


@subport.subcommand(
    "list",
    "dfmeta subport list",
    "dfmeta subport list tap3f1a9c22-5e --format json",
    failed="OVSDB does not answer",
)
@common.listing_options
@click.argument("port", required=False, default="", shell_complete=port_argument.complete_port)
def list_subports(conf: cfg.ConfigOpts, *, fmt: str, wide: bool, port: str) -> None:
    """Show the subports of PORT, or of all ports, as OVSDB has them.

    PORT is the port of a subport on the bridge; LISTED is yes for a subport that has an entry in
    its parent's list. ATTACHMENT is the id of the attachment that made it. FAULT names an entry
    that does not count, and why. See `dfmeta ports` for the instances that other identity sources
    give.
    """
    bridge = conf.df_metadata.integration_bridge
    if port:
        parent, snapshot = port_argument.parent_of(conf, port)
        parents = [parent]
    else:
        snapshot = read_snapshot(conf.df_metadata.ovsdb_connection)
        parents = [row for row in snapshot.interfaces if row.bridge == bridge and row.ports]
    rows = [row for each in parents for row in _rows(each, snapshot)]
    if not port:
        rows += [_port_row(port, listed=False) for port in _subports(snapshot, bridge, "")]
    common.print_rows(rows, COLUMNS, fmt, drop=DROP, wide=wide)


def _rows(parent: Interface, snapshot: Snapshot) -> Iterable[dict[str, Any]]:
    """Return the rows of a parent's subports, and of its entries that have none or do not count."""
    listed = subport_list.parse(parent.external_ids.get(subport_list.KEY, ""))
    if parent.ports[0].kind is PortKind.SUBPORT:
        return
    subports = _subports(snapshot, parent.bridge, parent.name)
    by_vid = {port.segmentation_id: port for port in subports}
    for vid in sorted(by_vid.keys() | listed.entries.keys()):
        entry, port = listed.entries.get(vid), by_vid.get(vid)
        if port is not None:
            yield _port_row(port, listed=entry is not None)
        elif entry is not None:
            yield _row(
                entry,
                parent=parent.name,
                vid=vid,
                port_id=entry.port_id,
                attachment=entry.attachment,
                fault="the trunk has no subport with this VID",
            )
    for fault in listed.faults:
        empty = dict.fromkeys(COLUMNS)
        yield empty | {"parent": parent.name, "listed": True, "fault": fault}


def _port_row(port: Port, *, listed: bool) -> dict[str, Any]:
    return _row(
        port,
        parent=port.parent or None,
        vid=port.segmentation_id or None,
        port=port.name,
        port_id=port.iface_id,
        attachment=port.attached,
        listed=listed,
        fault=port.fault or None,
    )


def _row(subport: Port | subport_list.ListEntry, **values: Any) -> dict[str, Any]:
    return {
        "port": None,
        "instance": subport.instance_id,
        "project": subport.project_id,
        "mac": subport.mac,
        "mtu": subport.mtu or None,
        "listed": True,
        **values,
    }


def _subports(snapshot: Snapshot, bridge: str, parent: str) -> list[Port]:
    """Return the subports of a parent on the bridge; empty: those without a known parent."""
    ports = [port for row in snapshot.interfaces if row.bridge == bridge for port in row.ports]
    return [port for port in ports if port.kind is PortKind.SUBPORT and port.parent == parent]


def _change(conf: cfg.ConfigOpts, parent: Interface, change: Callable[[str], str]) -> bool:
    """Change the list of a parent; return whether it differs now.

    :raises OvsdbError: when OVSDB does not answer.
    :raises SubportListError: when the present list cannot be read.
    """
    remote = conf.df_metadata.ovsdb_connection

    def act(idl: Any, _txn: Any) -> bool:
        row = idl.tables["Interface"].rows.get(UUID(parent.uuid))
        if row is None:
            cause = "the port was removed meanwhile"
            raise OvsdbError(connection=remote, cause=cause, remedy="Run `dfmeta ports`")
        return subport_list.write_list(row, change)

    try:
        return OvsdbClient(remote, {"Interface": ("external_ids",)}).run(act)
    except SubportListError as error:
        raise SubportListError(
            cause=f"{parent.name}: {error.fields['cause']}",
            remedy=f"Correct it, or remove it with `ovs-vsctl remove Interface {parent.name} "
            "external_ids dfmeta-subports`",
        ) from error


@common.group("trunk")
def trunk() -> None:
    """Give a VM a trunk, so that its containers can have ports of their own.

    With Neutron, create the trunk there instead.
    """


@trunk.subcommand("enable", "dfmeta trunk enable tap3f1a9c22-5e", failed="OVSDB does not answer")
@common.config_options
@click.argument("port", shell_complete=port_argument.complete_port)
def enable(conf: cfg.ConfigOpts, *, port: str) -> None:
    """Move the interface of the VM's PORT to a bridge of its own, the bridge of its trunk.

    PORT is the name, iface-id, MAC or instance of the VM's port. A pair of patch ports connects the
    new bridge to the integration bridge, where the VM gets another port number; its device stays.
    Tagged frames of the VM no longer reach the integration bridge.
    """
    parent, _snapshot = port_argument.parent_of(conf, port)
    done = trunk_bridge.enable(
        conf.df_metadata.ovsdb_connection, conf.df_metadata.integration_bridge, parent.name
    )
    already = "" if done.changed else " already"
    click.echo(f"{done.interface}: is{already} on {done.bridge}, connected by {done.parent}")


@trunk.subcommand("disable", "dfmeta trunk disable tap3f1a9c22-5e", failed="OVSDB does not answer")
@common.config_options
@click.argument("port", shell_complete=port_argument.complete_port)
def disable(conf: cfg.ConfigOpts, *, port: str) -> None:
    """Move the interface of the VM's PORT back to the integration bridge, and delete its trunk.

    It fails while the trunk has subports.
    """
    parent, _snapshot = port_argument.parent_of(conf, port)
    bridge = conf.df_metadata.integration_bridge
    done = trunk_bridge.disable(conf.df_metadata.ovsdb_connection, bridge, parent.name)
    if done.changed:
        click.echo(f"{done.interface}: is on {bridge}; {done.bridge} is deleted")
    else:
        click.echo(f"{done.interface}: has no trunk")
