"""``dfmeta flows``: dfmeta's flows with their names, the ports that they serve, and their state."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import click
from oslo_config import cfg

from dfmeta.apps.switch_facts import Reading, read_flows, read_meters
from dfmeta.cli import gather
from dfmeta.cli.common import (
    JSON,
    config_options,
    ending,
    format_option,
    load_config,
    print_rows,
    wide_option,
)
from dfmeta.cli.in_force import say, take_over
from dfmeta.exceptions import NotRunningError, OvsdbError, StartError, SwitchError
from dfmeta.flows.flow import Flow
from dfmeta.flows.pipeline import COOKIE_PREFIX, COOKIE_PREFIX_MASK
from dfmeta.inspect.facts import KnownPort, Settings, Snapshot
from dfmeta.inspect.ledger import Entry, entries, faulty, wanted_flows
from dfmeta.model import Endpoint
from dfmeta.ports.ovsdb_facts import read_snapshot

COLUMNS: Final = {
    "table": "TABLE",
    "purpose": "PURPOSE",
    "family": "FAMILY",
    "port": "PORT",
    "instance": "INSTANCE",
    "address": "ADDRESS",
    "service": "SERVICE",
    "packets": "PACKETS",
    "bytes": "BYTES",
    "dropped": "DROPPED",
    "state": "STATE",
}
DROP: Final = ("bytes", "dropped", "service", "instance", "table", "address", "packets", "family")
"""Columns that are left out on a narrow terminal, the least important one first."""
FIELDS: Final = (*COLUMNS, "ofport", "key", "priority", "cookie", "meter")
STYLES: Final = {
    "state": {
        "ok": "green",
        "unchecked": "yellow",
        "missing": "bold red",
        "differs": "bold red",
        "unknown": "bold red",
    }
}
OFCTL: Final = "ovs-ofctl"
SETTLE_TRIES: Final = 4
SETTLE_PAUSE: Final = 0.4
"""Seconds between two readings: the daemon may change flows in between, so that only a fault in
all readings is shown."""


@click.command(
    "flows",
    epilog=ending("dfmeta flows", "dfmeta flows --raw", failed="the bridge does not answer"),
)
@config_options
@format_option
@wide_option
@click.option("--raw", is_flag=True, help="Show the output of ovs-ofctl, which must be installed.")
def flows(config_files: tuple[str, ...], *, fmt: str, wide: bool, raw: bool) -> None:
    """Show dfmeta's flows on the bridge, and mark unknown and missing flows.

    Each flow is shown with the names of its table and purpose, its family (4 or 6, the version of
    IP, if it belongs to one), the port and instance that it serves, the guest's address and the
    service's address if it has one, its counters, and the number of packets that its meter has
    dropped because the guest sends too many. Flows of other programs are not shown.
    """
    conf = load_config(config_files)
    say(take_over(conf))
    wanted = gather.settings(conf)
    if raw:
        click.echo(_raw(wanted), nl=False)
        return
    snapshot = Snapshot()
    with contextlib.suppress(OvsdbError):  # OVSDB is only needed for names
        snapshot = read_snapshot(wanted.ovsdb)
    ports, rows, problem = compare(conf, wanted, snapshot=snapshot)
    if problem:
        click.echo(f"dfmeta: {problem}; the flows are shown unchecked", err=True)
    names, dropped = _names(ports, snapshot, wanted), _dropped(wanted)
    columns = {field: field for field in FIELDS} if fmt == JSON else COLUMNS
    shown = [_row(entry, names, dropped) for entry in rows]
    print_rows(shown, columns, fmt, styles=STYLES, drop=DROP, wide=wide)


def compare(
    conf: cfg.ConfigOpts, wanted: Settings, *, snapshot: Snapshot
) -> tuple[tuple[KnownPort, ...], tuple[Entry, ...], str]:
    """Read the switch and compare its flows with the daemon's desired flows.

    :return: the ports, the flows, and the reason if they could not be compared (else empty).
    :raises SwitchError: when the switch does not answer.
    """
    for _ in range(SETTLE_TRIES):
        ports, desired, problem = _desired(conf, wanted, snapshot)
        reading: Reading = read_flows(Path(wanted.socket), wanted.layout)
        rows = entries(reading.ours, desired, layout=wanted.layout, keys=wanted.keys)
        if problem or not faulty(rows):
            break
        time.sleep(SETTLE_PAUSE)
    return ports, rows, problem


def _desired(
    conf: cfg.ConfigOpts, wanted: Settings, snapshot: Snapshot
) -> tuple[tuple[KnownPort, ...], tuple[Flow, ...] | None, str]:
    try:
        ports = gather.daemon_ports(conf)
    except NotRunningError as error:
        problem = f"dfmeta-agent does not answer at {wanted.admin}: {error.fields['cause']}"
        return gather.ovsdb_ports(snapshot, wanted.bridge), None, problem
    tap = gather.tap_of(wanted, snapshot, ip6=gather.served_ip6(conf))
    if tap is None:
        return ports, None, f"{wanted.tap} is not on {wanted.bridge}, or its port is not known"
    return ports, wanted_flows(ports, tap), ""


def _names(
    ports: tuple[KnownPort, ...], snapshot: Snapshot, wanted: Settings
) -> dict[Endpoint, tuple[str, str]]:
    names = {port.endpoint: (port.name, port.instance) for port in ports if port.ofport is not None}
    tap = snapshot.interface(wanted.tap, wanted.bridge)
    if tap is not None and tap.ofport is not None:
        names[Endpoint(tap.ofport)] = (tap.name, "")
    return names


def _dropped(wanted: Settings) -> dict[int, int]:
    """Return meter → packets that it has dropped; empty if the meters cannot be read."""
    with contextlib.suppress(SwitchError):  # show the flows without these numbers
        found = read_meters(Path(wanted.socket), wanted.layout)
        return {one.number: one.dropped for one in found or ()}
    return {}


def _row(
    entry: Entry, names: dict[Endpoint, tuple[str, str]], dropped: dict[int, int]
) -> dict[str, Any]:
    known = entry.ofport is not None
    place = Endpoint(entry.ofport or 0, entry.vid)
    name, instance = names.get(place, ("gone", "") if known else ("", ""))
    return {
        "table": entry.table,
        "purpose": entry.purpose,
        "family": entry.family,
        "port": name or None,
        "instance": instance or None,
        "address": entry.address or None,
        "packets": entry.packets,
        "bytes": entry.bytes,
        "dropped": dropped.get(entry.meter) if entry.meter is not None else None,
        "state": str(entry.state),
        "ofport": entry.ofport,
        "key": entry.key or None,
        "priority": entry.priority,
        "cookie": f"{entry.cookie:#x}",
        "meter": entry.meter,
        "service": entry.service or None,
    }


def _raw(wanted: Settings) -> str:
    """Return dfmeta's flows as ovs-ofctl prints them.

    :raises StartError: when ovs-ofctl is not installed.
    :raises SwitchError: when it fails several times; on a busy socket it fails now and then.
    """
    program = shutil.which(OFCTL)
    if program is None:
        raise StartError(
            cause=f"--raw needs {OFCTL}, which is not on PATH",
            remedy="Install Open vSwitch's tools, or leave --raw out",
        )
    match = f"cookie={COOKIE_PREFIX:#x}/{COOKIE_PREFIX_MASK:#x}"
    command = [program, "-O", "OpenFlow13", "dump-flows", f"unix:{wanted.socket}", match]
    for _ in range(SETTLE_TRIES):
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # ovs-ofctl, no shell
        if not done.returncode:
            return done.stdout
        time.sleep(SETTLE_PAUSE)
    raise SwitchError(what=" ".join(command[1:]), cause=done.stderr.strip())
