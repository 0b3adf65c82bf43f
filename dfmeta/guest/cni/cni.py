"""The verbs of CNI: attach, detach and check a container, and collect what no container has."""

from __future__ import annotations

import contextlib
import errno
import time

from dfmeta.guest.cni import CniError, Code, Document, member, wrong_key
from dfmeta.guest.cni.devices import Netlink, NetworkDevice, VmDatabase, open_netns, veth, vlan
from dfmeta.guest.cni.host_api import IFNAME, LISTS, CniCall, HostReply, packed, prefix_of

METADATA = "169.254.169.254/32"
GC_KEYS = ("cni.dev/valid-attachments", "cni.dev/attachments")
UNDO_PATIENCE = 3
"""Seconds to give back an attachment after a failure, beyond ``timeout``."""
RETRIES_AVOID = 2
_DERIVED = ("bridge", "openvswitch", "tun", "vlan", "macvlan", "macvtap", "ipvlan")
"""Kinds of devices that may have the MAC of the VM's interface, but are not the interface."""


class VidTakenError(Exception):
    """This VM has a device with the VLAN id of the attachment."""


def outer_name(container: str, ifname: str) -> str:
    """Return the name of the VM's end of a container's veth: the same for the same key."""
    import hashlib

    return "dfc" + hashlib.sha256(f"{container}/{ifname}".encode()).hexdigest()[:12]


def short_lived(call: CniCall) -> str:
    """Return a device's first name. The kernel refuses one that this VM's own devices have."""
    return "dfv" + outer_name(call.container, call.ifname)[3:]


def find_parent(vm: Netlink, call: CniCall, reply: HostReply) -> NetworkDevice | None:
    """Return the VM's interface; None if it cannot be told, and ``link: ovs`` does not need it."""
    if call.parent:
        device = vm.device(call.parent)
        if device is None:
            raise wrong_key("parent", f"a device of this VM: there is no {call.parent[:15]}")
        return device
    same = [device for device in vm.devices() if device.mac == reply.parent_mac != ""]
    real = [device for device in same if device.kind not in _DERIVED]
    if len(real) == 1:
        return real[0]
    if call.link == "ovs":
        return None
    cause = f"given: {len(real)} devices have the port's MAC {reply.parent_mac}"
    raise wrong_key("parent", cause)


def routes_of(call: CniCall, reply: HostReply) -> list[tuple[str, str]]:
    """Return the routes of a container: destination and gateway, which is empty on the link."""
    routes = [pair for pair in reply.routes if call.default_route or prefix_of(pair[0])[1]]
    if call.metadata_route:
        routes = [(METADATA, ""), *(pair for pair in routes if pair[0] != METADATA)]
    return routes


def _netns(call: CniCall, remedy: str) -> int:
    """Return a descriptor of the container's namespace, which has to exist."""
    netns = open_netns(call.netns)
    if netns < 0:
        raise CniError(Code.ENVIRONMENT, "CNI_NETNS names no namespace", remedy)
    return netns


def _make_device(call: CniCall, vm: Netlink, inside: Netlink, netns: int, reply: HostReply) -> None:
    """Make the container's device, with its addresses and routes.

    :raises VidTakenError: this VM has another device with the VLAN id.
    """
    parent = find_parent(vm, call, reply)
    mtu = call.mtu or reply.mtu
    if call.mtu > reply.mtu:
        raise wrong_key("mtu", f"at most {reply.mtu}, the MTU of the network")
    if parent is not None and parent.mtu < mtu:
        cause = f"{parent.name} has an MTU of {parent.mtu} bytes, and the network has {mtu}"
        remedy = f"Set the MTU of {parent.name} to {mtu} or more, or set the key mtu"
        raise CniError(Code.MTU, cause, remedy)
    if parent is None or call.link == "ovs":
        _make_port(call, vm, netns, reply, mtu)
    else:
        name, vid = short_lived(call), reply.vid
        try:
            vm.make(vlan(name, reply.mac, mtu, netns=netns, parent=parent.index, vid=vid))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                cause = "this kernel has no VLAN devices"
                raise CniError(Code.IO, cause, "Load 8021q, or use link: ovs") from error
            if error.errno != errno.EEXIST:
                raise
            raise VidTakenError from error
        made = inside.device(name)
        if made is not None:
            inside.rename(made, call.ifname)
    device = inside.device(call.ifname)
    if device is None:
        raise CniError(Code.IO, f"{call.ifname} vanished while it was made")
    if not call.bare:
        _configure(call, inside, device, reply)


