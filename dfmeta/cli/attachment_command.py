"""``dfmeta attachment``: the attachments of containers, as the running daemon knows them."""

from datetime import UTC, datetime
from typing import Any, Final

import click
from oslo_config import cfg

from dfmeta.cli import client, common
from dfmeta.doctor.finding import time_of_day
from dfmeta.errors import AttachDriverError, UsageError
from dfmeta.http.client import TIMEOUT

ROOT: Final = "/attachments"
COLUMNS: Final = {
    "port": "PORT",
    "vid": "VID",
    "container": "CONTAINER",
    "ifname": "DEVICE",
    "network": "NETWORK",
    "ip": "ADDRESS",
    "mac": "MAC",
    "state": "STATE",
    "changed": "SINCE",
    "instance": "INSTANCE",
    "host": "HOST",
    "id": "ID",
}
DROP: Final = ("host", "instance", "mac", "ifname", "changed")
"""Columns that are left out on a narrow terminal, the least important one first."""
FIELDS: Final = (
    *COLUMNS,
    *("parent", "project", "owner", "port_id", "boot_id", "created", "instance_id", "labels"),
)
STYLES: Final = {
    "state": {"active": "green", "wanted": "yellow", "made": "yellow", "leaving": "dim"}
}
_ID: Final = "1f0a5b1e-4f0e-4b0e-8a61-0f5b1f6f3f10"


@common.group("attachment")
def attachment() -> None:
    """Manage the attachments of containers in VMs, which the VMs request over the metadata address.

    A container that still runs loses its network when its attachment is deleted.
    """


@attachment.subcommand(
    "list",
    "dfmeta attachment list",
    "dfmeta attachment list --format json",
    failed="dfmeta-agent does not answer",
)
@common.listing_options
def show(conf: cfg.ConfigOpts, *, fmt: str, wide: bool) -> None:
    """Show the attachments of this host's VMs, and of all hosts that share the database.

    PORT is the VM's port, and VID the VLAN id (segmentation id) on its trunk. An attachment in the
    state "active" works; "wanted" and "made" are on the way to it, and "leaving" is being removed.
    """
    rows = _request(conf, ROOT)
    rows.sort(key=lambda row: (row["port"], row["vid"]))
    if fmt == common.JSON:
        common.print_rows(rows, {field: field for field in FIELDS}, fmt)
        return
    now = datetime.now(UTC)
    shown = [
        {**row, "changed": time_of_day(datetime.fromtimestamp(row["changed"], UTC), now)}
        for row in rows
    ]
    common.print_rows(shown, COLUMNS, fmt, styles=STYLES, drop=DROP, wide=wide)


@attachment.subcommand(
    "delete", f"dfmeta attachment delete {_ID}", failed="dfmeta-agent does not answer"
)
@common.config_options
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=click.UUID)
def delete(conf: cfg.ConfigOpts, *, ids: tuple[object, ...]) -> None:
    """Delete attachments by their ids, which the list shows.

    The container's runtime is not told. The VLAN id rests for [attachments] rest_unknown seconds,
    since the VM may still have the device.
    """
    for attachment_id in ids:
        _request(conf, f"{ROOT}/{attachment_id}", "DELETE")
        click.echo(f"{attachment_id}: deleted")


@attachment.subcommand("gc", "dfmeta attachment gc", failed="OVSDB does not answer")
@common.config_options
def gc(conf: cfg.ConfigOpts) -> None:
    """Compare the attachments with the switch at once, as dfmeta-agent does now and then.

    Attachments of VMs that are gone for longer than [attachments] grace leave, the data plane of
    others is made again where it is missing, and ports without an attachment are removed.
    """
    done = _request(conf, f"{ROOT}/gc", "POST")
    click.echo(f"{done['removed']} attachments removed, {done['waiting']} wait for the data plane")


def _request(conf: cfg.ConfigOpts, path: str, method: str = "GET") -> Any:
    """Return the document of the daemon's answer.

    :raises UsageError: when the attachment does not exist, or attachments are off.
    :raises AttachDriverError: when the database or the data plane does not answer.
    """
    status, document = client.with_running(
        conf, lambda: client.request_agent(conf, path, method, timeout=TIMEOUT)
    )
    if status in (200, 204):
        return document
    message = document.get("message", "") if isinstance(document, dict) else ""
    cause = f"{path}: {message or f'dfmeta-agent answers with {status}'}"
    raise AttachDriverError(cause=cause) if status == 503 else UsageError(cause=cause)
