"""A Neutron trunk, as Neutron's Open vSwitch agent and os-vif make it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.harness.guest import Guest, uuid_of
from tests.harness.ovs import BRIDGE

NAME_MAX = 15
"""Maximum characters of a device's name; a trunk bridge's name has one less."""


@dataclass(frozen=True)
class Subport:
    """The two patch ports of a subport."""

    port_id: str
    vid: int

    @property
    def inner(self) -> str:
        """Return the name of the port on the integration bridge."""
        return f"spi-{self.port_id}"[:NAME_MAX]

    @property
    def outer(self) -> str:
        """Return the name of the port on the trunk's bridge."""
        return f"spt-{self.port_id}"[:NAME_MAX]


class Trunk:
    """A trunk whose parent is *guest*, which is not plugged into a bridge yet.

    :param vids: segmentation ids, one for each subport.
    """

    def __init__(self, guest: Guest, *vids: int) -> None:
        self.guest = guest
        self.id = uuid_of(f"trunk of {guest.ids.iface_id}")
        self.bridge = f"tbr-{self.id}"[: NAME_MAX - 1]
        self.subports = [Subport(uuid_of(f"{self.id} {vid}"), vid) for vid in vids]
        guest.host.add_bridge(self.bridge)
        guest.bridge = self.bridge
        guest.plug()
        metadata = {
            "bridge_name": self.bridge,
            "trunk_id": self.id,
            "subport_ids": json.dumps([one.port_id for one in self.subports]),
        }
        words = [f"external_ids:{key}={json.dumps(value)}" for key, value in metadata.items()]
        guest.host.vsctl("set", "Interface", guest.port, *words)
        self._patch(self.inner, self.outer, guest.ids.iface_id, guest.mac)
        for one in self.subports:
            mac = f"fa:16:3f:00:00:{one.vid % 256:02x}"
            self._patch(one.inner, one.outer, one.port_id, mac, vid=one.vid)

    @property
    def inner(self) -> str:
        """Return the name of the parent's patch port on the integration bridge."""
        return f"tpi-{self.guest.ids.iface_id}"[:NAME_MAX]

    @property
    def outer(self) -> str:
        """Return the name of the parent's patch port on the trunk's bridge."""
        return f"tpt-{self.guest.ids.iface_id}"[:NAME_MAX]

    def _patch(self, inner: str, outer: str, port_id: str, mac: str, *, vid: int = 0) -> None:
        ids = [f'external_ids:iface-id="{port_id}"', f'external_ids:attached-mac="{mac}"']
        tag = [f"tag={vid}", "vlan_mode=access"] if vid else []
        self.guest.host.vsctl(
            *("add-port", BRIDGE, inner, "--", "set", "Interface", inner, "type=patch"),
            *(f"options:peer={outer}", *ids),
            *("--", "add-port", self.bridge, outer, *tag),
            *("--", "set", "Interface", outer, "type=patch", f"options:peer={inner}", *ids),
        )