def _configure(call: CniCall, inside: Netlink, device: NetworkDevice, reply: HostReply) -> None:
    """Give a device its addresses and routes, and set it up."""
    for address, _gateway in reply.ips:
        inside.add_address(device, *prefix_of(address))
    inside.set_up(device)
    for dst, gateway in routes_of(call, reply):
        try:
            inside.add_route(device, prefix_of(dst), packed(gateway))
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            cause = f"the container has a route to {dst} by another device"
            remedy = "Set defaultRoute or metadataRoute to false for all networks of it but one"
            raise CniError(Code.CONFIGURATION, cause, remedy) from error


def _make_port(call: CniCall, vm: Netlink, netns: int, reply: HostReply, mtu: int) -> None:
    """Make the container's device as a veth, and its end in the VM an access port."""
    database = VmDatabase(call.database, call.api.end)
    ports = database.ports_of(call.bridge)
    if ports is None:
        raise wrong_key("bridge", f"a bridge of this VM: there is no {call.bridge[:64]}")
    outer = outer_name(call.container, call.ifname)
    # The rest of an ADD that was killed, or of a container from before a reboot.
    stale = []
    for row in database.ports("tag", "==", reply.vid):
        if row["_uuid"][1] in ports and row["name"] != outer:
            if "dfmeta-cni" not in dict(row["external_ids"][1]) or vm.device(row["name"]):
                raise VidTakenError
            stale.append(row)
    _remove_outer(database, vm, outer, stale)
    vm.make(veth(call.ifname, reply.mac, mtu, netns=netns, outer=outer))
    device = vm.device(outer)
    if device is None:
        raise CniError(Code.IO, f"{outer} vanished while it was made")
    vm.set_up(device, bare=True)
    ids = {"dfmeta-cni": f"{call.container}/{call.ifname}"}
    ids.update({"dfmeta-cni-network": call.network, "dfmeta-cni-owner": call.owner})
    database.add(call.bridge, outer, reply.vid, ids)


def _remove_outer(database: VmDatabase, vm: Netlink, outer: str, stale: list[Document]) -> None:
    """Remove the VM's end of a container's veth, and stale ports."""
    database.remove([*stale, *database.ports("name", "==", outer)])
    vm.remove(vm.device(outer))


def remove_port(call: CniCall, vm: Netlink) -> None:
    """Remove the VM's side of a container's device with ``link: ovs``. Idempotent."""
    outer = outer_name(call.container, call.ifname)
    _remove_outer(VmDatabase(call.database, call.api.end), vm, outer, [])


def remove_vlan(call: CniCall, netns: int, vid: int, mac: str) -> None:
    """Remove a container's VLAN device: the one with that MAC and VLAN id, also if it was renamed.

    :param vid: 0: the host does not know it; then MAC and name decide.
    """
    inside = Netlink(-1 if call.bare else netns)
    for device in inside.devices():
        same = device.vid == vid if vid else device.name in (call.ifname, short_lived(call))
        if device.kind == "vlan" and device.mac == mac and same:
            inside.remove(device)


def attach(call: CniCall) -> HostReply:
    """Get an attachment of the host, and make its device.

    :raises CniError: nothing has changed, unless the host did not answer: DEL follows then.
    """
    netns = _netns(call, "The runtime has to make it first")
    vm = Netlink()
    inside = vm if call.bare else Netlink(netns)
    if inside.device(call.ifname) is not None:
        remedy = "Give another CNI_IFNAME, or delete the device first"
        raise CniError(Code.ENVIRONMENT, f"the container has a device {call.ifname}", remedy)
    wanted = call.wanted()
    avoid: list[int] = []
    while True:
        document = call.api.ask("PUT", call.path, wanted)
        try:
            reply = HostReply(document)
            _make_device(call, vm, inside, netns, reply)
        except VidTakenError:
            if len(avoid) < RETRIES_AVOID:
                avoid.append(reply.vid)
                wanted["avoid"] = avoid
                continue
            _undo(call, vm, inside, document)
            cause = f"this VM has devices with the VLAN ids of the host, the last one {reply.vid}"
            remedy = "Delete VLAN devices and ports of containers that are gone"
            raise CniError(Code.LATER, cause, remedy) from None
        except BaseException:
            _undo(call, vm, inside, document)
            raise
        return reply


