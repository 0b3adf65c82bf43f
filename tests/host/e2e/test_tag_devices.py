"""udev itself should make of the rules what they are meant to say, and nothing else."""

import json
import quopri
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dfmeta.guest import tag_devices
from tests.harness.sysfs import MAC, PCI, Machine
from tests.harness.udev import RULES, Udev

INTERPRETER = "/usr/bin/python3"
PROGRAM = [INTERPRETER, "-I", tag_devices.__file__]
FILE = f"{RULES}/90-dfmeta-tags.rules"
OTHER_MAC = "fa:16:3e:00:00:02"
HOSTILE = [
    'a", RUN+="/bin/touch /run/owned", ENV{OWNED}="1',
    'a\\", ENV{OWNED}="1',
    'a"\nENV{OWNED}="1"\n',
    "a\\\nENV{OWNED}=1",
    "a\\",
    "$env{PATH}$kernel%k%n%%$$",
    "../../../run/owned",
    "/run/owned",
    "..",
    "-part1",
    "a b\tc,d",
    "é\u202e\U0001f600",
    "\0",
    "uaccess",
    "x" * 240,
]


@pytest.fixture
def udev() -> Iterator[Udev]:
    """udevd and two veth pairs."""
    with Udev() as made:
        made.namespace.ip(
            f"link add eth0 address {MAC} type veth peer name peer0",
            f"link add eth1 address {OTHER_MAC} type veth peer name peer1",
        )
        yield made


def nic(*tags: str, **members: Any) -> dict[str, Any]:
    return {"type": "nic", "bus": "none", "tags": [*tags], **members}


def disk(*tags: str, **members: Any) -> dict[str, Any]:
    return {"type": "disk", "bus": "none", "tags": [*tags], **members}


def tag(udev: Udev, devices: object, *options: str) -> str:
    """Run the program as a guest's own Python would; what it says."""
    file = udev.folder / "meta_data.json"
    file.write_text(json.dumps({"devices": devices}))
    return udev.run([*PROGRAM, "--file", str(file), *options]).stderr


def roles(properties: dict[str, str]) -> list[str]:
    """The tags of a device, as they were."""
    text = properties.get("DFMETA_TAGS", "")
    return [quopri.decodestring(word).decode() for word in text.split(",") if word]


def test_interfaces_have_their_roles_in_udevs_database(udev: Udev) -> None:
    devices = [nic("lan", mac=MAC), nic("wan", "web_cache", devname="eth1")]
    assert tag(udev, devices) == ""
    assert roles(udev.properties("/sys/class/net/eth0")) == ["lan"]
    assert roles(udev.properties("/sys/class/net/eth1")) == ["wan", "web_cache"]
    assert roles(udev.properties("/sys/class/net/peer0")) == []
    result = udev.run(["udevadm", "trigger", "--dry-run", "--verbose", "--tag-match=dfmeta-wan"])
    assert result.stdout == "/sys/devices/virtual/net/eth1\n"
    assert ".rules:" not in udev.log()


def test_a_bridge_on_an_interface_has_not_its_role(udev: Udev) -> None:
    """A bridge has the MAC of the first that is added to it."""
    tag(udev, [nic("lan", mac=MAC)])
    udev.namespace.ip(f"link add br0 address {MAC} type bridge", "link set eth0 master br0")
    udev.run(["udevadm", "trigger", "--action=change", "--subsystem-match=net"])
    udev.run(["udevadm", "settle", "--timeout=10"])
    present = {device: udev.properties(f"/sys/class/net/{device}") for device in ("eth0", "br0")}
    assert {device: roles(properties) for device, properties in present.items()} == {
        "eth0": ["lan"],
        "br0": [],
    }
    for name in present:
        assert udev.read(f"/sys/class/net/{name}/address") == f"{MAC}\n"


def test_no_hostile_tag_does_anything_but_be_a_tag(machine: Machine) -> None:
    path, members = BUSES["virtio"]
    machine.disk(path)
    with Udev(sysfs=machine.root) as udev:
        for hostile in HOSTILE:
            assert tag(udev, [disk(hostile, "plain", **members)], "--output", FILE) == ""
            properties, complaints = udev.test(f"/sys/devices/{path}")
            assert complaints == []
            assert roles(properties) == [hostile, "plain"]
            links = [word.rpartition("/") for word in properties["DEVLINKS"].split()]
            assert [folder for folder, _, _ in links] == ["/dev/disk/by-role"] * 2
            names = {tag_devices.udev_tag(tag_devices.encoded(hostile)), "dfmeta-plain"}
            assert set(properties["CURRENT_TAGS"].strip(":").split(":")) == names
            assert "OWNED" not in properties
        assert udev.run(["ls", "/run/owned"], check=False).returncode != 0
        assert udev.run(["sh", "-c", "ls /run /dev"]).stdout.count("owned") == 0


# Buses that this machine has not: udev reads a sysfs that looks like theirs.


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "sys")


BUSES = {
    "virtio": (f"{PCI}:07.0/virtio4/block/vda", {"bus": "pci", "address": "0000:00:07.0"}),
    "virtio-scsi": (
        f"{PCI}:05.0/virtio2/host6/target6:0:0/6:0:0:1/block/sda",
        {"bus": "scsi", "address": "0:0:0:1"},
    ),
    "usb": (
        f"{PCI}:06.0/usb1/1-2/1-2:1.0/host8/target8:0:0/8:0:0:0/block/sda",
        {"bus": "usb", "address": "1:2"},
    ),
    "ide": (
        f"{PCI}:01.1/ata2/host1/target1:0:1/1:0:1:0/block/sda",
        {"bus": "ide", "address": "1:1"},
    ),
    "xen": ("vbd-51728/block/xvdb", {"bus": "xen", "address": "1"}),
    "nvme": (f"{PCI}:08.0/nvme/nvme0/nvme0n1", {"bus": "pci", "address": "0000:00:08.0"}),
    "none": ("virtual/block/sdb", {"bus": "none", "path": "/dev/sdb"}),
}


@pytest.mark.parametrize("bus", BUSES)
def test_disk_on_each_bus_has_its_role_and_partitions_links(machine: Machine, bus: str) -> None:
    path, members = BUSES[bus]
    other = f"{PCI}:0f.0/virtio9/block/vdz"
    machine.disk(path, serial="serial-1" if bus == "virtio" else "", partitions=2)
    machine.disk(other)
    machine.scsi_host(f"{PCI}:05.0/virtio2/host6")
    if bus == "ide":
        machine.disk(f"{PCI}:01.1/ata1/host0/target0:0:1/0:0:1:0/block/sdb")
    name = "nvme0n1p" if bus == "nvme" else Path(path).name
    with Udev(sysfs=machine.root) as udev:
        assert tag(udev, [disk("db", **members)], "--output", FILE) == ""
        whole, part, strange = (
            udev.test(f"/sys/devices/{device}") for device in (path, f"{path}/{name}2", other)
        )
    assert whole[1] == part[1] == []
    assert (roles(whole[0]), whole[0]["DEVLINKS"]) == (["db"], "/dev/disk/by-role/db")
    assert (roles(part[0]), part[0]["DEVLINKS"]) == ([], "/dev/disk/by-role/db-part2")
    assert not {"DFMETA_TAGS", "DEVLINKS", "TAGS"} & strange[0].keys()
