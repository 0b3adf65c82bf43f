"""Containers behind a guest's port, each with a VLAN of its own: tagged subports."""

import ipaddress
import json
from collections.abc import Iterable
from typing import Any

from tests.harness import netns
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.program import Script

KEY = "dfmeta-subports"
"""Key in ``external_ids`` of the parent's interface with the list of its subports."""


class Container(Guest):
    """A container of *parent*: a namespace whose frames leave at the parent's port with a tag.

    A context manager that removes its namespace. Its row is the parent's: it is never plugged in.
    """

    def __init__(
        self,
        parent: Guest,
        vid: int,
        name: str = "",
        *,
        address: str = "10.9.0.5/24",
        address6: Iterable[str] = (),
        mac: str = "fa:16:3f:00:00:05",
        instance_id: str = "",
    ) -> None:
        """Make a container; several may have the same addresses.

        :param instance_id: empty: a UUID derived from the parent and the VLAN id.
        """
        self.parent, self.vid = parent, vid
        self.host, self.port, self.bridge = parent.host, parent.port, parent.bridge
        self.name = name or f"{parent.name}-{vid}"
        self.mac, self.route = mac, "on-link"
        self.interface = ipaddress.IPv4Interface(address)
        what = f"{parent.ids.iface_id} VID {vid}"
        self.ids = Ids(
            iface_id=uuid_of(f"subport {what}"), vm_uuid=instance_id or uuid_of(f"container {what}")
        )
        self.namespace = netns.Namespace(f"c{vid}")
        self.host.on_close(self.close)
        self._tagger: Script | None = None
        try:
            self.namespace.setting("net/ipv6/conf/default/accept_dad", "0")
            inner = f"c{vid}"
            netns.veth(parent.namespace, inner, self.namespace, self.device, mac=mac)
            self.namespace.ip(
                f"addr add {self.interface} dev {self.device}", *self._route_commands()
            )
            for interface6 in address6:
                self.add_address6(interface6)
            self._tagger = Script(parent.namespace, "tagger", parent.device, str(vid), inner)
            self._tagger.__enter__()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the namespace, and with it the device in the parent's. Idempotent."""
        if self._tagger is not None:
            self._tagger.close()
            self._tagger = None
        self.namespace.close()

    def entry(self, **values: Any) -> dict[str, Any]:
        """Return its entry in the parent's list of subports, with other *values* in it."""
        own = {"vid": self.vid, "port_id": self.ids.iface_id, "instance_id": self.instance_id}
        return own | values


def declare(parent: Guest, *entries: dict[str, Any]) -> None:
    """Write the parent's list of subports; without entries, remove it."""
    if not entries:
        parent.host.vsctl("remove", "Interface", parent.port, "external_ids", KEY)
        return
    text = json.dumps(json.dumps(entries))
    parent.host.vsctl("set", "Interface", parent.port, f"external_ids:{KEY}={text}")
