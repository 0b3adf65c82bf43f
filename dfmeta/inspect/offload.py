"""How a guest is brought to send whole TCP checksums. Pure.

A guest's kernel may leave a checksum to its device. The kernel's datapath of Open vSwitch completes
it; the userspace datapath passes the segment on as it is, and the host drops it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dfmeta.inspect.facts import Snapshot

USERSPACE: Final = "netdev"
"""Bridge.datapath_type of the userspace datapath (ovs-vswitchd.conf.db(5))."""
DRIVER: Final = (
    "<driver name='qemu'>"
    "<host csum='off' gso='off' tso4='off' tso6='off' ecn='off' ufo='off'/>"
    "<guest csum='off' tso4='off' tso6='off' ecn='off' ufo='off'/>"
    "</driver>"
)
"""Of an interface in a libvirt domain: a virtio card without offloads."""
_VHOST_USER: Final = "dpdkvhostuser"
"""How the types of interfaces begin that a virtual machine opens a socket of."""
_OF_A_NAMESPACE = "`ethtool -K DEVICE tx off` in the guest, on its own end of the device"
_OF_A_MACHINE = (
    "`virsh edit` the guest's domain and give its interface a `<driver>` with csum='off' "
    "(`dfmeta doctor` has the element); until its next start, `ethtool -K DEVICE tx off` in it"
)


def advice(driver: str) -> str:
    """Say in a few words how the guest behind a device completes its checksums.

    :param driver: the device's driver as the kernel calls it; empty: it is not known.
    """
    if driver == "veth":
        return _OF_A_NAMESPACE
    if driver == "tun":
        return _OF_A_MACHINE
    return f"{_OF_A_NAMESPACE}; of a virtual machine: {_OF_A_MACHINE}"


def remedies(snapshot: Snapshot | None, bridge: str, ports: Iterable[str]) -> list[str]:
    """What the guests behind *ports* need on a userspace datapath, each once; else nothing."""
    found = snapshot.bridge(bridge) if snapshot is not None else None
    if snapshot is None or found is None or found.datapath_type != USERSPACE:
        return []
    rows = [snapshot.interface(port, bridge) for port in ports]
    machines = [_is_machine(row.type, row.driver) for row in rows if row is not None]
    said = []
    if not all(machines):
        said.append("`ethtool -K DEVICE tx off` at the guest's own end of its device")
    if any(one is not False for one in machines):
        said.append(f"for a virtual machine, `{DRIVER}` in its domain's <interface>")
    return said


def _is_machine(kind: str, driver: str) -> bool | None:
    """Whether a virtual machine is behind an interface; None: it cannot be told."""
    if kind.startswith(_VHOST_USER):
        return True
    if kind == "internal":
        # A tap device on this datapath, and for a namespace nevertheless.
        return False
    return {"tun": True, "veth": False}.get(driver)
