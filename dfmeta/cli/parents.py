"""Finds the port of a VM that a command changes."""

from __future__ import annotations

from oslo_config import cfg

from dfmeta.cli import gather
from dfmeta.doctor import find_port
from dfmeta.errors import UsageError
from dfmeta.model import PortKind
from dfmeta.ovsdb.rows import Interface, Snapshot
from dfmeta.ovsdb.snapshot import read_snapshot


def parent_of(conf: cfg.ConfigOpts, text: str) -> tuple[Interface, Snapshot]:
    """Return the interface of a parent that *text* names, and OVSDB's configuration.

    :param text: name, iface-id, MAC or instance of the VM's port.
    :raises OvsdbError: when OVSDB does not answer.
    :raises UsageError: when no port, several ports or a subport has that name.
    """
    wanted = gather.settings(conf)
    snapshot = read_snapshot(wanted.ovsdb)
    known = gather.ovsdb_ports(snapshot, wanted.bridge)
    found = gather.find(conf, known, text)
    found += [
        one
        for one in find_port.behind_trunk(known, snapshot, text, bridge=wanted.bridge)
        if one not in found
    ]
    parents = [one for one in found if one.kind is not PortKind.SUBPORT]
    if len(parents) == 1:
        return next(one for one in snapshot.interfaces if one.name == parents[0].name), snapshot
    if parents:
        names = ", ".join(one.name for one in parents)
        raise UsageError(cause=f"{text} has several ports: {names}", remedy="Name one of them")
    if found and found[0].parent:
        one = found[0]
        raise UsageError(
            cause=f"{one.name} is a subport of {one.parent}, with VID {one.segmentation_id}",
            remedy=f"Give its parent: {one.parent} --vid {one.segmentation_id}",
        )
    why = find_port.no_port(snapshot, text, wanted=wanted, running=True)
    raise UsageError(cause=why, remedy="`dfmeta ports` lists the ports")
