"""Finds the devices that have a MAC: in the rows of OVSDB, and in what a bridge has learned. Pure.

Trust: the host's programs write the rows. A bridge learns the sources of frames, which any device
of a network may have forged: a MAC that is found there may only be refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dfmeta.attach.model import Parent
from dfmeta.model import ATTACHMENT_KEY
from dfmeta.ovsdb.meta_ids import IDS
from dfmeta.ovsdb.transactions import PortRow

_LEARNED = 4
"""Columns of fdb/show: port, VLAN, MAC, age."""


def is_ports(ports: Iterable[PortRow], mac: str, parent: Parent) -> bool:
    """Return whether a port, except containers' and the VM's own, has a MAC.

    :param mac: in lower case with colons.
    """
    others = (
        one
        for one in ports
        if ATTACHMENT_KEY not in one.external_ids
        and one.external_ids.get("iface-id") != parent.port_id
    )
    return any(mac in _macs(one) for one in others)


def is_learned(table: str, mac: str, vlan: int) -> bool:
    """Return whether a bridge has learned a MAC in a VLAN.

    :param table: the answer of ovs-vswitchd to fdb/show (ovs-vswitchd(8)).
    :param vlan: 0: untagged.
    """
    lines = (line.split() for line in table.splitlines())
    return any(
        len(line) == _LEARNED and (line[1], line[2].lower()) == (str(vlan), mac) for line in lines
    )


def _macs(port: PortRow) -> Iterator[str]:
    yield port.mac_in_use.lower()
    yield port.external_ids.get("attached-mac", "").strip().lower()
    yield port.external_ids.get(IDS.mac, "").strip().lower()