def _undo(call: CniCall, vm: Netlink, inside: Netlink, document: object) -> None:
    """Remove what a failed ADD has made, on both sides. DEL follows, so errors do not matter."""
    call.api.end = time.monotonic() + UNDO_PATIENCE
    gone = ""
    with contextlib.suppress(CniError, OSError):
        if call.link == "ovs":
            remove_port(call, vm)
        for device in map(inside.device, (call.ifname, short_lived(call))):
            if device is not None and device.mac == member(document, "mac"):
                inside.remove(device)
        gone = "?link=gone"
    with contextlib.suppress(CniError):
        call.api.ask("DELETE", call.path + gone)


def add(call: CniCall) -> Document:
    """Attach a container; return the result, added to that of plugins before."""
    previous = call.previous()
    reply = attach(call)
    interfaces, ips, routes = ([*(previous.get(name) or [])] for name in LISTS)
    device: Document = {"name": call.ifname, "mac": reply.mac, "sandbox": call.netns}
    if call.version == "1.1.0":
        device["mtu"] = call.mtu or reply.mtu
    for address, gateway in reply.ips:
        entry: Document = {"address": address, "interface": len(interfaces)}
        if call.version < "1":
            entry["version"] = "6" if ":" in address else "4"
        if gateway:
            entry["gateway"] = gateway
        ips.append(entry)
    interfaces.append(device)
    if call.link == "ovs":
        interfaces.append({"name": outer_name(call.container, call.ifname)})
    for dst, gateway in routes_of(call, reply):
        routes.append({"dst": dst, "gw": gateway} if gateway else {"dst": dst})
    result = {"cniVersion": call.version, "interfaces": interfaces, "ips": ips, "routes": routes}
    return {**result, "dns": previous.get("dns") or reply.dns}


def delete(call: CniCall) -> None:
    """Detach a container. It succeeds when there is nothing, but not without the host."""
    gone = call.link == "ovs"
    if gone:
        remove_port(call, Netlink())
    elif call.netns:
        netns = open_netns(call.netns)
        document = call.api.ask("GET", call.path, missing=True)
        if netns >= 0:
            reply = HostReply(document) if document is not None else None
            mac = reply.mac if reply else call.previous_mac()
            remove_vlan(call, netns, reply.vid if reply else 0, mac)
            gone = True
    # 404: this VM gets no attachments any more, so that it has none.
    call.api.ask("DELETE", call.path + ("?link=gone" if gone else ""), missing=True)


def check(call: CniCall) -> None:
    """Raise if a container's device differs from the result of ADD, or from the host's data."""
    previous = call.previous()
    if not previous:
        raise CniError(Code.CONFIGURATION, "prevResult is missing", "CHECK needs the result of ADD")
    document = call.api.ask("GET", call.path, missing=True)
    if document is None:
        raise CniError(Code.UNKNOWN, "the host does not know this container", "Make it again")
    reply = HostReply(document)
    if not reply.active:
        raise CniError(Code.LATER, "the host makes the port of this container", "Try again")
    inside = Netlink(_netns(call, "Make the container again"))
    _check_device(call, inside, reply)
    _check_interfaces(inside, previous)
    _check_addresses(inside, previous, reply)
    _check_routes(inside, previous)


def _check_device(call: CniCall, inside: Netlink, reply: HostReply) -> None:
    """Compare the device that ADD has made with the host's attachment."""
    name = call.ifname
    device = inside.device(name)
    if device is None:
        raise _different(f"there is no device {name}")
    if device.mac != reply.mac or call.previous_mac() != reply.mac:
        raise _different(f"the MAC of {name} is {device.mac}, and the host has {reply.mac}")
    if call.link == "vlan" and device.vid != reply.vid:
        raise _different(f"the VLAN id of {name} is {device.vid}, and the host has {reply.vid}")
    if call.link == "ovs":
        outer = outer_name(call.container, name)
        rows = VmDatabase(call.database, call.api.end).ports("name", "==", outer)
        if [row["tag"] for row in rows] != [reply.vid]:
            raise _different(f"the port in Open vSwitch is not in VLAN {reply.vid}")
        end = Netlink().device(outer)
        if end is None or not end.up:
            raise _different(f"the VM's end {outer} of {name} is gone or down")


