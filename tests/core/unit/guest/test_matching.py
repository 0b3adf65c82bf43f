"""A device of the document should be found by bus address, then name, then MAC or serial."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dfmeta.guest import tag_devices
from tests.core.unit.devices.documents import load
from tests.harness.sysfs import MAC, PCI, Machine

OTHER_MAC = "fa:16:3e:00:00:02"
SPEC_MAC = "01:22:22:42:22:21"
HBA = f"{PCI}:05.0/virtio2"
IDE = f"{PCI}:01.1"
XHCI = f"{PCI}:06.0"
VOLUME = "8f7a2a0c-6b1f-4e63-9d0e-0f4f1b8c7d21"


def nic(tag: str, **members: Any) -> dict[str, Any]:
    return {"type": "nic", "bus": "none", "tags": [tag], **members}


def disk(tag: str, **members: Any) -> dict[str, Any]:
    return {"type": "disk", "bus": "none", "tags": [tag], **members}


def tags_of(
    machine: Machine, devices: Sequence[dict[str, Any]], messages: list[str]
) -> dict[str, list[str]]:
    """Name of a device → its tags."""
    wanted = tag_devices.wanted_devices({"devices": list(devices)}, messages.append)
    matched = tag_devices.matches(wanted, machine.devices(), messages.append)
    return {device.name: tags for device, tags in matched.items()}


def test_device_behind_a_bridge_has_its_own_address(machine: Machine, messages: list[str]) -> None:
    machine.nic(f"{PCI}:02.0/0000:01:00.0/virtio0/net/enp1s0")
    assert tags_of(machine, [nic("a", bus="pci", address="0000:00:02.0")], messages) == {}
    assert tags_of(machine, [nic("a", bus="pci", address="0000:01:00.0")], messages) == {
        "enp1s0": ["a"]
    }


ROLES = ("nfvfunc1", "nfvfunc2", "oracledb", "squidcache")
"""Of the documents of the specification."""


def test_the_specifications_guests_have_all_of_their_roles(tmp_path: Path) -> None:
    """The emulated views of Xen's disks, which a guest with Xen's drivers has not, are missing."""
    kvm, xen, lxc = (Machine(tmp_path / name) for name in ("kvm", "xen", "lxc"))
    kvm.nic(f"{PCI}:02.0/virtio0/net/eth0", SPEC_MAC)
    kvm.nic(f"{PCI}:03.0/virtio1/net/eth1", SPEC_MAC)
    kvm.scsi_host(f"{PCI}:04.0/virtio2/host0")
    kvm.scsi_host(f"{PCI}:05.0/virtio3/host1")
    kvm.disk(f"{PCI}:05.0/virtio3/host1/target1:0:2/1:0:2:0/block/sda", page="disk-vol-2352423")
    kvm.disk(f"{PCI}:07.0/virtio4/block/vda", serial="disk-vol-24235252")
    xen.nic("vif-0/net/eth0", SPEC_MAC)
    xen.nic("vif-1/net/eth1", SPEC_MAC)
    xen.disk("vbd-51712/block/xvda")
    xen.disk("vbd-51728/block/xvdb")
    for name in ("eth0", "eth1"):
        lxc.nic(f"virtual/net/{name}", SPEC_MAC)
    for name in ("sda", "sdb"):
        lxc.disk(f"virtual/block/{name}")
    for machine, name, disks, missing in (
        (kvm, "spec-kvm", ("sda", "vda"), 0),
        (xen, "spec-xen", ("xvda", "xvdb"), 2),
        (lxc, "spec-lxc", ("sda", "sdb"), 0),
    ):
        lines: list[str] = []
        expected = {
            device: [role] for device, role in zip(("eth0", "eth1", *disks), ROLES, strict=True)
        }
        assert tags_of(machine, load(name)["devices"], lines) == expected
        assert len(lines) == missing, lines


def test_scsi_controllers_count_without_ata_and_usb(machine: Machine, messages: list[str]) -> None:
    machine.scsi_host(f"{PCI}:1f.2/ata1/host0")
    machine.disk(f"{PCI}:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda")
    machine.scsi_host(f"{XHCI}/usb1/1-1/1-1:1.0/host8")
    machine.disk(f"{XHCI}/usb1/1-1/1-1:1.0/host8/target8:0:0/8:0:0:0/block/sdb")
    machine.scsi_host(f"{HBA}/host9")
    machine.disk(f"{HBA}/host9/target9:0:0/9:0:0:0/block/sdc")
    wanted = disk("db", bus="scsi", address="0:0:0:0")
    assert tags_of(machine, [wanted], messages) == {"sdc": ["db"]}


def test_scsi_controllers_without_disks_count(machine: Machine, messages: list[str]) -> None:
    machine.scsi_host(f"{PCI}:04.0/virtio1/host6")
    machine.scsi_host(f"{HBA}/host7")
    for lun, name in ((1, "sda"), (10, "sdb"), (16, "sdc")):
        machine.disk(f"{HBA}/host7/target7:0:0/7:0:0:{lun}/block/{name}")
    assert tags_of(machine, [disk("db", bus="scsi", address="0:0:0:1")], messages) == {}
    for lun, name in (("1", "sda"), ("a", "sdb"), ("10", "sdc")):
        wanted = disk("db", bus="scsi", address=f"1:0:0:{lun}")
        assert tags_of(machine, [wanted], messages) == {name: ["db"]}, lun


def test_of_two_readings_of_a_scsi_address_a_hypervisors_is_taken_unless_the_serial_is_anothers(
    machine: Machine, messages: list[str]
) -> None:
    for number, host in enumerate((1, 2)):
        path = f"{PCI}:0{host}.0/virtio{host}/host{host}"
        machine.scsi_host(path)
        machine.disk(
            f"{path}/target{host}:0:0/{host}:0:0:0/block/sd{'ab'[number]}", page=f"s{host}"
        )
    wanted = disk("db", bus="scsi", address="1:0:0:0")
    for members, name in (({}, "sdb"), ({"serial": "s2"}, "sdb"), ({"serial": "s1"}, "sda")):
        assert tags_of(machine, [{**wanted, **members}], messages) == {name: ["db"]}
    beyond = {**wanted, "address": "2:0:0:0"}
    assert tags_of(machine, [beyond], messages) == {"sdb": ["db"]}, (
        "Linux' number, for there is no third"
    )
    assert messages == []


def test_a_usb_device_is_found_by_bus_and_port(machine: Machine, messages: list[str]) -> None:
    """Each of the two controllers has two buses, of which a hypervisor knows nothing."""
    for bus in (1, 2, 3, 4):
        machine.usb_bus(f"{PCI}:0{6 if bus < 3 else 7}.0/usb{bus}")
    machine.disk(f"{PCI}:06.0/usb1/1-2/1-2:1.0/host8/target8:0:0/8:0:0:0/block/sda")
    machine.disk(f"{PCI}:07.0/usb3/3-2/3-2.4/3-2.4:1.0/host9/target9:0:0/9:0:0:0/block/sdb")
    machine.nic(f"{XHCI}/usb1/1-4/1-4:1.0/net/usb0")
    for address, name in (
        *(("1:2", "sda"), ("0:2", "sda"), ("3:2.4", "sdb")),
        *(("1:2.4", "sdb"), ("0:3", ""), ("9:2", "")),
    ):
        tagged = tags_of(machine, [disk("stick", bus="usb", address=address)], messages)
        assert tagged == ({name: ["stick"]} if name else {}), address
    assert tags_of(machine, [nic("lte", bus="usb", address="1:4")], messages) == {"usb0": ["lte"]}


def test_an_ide_disk_is_found_by_channel_and_device(machine: Machine, messages: list[str]) -> None:
    machine.disk(f"{IDE}/ata1/host0/target0:0:0/0:0:0:0/block/sda")
    machine.disk(f"{IDE}/ata1/host0/target0:0:1/0:0:1:0/block/sdb")
    machine.disk(f"{IDE}/ata2/host1/target1:0:0/1:0:0:0/block/sdc")
    for address, name in (
        *(("0:0", "sda"), ("0:1", "sdb"), ("1:0", "sdc")),
        *(("0:1:0:0", "sdc"), ("1:1", "")),
    ):
        tagged = tags_of(machine, [disk("old", bus="ide", address=address)], messages)
        assert tagged == ({name: ["old"]} if name else {}), address


def test_a_sata_controller_is_no_ide(machine: Machine, messages: list[str]) -> None:
    for port in range(1, 7):
        machine.disk(
            f"{PCI}:1f.2/ata{port}/host{port}/target{port}:0:0/{port}:0:0:0/block/sd{port}"
        )
    assert tags_of(machine, [disk("old", bus="ide", address="0:0")], messages) == {}


def test_a_xen_disk_is_found_by_number_and_by_place(machine: Machine, messages: list[str]) -> None:
    for vbd, place in ((51728, "1"), (2064 + 16, "2"), (1 << 28 | 17 << 8, "17")):
        name = f"xv{place}"
        machine.disk(f"vbd-{vbd}/block/{name}")
        for address in (str(vbd), place):
            assert tags_of(machine, [disk("x", bus="xen", address=address)], messages) == {
                name: ["x"]
            }


def test_devices_of_nova_without_address_match(machine: Machine, messages: list[str]) -> None:
    machine.nic(f"{PCI}:03.0/virtio0/net/ens3", MAC)
    machine.scsi_host(f"{HBA}/host6")
    machine.disk(f"{HBA}/host6/target6:0:0/6:0:0:0/block/sda", page=VOLUME)
    machine.disk(f"{PCI}:07.0/virtio4/block/vda", serial=VOLUME.replace("8", "9")[:20])
    machine.disk(f"{PCI}:08.0/virtio5/block/vdb")
    document = [
        nic("mgmt", mac=MAC.upper(), address="none"),
        disk("oracledb", bus="scsi", address="none", serial=VOLUME),
        disk("squid", bus="none", address="none", serial=VOLUME.replace("8", "9")),
        disk("scratch", bus="pci", address="0000:00:08.0", serial=None),
    ]
    assert tags_of(machine, document, messages) == {
        "ens3": ["mgmt"],
        "sda": ["oracledb"],
        "vda": ["squid"],
        "vdb": ["scratch"],
    }
    assert messages == []


def test_address_precedes_name_and_name_precedes_mac(machine: Machine, messages: list[str]) -> None:
    machine.nic(f"{PCI}:02.0/virtio0/net/eth0", MAC)
    machine.nic(f"{PCI}:03.0/virtio1/net/eth1", OTHER_MAC)
    at = nic("a", bus="pci", address="0000:00:02.0", devname="eth1", mac=SPEC_MAC)
    named = nic("b", bus="pci", address="0000:00:0f.0", devname="eth0", mac=SPEC_MAC)
    entry = nic("c", bus="pci", address="0000:00:0f.0", devname="eth9", mac=OTHER_MAC)
    assert tags_of(machine, [at], messages) == {"eth0": ["a"]}
    assert "another MAC" in messages[0]
    assert tags_of(machine, [named], messages) == {"eth0": ["b"]}
    assert tags_of(machine, [entry], messages) == {"eth1": ["c"]}


def test_mac_or_serial_elsewhere_bars_a_place(machine: Machine, messages: list[str]) -> None:
    machine.nic(f"{PCI}:02.0/virtio0/net/eth0", OTHER_MAC)
    machine.nic(f"{PCI}:03.0/virtio1/net/eth1", MAC)
    places: tuple[dict[str, str], ...] = (
        {"bus": "pci", "address": "0000:00:02.0"},
        {"devname": "eth0"},
    )
    for where in places:
        messages.clear()
        assert tags_of(machine, [nic("a", mac=MAC, **where)], messages) == {}
        assert "'eth0', 'eth1' match: none is tagged" in messages[0]
        shared = [nic("a", mac=MAC, **where), nic("b", mac=MAC, devname="eth9")]
        assert tags_of(machine, shared, messages) == {"eth0": ["a"]}
    machine.disk(f"{PCI}:07.0/virtio4/block/vda")
    machine.disk(f"{PCI}:08.0/virtio5/block/vdb", serial="s1")
    messages.clear()
    at = disk("db", bus="pci", address="0000:00:07.0", serial="s1")
    assert tags_of(machine, [at], messages) == {}
    assert "'vda', 'vdb' match: none is tagged" in messages[0]


def test_mac_of_another_device_is_ignored(machine: Machine, messages: list[str]) -> None:
    """The tagged one is not here; the other is at its own address, or not yet at any."""
    machine.nic(f"{PCI}:04.0/virtio0/net/eth0", MAC)
    wanted = nic("a", bus="pci", address="0000:00:03.0", mac=MAC)
    for tags in ([], None, ["b"]):
        for address in ("0000:00:04.0", "none"):
            other = {**wanted, "address": address, "tags": tags}
            assert "a" not in tags_of(machine, [wanted, other], messages).get("eth0", [])
    assert tags_of(machine, [wanted], messages) == {"eth0": ["a"]}


def test_device_with_an_address_is_not_taken(machine: Machine, messages: list[str]) -> None:
    """The first of each is gone, and the names of the second have moved up."""
    machine.nic(f"{PCI}:04.0/virtio0/net/eth0", MAC)
    machine.disk(f"{PCI}:08.0/virtio5/block/vda", serial="s1")
    entries = [
        nic("b", bus="pci", address="0000:00:04.0", mac=OTHER_MAC),
        {**disk("", bus="pci", address="0000:00:08.0"), "tags": []},
    ]
    at = {"bus": "pci", "address": "0000:00:03.0"}
    gone = [nic("name", devname="eth0", **at), nic("mac", mac=MAC, **at)]
    gone += [disk("path", path="/dev/vda", **at), disk("serial", serial="s1", **at)]
    assert tags_of(machine, [*gone[1:2], *entries], messages) == {"eth0": ["b"]}
    assert tags_of(machine, [*gone, *entries], messages) == {"eth0": ["b"]}
    assert tags_of(machine, gone, messages) == {"eth0": ["name", "mac"], "vda": ["path", "serial"]}


def test_a_mac_of_two_devices_finds_none_of_them(machine: Machine, messages: list[str]) -> None:
    machine.nic(f"{PCI}:02.0/virtio0/net/eth0", MAC)
    machine.nic("virtual/net/bond0", MAC, lower="eth0")
    machine.nic("virtual/net/lo", MAC)
    assert tags_of(machine, [nic("a", mac=MAC), nic("b", mac=MAC)], messages) == {}
    assert len(messages) == 2
    assert tags_of(machine, [nic("a", mac=MAC)], messages) == {"eth0": ["a"]}, "bond0 rests on it"
    messages.clear()
    machine.nic(f"{PCI}:03.0/virtio1/net/eth1", MAC)
    assert tags_of(machine, [nic("a", mac=MAC)], messages) == {}
    assert "'eth0', 'eth1' match" in messages[0]


def test_a_disk_of_another_serial_is_another_disk(machine: Machine, messages: list[str]) -> None:
    """A document on a config drive is as old as the boot, and the slot has another disk since."""
    machine.disk(f"{PCI}:07.0/virtio4/block/vda", serial="new")
    at = disk("db", bus="pci", address="0000:00:07.0", path="/dev/vda", serial="old")
    assert tags_of(machine, [at], messages) == {}
    assert messages == ["disk 'pci' '0000:00:07.0' 'vda' 'old': not found"]
    # A USB disk has the serial of its device.
    machine.disk(f"{XHCI}/usb1/1-2/1-2:1.0/host8/target8:0:0/8:0:0:0/block/sda")
    machine.put(f"{XHCI}/usb1/1-2/serial", "stick-1\n")
    assert tags_of(machine, [disk("x", serial="stick-1")], messages) == {"sda": ["x"]}


def test_serial_matches_by_20_characters_or_more(machine: Machine, messages: list[str]) -> None:
    for number, length in enumerate((19, 20, 30, len(VOLUME))):
        serial = f"{number}{VOLUME}"
        machine.disk(f"{PCI}:1{number}.0/virtio4/block/vd{number}", serial=serial[:length])
        expected = {f"vd{number}": ["db"]} if number else {}
        assert tags_of(machine, [disk("db", serial=serial)], messages) == expected
        assert (
            tags_of(machine, [disk("db", serial=serial[:18] + "zz" + serial[20:])], messages) == {}
        )


def test_a_nic_is_never_a_disk(machine: Machine, messages: list[str]) -> None:
    machine.nic(f"{PCI}:02.0/virtio0/net/vda", MAC)
    machine.disk(f"{PCI}:03.0/virtio1/block/eth0")
    assert tags_of(machine, [disk("d", bus="pci", address="0000:00:02.0")], messages) == {}
    assert tags_of(machine, [disk("d", path="/dev/vda"), nic("n", devname="eth0")], messages) == {}


def test_a_link_that_leads_out_of_sysfs_is_no_device(machine: Machine, messages: list[str]) -> None:
    outside = machine.root.parent / "eth9"
    outside.mkdir()
    (machine.root / "class" / "net" / "eth9").symlink_to(outside)
    assert machine.names() == []


def test_an_odd_address_is_none() -> None:
    for bus, addresses in {
        "pci": ("00:02.0", "0000:00:02.0\n", "0000:00:0\u0660.0"),
        "scsi": ("none", "", ":".join(["1"] * 99)),
        "usb": ("1:2/../3",),
        "xen": ("-1",),
        "ide": ("\u0660:\u0660",),
    }.items():
        for address in addresses:
            assert tag_devices.numbers_of(bus, address) == (), (bus, address)


def test_serials_that_begin_alike_are_different(machine: Machine, messages: list[str]) -> None:
    """virtio has 20 characters of a serial: which of the two this is cannot be known."""
    start = VOLUME[:20]
    machine.disk(f"{PCI}:07.0/virtio4/block/vda", serial=start)
    first, other = (disk(tag, serial=f"{start}-{tag * 4}") for tag in "ab")
    assert tags_of(machine, [first, other], messages) == {}
    assert len(messages) == 2
    assert tags_of(machine, [first], messages) == {"vda": ["a"]}
