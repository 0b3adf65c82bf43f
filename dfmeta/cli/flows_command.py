"""``dfmeta flows``: dfmeta's flows with their names, the ports that they serve, and their state."""

import contextlib
import shutil
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Final

import click
from oslo_config import cfg

from dfmeta import errors, model
from dfmeta.cli import common, port_argument
from dfmeta.cli.client import agent_of, make_host_settings, report_differences, take_over
from dfmeta.doctor.facts import HostSettings, KnownPort
from dfmeta.doctor.flow_diff import SETTLE_TRIES, FlowEntry, compare
from dfmeta.flows.pipeline import COOKIE_PREFIX, COOKIE_PREFIX_MASK
from dfmeta.ovsdb.rows import Snapshot
from dfmeta.ovsdb.snapshot import read_snapshot
from dfmeta.runtime import clock

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
    "state": "STATE",
}
BRIDGE: Final = {"bridge": "BRIDGE"}
"""A column of hosts with two bridges."""
DROP: Final = ("bytes", "service", "packets", "instance", "table", "address", "family")
"""Columns that are left out on a narrow terminal, the least important one first."""
FIELDS: Final = (*COLUMNS, "ofport", "vid", "key", "next_hop", "priority", "cookie", *BRIDGE)
STYLES: Final = {
    "state": {
        "ok": "green",
        "unchecked": "yellow",
        "flood": "yellow",
        "missing": "bold red",
        "differs": "bold red",
        "unknown": "bold red",
    }
}
OFCTL: Final = "ovs-ofctl"


@common.command(
    "flows",
    "dfmeta flows",
    "dfmeta flows --port tap3c1f2a5e-7b",
    "dfmeta flows --raw",
    failed="the bridge does not answer",
)
@common.listing_options
@click.option("--raw", is_flag=True, help="Show the output of ovs-ofctl, which must be installed.")
@click.option(
    "--port",
    metavar="PORT",
    shell_complete=port_argument.complete_port,
    help="Show only the flows of one guest: of a port's name, iface-id, MAC or guest's address, or "
    "of an instance's id or name.",
)
def flows(conf: cfg.ConfigOpts, *, fmt: str, wide: bool, raw: bool, port: str | None) -> None:
    """Show dfmeta's flows on the bridges, and mark unknown and missing flows.

    Each flow is shown with the names of its table and purpose, its family (4 or 6, the version of
    IP, if it belongs to one), the port and instance that it serves, the guest's address or guest
    next hop and the service's address if it has one, and its counters. The state ``flood`` marks
    the flows that drop the packets of a guest because it sends too many. Flows of other
    programs are not shown.
    """
    if raw and port is not None:
        raise click.UsageError("--raw shows the flows of all ports: leave out --raw or --port")
    report_differences(take_over(conf))
    wanted = make_host_settings(conf)
    if raw:
        for path, _layout in wanted.sides.values():
            click.echo(_raw(path), nl=False)
        return
    snapshot = Snapshot()
    with contextlib.suppress(errors.OvsdbError):  # OVSDB is only needed for names
        snapshot = read_snapshot(wanted.ovsdb)
    compared = compare(agent_of(conf), wanted, snapshot)
    for problem in dict.fromkeys(compared.problems.values()):
        of = [bridge for bridge, text in compared.problems.items() if text == problem]
        which = "the flows" if len(of) == len(wanted.sides) else f"the flows of {of[0]}"
        click.echo(f"dfmeta: {problem}; {which} are shown unchecked", err=True)
    names = _names(compared.ports, snapshot, wanted)
    columns = {field: field for field in FIELDS}
    if fmt != common.JSON:
        columns = (BRIDGE if wanted.meta is not None else {}) | COLUMNS
    shown = [_row(entry, _named(entry, names, wanted)) for entry in compared.rows]
    if port is not None:
        matching = port_argument.find(conf, compared.ports, port)
        if not matching:
            raise port_argument.no_such_port(conf, snapshot, port)
        guests = {(guest.name, guest.vid or None) for guest in matching}
        shown = [row for row in shown if (row["port"], row["vid"]) in guests]
    if fmt != common.JSON:
        # No flow has an address and a next hop.
        shown = [
            {
                **row,
                "address": row["address"] or row["next_hop"],
                "port": f"{row['port']} VID {row['vid']}" if row["vid"] else row["port"],
            }
            for row in shown
        ]
    common.print_rows(shown, columns, fmt, styles=STYLES, drop=DROP, wide=wide)
    for bridge, error in compared.unread.items():
        click.echo(f"dfmeta: the flows of {bridge} are not shown: {error}", err=True)
    if compared.unread:
        sys.exit(1)


def _names(
    ports: tuple[KnownPort, ...], snapshot: Snapshot, wanted: HostSettings
) -> dict[str, dict[model.Endpoint, tuple[str, str]]]:
    """Return bridge → endpoint → names of the port and its instance."""
    names = {port.endpoint: (port.name, port.instance) for port in ports if port.ofport is not None}
    meta = wanted.meta.names if wanted.meta is not None else None
    by_bridge = {wanted.bridge: names}
    dfmeta_ports = [(wanted.tap, wanted.home)]
    if meta is not None:
        by_bridge[meta.bridge] = {}
        dfmeta_ports += [(meta.patch_int, wanted.bridge), (meta.patch_meta, meta.bridge)]
    for name, bridge in dfmeta_ports:
        port = snapshot.interface(name, bridge)
        if port is not None and port.ofport is not None:
            by_bridge[bridge][model.Endpoint(port.ofport)] = (name, "")
    return by_bridge


def _named(
    entry: FlowEntry, names: dict[str, dict[model.Endpoint, tuple[str, str]]], wanted: HostSettings
) -> tuple[str, str]:
    """Return the names of the port and the instance that a flow belongs to; empty: to none."""
    if entry.ofport is None:
        return "", ""
    # A flow of a guest has its number on the integration bridge, where the guest is.
    bridge = wanted.bridge if entry.key else entry.bridge
    return names[bridge].get(model.Endpoint(entry.ofport, entry.vid), ("gone", ""))


def _row(entry: FlowEntry, named: tuple[str, str]) -> dict[str, Any]:
    values = {key: None if value == "" else value for key, value in asdict(entry).items()}
    name, instance = named
    return {
        **values,
        "port": name or None,
        "instance": instance or None,
        "state": str(entry.state),
        "vid": entry.vid or None,
        "cookie": f"{entry.cookie:#x}",
    }


def _raw(path: str) -> str:
    """Return dfmeta's flows on one bridge as ovs-ofctl prints them.

    :param path: the bridge's management socket.
    :raises StartError: when ovs-ofctl is not installed.
    :raises SwitchError: when it fails several times; on a busy socket it fails now and then.
    """
    program = shutil.which(OFCTL)
    if program is None:
        raise errors.StartError(
            cause=f"--raw needs {OFCTL}, which is not on PATH",
            remedy="Install Open vSwitch's tools, or leave --raw out",
        )
    match = f"cookie={COOKIE_PREFIX:#x}/{COOKIE_PREFIX_MASK:#x}"
    words = [program, "-O", "OpenFlow13", "dump-flows", f"unix:{path}", match]
    for _ in range(SETTLE_TRIES):
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603  # ovs-ofctl, no shell
        if not done.returncode:
            return done.stdout
        clock.sleep(clock.CHECK_INTERVAL)
    raise errors.SwitchError(what=" ".join(words[1:]), cause=done.stderr.strip())
