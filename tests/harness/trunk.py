"""A Neutron trunk, as Neutron's Open vSwitch agent and os-vif make it.

A container of the VM is plugged into the trunk's bridge, in the VLAN of its subport: its frames
enter that bridge as those that the VM has tagged.
"""

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


class Container(Guest):
    """A container, whose own interface has no identity."""

    def __init__(self, trunk: Trunk, vid: int, name: str, *, address: str, mac: str = "") -> None:
        super().__init__(
            trunk.guest.host, name, address=address, mac=mac, bridge=trunk.bridge, plug=False
        )
        self.vid = vid
        self.plug()
        self.host.vsctl("set", "Port", self.port, f"tag={vid}", "vlan_mode=access")

    def external_ids(self) -> dict[str, str]:
        """Return none: the subport has the identity."""
        return {}


class Trunk:
    """A trunk whose parent is *guest*, which is not plugged into a bridge yet.

    :param vids: segmentation ids, one for each subport.
    :param plugged: the VM's interface is there; else :meth:`plug` adds it.
    :param wired: the patch ports are there; else Neutron's agent makes them, and writes the
        trunk's metadata into the VM's row.
    :param trunk_id: Neutron's id of the trunk; empty: one that depends on the guest.
    """

    def __init__(
        self, guest: Guest, *vids: int, plugged: bool = True, wired: bool = True, trunk_id: str = ""
    ) -> None:
        self.guest = guest
        self._plugged, self._wired = plugged, wired
        self.id = trunk_id or uuid_of(f"trunk of {guest.ids.iface_id}")
        self.bridge = f"tbr-{self.id}"[: NAME_MAX - 1]
        self.subports: list[Subport] = []
        guest.host.add_bridge(self.bridge)
        guest.bridge = self.bridge
        if plugged:
            self.plug()
        if wired:
            self._patch(self.inner, self.outer, guest.ids.iface_id, guest.mac)
        for vid in vids:
            self.add(vid)

    def plug(self) -> None:
        """Add the VM's interface to the trunk's bridge, as os-vif does."""
        self.guest.plug()
        self._plugged = True
        if self._wired:
            self.write_metadata()
        else:
            where = ("set", "Interface", self.guest.port)
            self.guest.host.vsctl(*where, f"external_ids:bridge_name={self.bridge}")

    def write_metadata(self) -> None:
        """Write the trunk into the VM's row, as Neutron's agent does at each change of the trunk.

        It writes all external_ids of that row anew.
        """
        ids = {
            **self.guest.external_ids(),
            "bridge_name": self.bridge,
            "trunk_id": self.id,
            "subport_ids": json.dumps([subport.port_id for subport in self.subports]),
        }
        words = [f"{key}={json.dumps(value)}" for key, value in ids.items()]
        self.guest.host.vsctl(
            *("clear", "Interface", self.guest.port, "external_ids", "--"),
            *("set", "Interface", self.guest.port),
            *(f"external_ids:{word}" for word in words),
        )

    def add(self, vid: int) -> Subport:
        """Add a subport."""
        made = Subport(uuid_of(f"{self.id} {vid}"), vid)
        mac = f"fa:16:3f:00:{vid >> 8:02x}:{vid & 255:02x}"
        self._patch(made.inner, made.outer, made.port_id, mac, vid=vid)
        self.subports.append(made)
        if self._plugged:
            self.write_metadata()
        return made

    def remove(self, vid: int) -> None:
        """Remove a subport."""
        (gone,) = (subport for subport in self.subports if subport.vid == vid)
        self.subports.remove(gone)
        self.guest.host.vsctl("del-port", gone.inner, "--", "del-port", gone.outer)
        if self._plugged:
            self.write_metadata()

    def close(self) -> None:
        """Remove the trunk with all its ports; the VM's device stays."""
        host = self.guest.host
        names = [self.inner, *(subport.inner for subport in self.subports)]
        words = [word for name in names for word in ("--", "--if-exists", "del-port", name)]
        host.vsctl("--if-exists", "del-br", self.bridge, *words)
        self._plugged = False

    @property
    def inner(self) -> str:
        """Return the name of the parent's patch port on the integration bridge."""
        return f"tpi-{self.guest.ids.iface_id}"[:NAME_MAX]

    @property
    def outer(self) -> str:
        """Return the name of the parent's patch port on the trunk's bridge."""
        return f"tpt-{self.guest.ids.iface_id}"[:NAME_MAX]

    def _patch(self, inner: str, outer: str, port_id: str, mac: str, *, vid: int = 0) -> None:
        # Each port is on a network of its own. As an untagged port of the bridge, the parent would
        # carry the tagged frames of the trunk to all other trunks.
        local = self.guest.host.next_number()
        ids = [f'external_ids:iface-id="{port_id}"', f'external_ids:attached-mac="{mac}"']
        tag = [f"tag={vid}", "vlan_mode=access"] if vid else []
        self.guest.host.vsctl(
            *("add-port", BRIDGE, inner, f"tag={local}"),
            *("--", "set", "Interface", inner, "type=patch"),
            *(f"options:peer={outer}", *ids),
            *("--", "add-port", self.bridge, outer, *tag),
            *("--", "set", "Interface", outer, "type=patch", f"options:peer={inner}", *ids),
        )