def _check_interfaces(inside: Netlink, previous: Document) -> None:
    """Compare the devices of a result that are in the container, of all plugins."""
    for entry in previous.get("interfaces") or []:
        if not entry.get("sandbox"):
            continue
        name, mac = str(entry.get("name")), entry.get("mac")
        device = inside.device(name) if IFNAME.fullmatch(name) else None
        if device is None:
            raise _different(f"there is no device {name[:15]!r}")
        if not device.up:
            raise _different(f"{name} is down")
        if mac and str(mac).lower() != device.mac:
            raise _different(f"the MAC of {name} is {device.mac}, and was {str(mac)[:17]!r}")


def _check_addresses(inside: Netlink, previous: Document, reply: HostReply) -> None:
    """Compare the addresses of a result, and those of the host's attachment."""
    devices = {device.name: inside.addresses(device) for device in inside.devices()}
    interfaces = previous.get("interfaces") or []
    entries = previous.get("ips") or []
    for entry in entries:
        number, address = entry.get("interface"), entry.get("address")
        named = interfaces[number : number + 1] if type(number) is int and number >= 0 else []
        if named and not named[0].get("sandbox"):
            continue
        names = [str(interface.get("name")) for interface in named] or list(devices)
        if not any(prefix_of(address) in devices.get(name, ()) for name in names):
            raise _different(f"the container has not the address {str(address)[:50]!r}")
    given = [prefix_of(entry.get("address")) for entry in entries]
    for address, _gateway in reply.ips:
        if prefix_of(address) not in given:
            raise _different(f"the result of ADD has not the host's address {address}")


def _check_routes(inside: Netlink, previous: Document) -> None:
    """Compare the routes of a result. One without a gateway may have any."""
    routes = inside.routes()
    for entry in previous.get("routes") or []:
        dst, gateway = prefix_of(entry.get("dst")), entry.get("gw")
        gateways = [via for prefix, via in routes if prefix == dst]
        if not gateways or (gateway and packed(gateway) not in gateways):
            raise _different(f"the container has not the route to {str(entry.get('dst'))[:50]!r}")


def _different(cause: str) -> CniError:
    return CniError(Code.DIFFERENT, cause, "Make the container again")


def collect(call: CniCall) -> None:
    """Remove what no container of this network list has. Without a list nothing is removed."""
    keys = [key for key in GC_KEYS if key in call.config]
    if not keys:
        return
    valid = set()
    for key in keys:
        rows = call.config[key] if isinstance(call.config[key], list) else [None]
        pairs = [(member(row, "containerID"), member(row, "ifname")) for row in rows]
        if not all(isinstance(text, str) for pair in pairs for text in pair):
            raise wrong_key(key, "a list of objects with containerID and ifname")
        valid.update(pairs)
    failure: CniError | OSError | None = None
    if call.link == "ovs":
        try:
            _collect_ports(call, {f"{container}/{ifname}" for container, ifname in valid})
        except (CniError, OSError) as error:
            failure = error
    kept = [{"container": container, "ifname": ifname} for container, ifname in sorted(valid)]
    call.api.ask("POST", "/gc", {"network": call.network, "owner": call.owner, "valid": kept})
    if failure is not None:
        raise failure


def _collect_ports(call: CniCall, valid: set[str]) -> None:
    """Remove ports that no container has, unless their device is there: an ADD may be under way."""
    database, vm = VmDatabase(call.database, call.api.end), Netlink()
    ids = [["dfmeta-cni-network", call.network], ["dfmeta-cni-owner", call.owner]]
    rows = database.ports("external_ids", "includes", ["map", ids])
    gone = [row for row in rows if dict(row["external_ids"][1]).get("dfmeta-cni") not in valid]
    database.remove([row for row in gone if vm.device(row["name"]) is None])
