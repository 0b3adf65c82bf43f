"""Remedies for a guest that sends incomplete TCP checksums. Pure.

A guest's kernel may leave a checksum to its network interface. The kernel's datapath of Open
vSwitch completes it; the userspace datapath passes the segment on as it is, and the host drops it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dfmeta.ovsdb.rows import USERSPACE, Snapshot

DRIVER: Final = (
    "<driver name='qemu'>"
    "<host csum='off' gso='off' tso4='off' tso6='off' ecn='off' ufo='off'/>"
    "<guest csum='off' tso4='off' tso6='off' ecn='off' ufo='off'/>"
    "</driver>"
)
"""Element of an interface in a libvirt domain, for a virtio NIC without offloads."""
_VHOST_USER: Final = "dpdkvhostuser"
"""Prefix of the interface types that connect a virtual machine by a socket (vhost-user)."""
_OF_A_NAMESPACE = "`ethtool -K DEVICE tx off` in the guest, on its own end of the device"
_OF_A_MACHINE = (
    "`virsh edit` the guest's domain and give its interface a `<driver>` with csum='off' "
    "(`dfmeta doctor` has the element); until its next start, `ethtool -K DEVICE tx off` in it"
)


def advice(driver: str) -> str:
    """Return a short remedy with which the guest behind a device sends complete checksums.

    :param driver: the device's driver, by the kernel's name; empty: it is not known.
    """
    if driver == "veth":
        return _OF_A_NAMESPACE
    if driver == "tun":
        return _OF_A_MACHINE
    return f"{_OF_A_NAMESPACE}; for a virtual machine: {_OF_A_MACHINE}"


def remedies(snapshot: Snapshot | None, bridge: str, ports: Iterable[str]) -> list[str]:
    """Return the remedies for the guests behind *ports*, each once.

    The list is empty unless *bridge* has a userspace datapath.
    """
    found = snapshot.bridge(bridge) if snapshot is not None else None
    if snapshot is None or found is None or found.datapath_type != USERSPACE:
        return []
    rows = [snapshot.interface(port, bridge) for port in ports]
    machines = [_is_machine(row.type, row.driver) for row in rows if row is not None]
    said = []
    if not all(machines):
        said.append("`ethtool -K DEVICE tx off` in the guest, on its own end of the device")
    if any(one is not False for one in machines):
        said.append(f"for a virtual machine, `{DRIVER}` in its domain's <interface>")
    return said


def _is_machine(kind: str, driver: str) -> bool | None:
    """Return whether a virtual machine is behind an interface; None if that is not known."""
    if kind.startswith(_VHOST_USER):
        return True
    if kind == "internal":
        # Its driver is tun on this datapath, but a namespace is behind it.
        return False
    return {"tun": True, "veth": False}.get(driver)
