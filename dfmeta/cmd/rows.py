"""Listings that the daemon gives to dfmeta's own commands."""

from __future__ import annotations

from typing import Any

from dfmeta.flows.key import key_of
from dfmeta.hub import Turns
from dfmeta.registry import Registry


def port_rows(registry: Registry) -> list[dict[str, Any]]:
    """Every guest port, in the order of ofports."""
    rows = []
    turns = Turns()
    for port, slots in list(registry):
        turns.give_way()
        endpoint = port.endpoint
        keys = [
            {
                "slot": number,
                "key": str(key_of(endpoint, number)),
                "mac": slot.address.mac,
                "ip": str(slot.address.ip),
                "connections": slot.connections,
            }
            for number, slot in sorted(slots.items())
            if endpoint is not None
        ]
        rows.append(
            {
                "port": port.name,
                "ofport": port.ofport,
                "key": str(key_of(endpoint, 0)) if endpoint else None,
                "addresses": keys,
                "iface_id": port.iface_id,
                "mac": port.mac,
                "instance": port.instance_id,
                "instance_name": port.instance_name,
                "project": port.project_id,
                "sources": dict(port.sources),
                "state": str(port.state),
                "fault": port.fault,
            }
        )
    return sorted(rows, key=lambda row: (row["ofport"] is None, row["ofport"] or 0, row["port"]))
