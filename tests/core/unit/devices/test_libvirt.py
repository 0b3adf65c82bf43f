"""A domain's XML should become the document of its devices, with each tag where it belongs."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.devices import validate
from dfmeta.devices.libvirt import TagRule, read_domain
from dfmeta.errors import DomainError, TagRuleError

A = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
PORT = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
VOLUME = "b2e4d7c1-5a0e-4b7e-9f55-0c1f2f3a4b5c"
MAC = "52:54:00:aa:00:0"


def domain(*devices: str, kind: str = "kvm", os: str = "hvm") -> str:
    return (
        f"<domain type='{kind}'><name>web</name><uuid>{A}</uuid><os><type>{os}</type></os>"
        f"<devices>{''.join(devices)}</devices></domain>"
    )


def pci(slot: str, *, domain: str = "0x0000", bus: str = "0x00", function: str = "0x0") -> str:
    return (
        f"<address type='pci' domain='{domain}' bus='{bus}' slot='{slot}' function='{function}'/>"
    )


def drive(controller: int = 0, bus: int = 0, target: int = 0, unit: int = 0) -> str:
    return (
        f"<address type='drive' controller='{controller}' bus='{bus}' target='{target}'"
        f" unit='{unit}'/>"
    )


def interface(number: int, *inner: str, kind: str = "bridge") -> str:
    mac = f"<mac address='{MAC}{number}'/>"
    return f"<interface type='{kind}'>{mac}{''.join(inner)}</interface>"


def disk(target: str, bus: str, *inner: str, serial: str = "", device: str = "disk") -> str:
    serial = f"<serial>{serial}</serial>" if serial else ""
    return (
        f"<disk type='file' device='{device}'><target dev='{target}' bus='{bus}'/>"
        f"{serial}{''.join(inner)}</disk>"
    )


def scsi(model: str, index: int = 0) -> str:
    return f"<controller type='scsi' index='{index}' model='{model}'>{pci('0x09')}</controller>"


NICS = (
    interface(
        1,
        "<source network='lan' bridge='virbr0'/><target dev='vnet0'/><alias name='net0'/>"
        f"<virtualport type='openvswitch'><parameters interfaceid='{PORT}'/></virtualport>",
        pci("0x03"),
    ),
    interface(2, "<source bridge='br-int'/><alias name='ua-second'/>", pci("0x1f", function="0x7")),
)
DISKS = (
    disk("vda", "virtio", pci("0x05"), serial="root-1"),
    disk(
        "sda",
        "scsi",
        f"<source protocol='rbd' name='volumes/volume-{VOLUME}'/><alias name='scsi0-0-2-1'/>",
        drive(target=2, unit=1),
    ),
)
WHOLE = domain(*NICS, *DISKS, scsi("virtio-scsi"))


def devices(xml: str, *rules: str) -> list[dict[str, Any]]:
    """The document's devices; it is valid and JSON."""
    document = read_domain(xml.encode()).document([TagRule.parse(rule) for rule in rules])
    validate(document)
    assert json.loads(json.dumps(document)) == document
    members: list[dict[str, Any]] = document["devices"]
    return members


def roles(xml: str, *rules: str) -> dict[int, list[str]]:
    objects = devices(xml, *rules)
    return {number: device["tags"] for number, device in enumerate(objects) if "tags" in device}


def test_each_nic_and_disk_of_a_domain_is_a_device() -> None:
    assert devices(WHOLE) == [
        {"type": "nic", "bus": "pci", "address": "0000:00:03.0", "mac": f"{MAC}1"},
        {"type": "nic", "bus": "pci", "address": "0000:00:1f.7", "mac": f"{MAC}2"},
        {"type": "disk", "bus": "pci", "address": "0000:00:05.0", "serial": "root-1"},
        {"type": "disk", "bus": "scsi", "address": "0:0:2:1"},
    ]


PCI_ADDRESSES: list[tuple[str, str | None]] = [
    (pci("0x1f", domain="0x10000", bus="0xe1"), "10000:e1:1f.0"),
    (pci("10", bus="255", function="7"), "0000:ff:0a.7"),
    ("<address type='pci' bus='0x01' slot='0x02' function='0x3'/>", "0000:01:02.3"),
    (pci("0x20"), None),
    (pci(""), None),
    ("<address type='pci'/>", None),
]


def test_a_pci_address_is_written_as_sysfs_has_it() -> None:
    for address, text in PCI_ADDRESSES:
        (device,) = devices(domain(interface(1, address)))
        assert (device["bus"], device.get("address")) == ("pci", text), address


def test_a_passed_through_function_has_the_guests_address_not_the_hosts() -> None:
    source = f"<source>{pci('0x10', bus='0x81')}</source><vlan><tag id='42'/></vlan>"
    (device,) = devices(domain(interface(1, source, pci("0x07"), kind="hostdev")))
    assert (device["address"], device["vlan"]) == ("0000:00:07.0", 42)


def test_a_vlan_that_the_guest_is_not_to_use_is_left_out() -> None:
    for vlan, kind in (
        ("<vlan><tag id='42'/></vlan>", "bridge"),
        ("<vlan trunk='yes'><tag id='42'/><tag id='43'/></vlan>", "hostdev"),
        ("<vlan><tag id='4095'/></vlan>", "hostdev"),
        ("<vlan><tag/></vlan>", "hostdev"),
    ):
        (device,) = devices(domain(interface(1, vlan, kind=kind)))
        assert "vlan" not in device, vlan


def test_a_scsi_address_is_read_as_the_controller_has_it() -> None:
    element = disk("sda", "scsi", drive(controller=1, target=2, unit=3))
    for model, text in (
        *(("virtio-scsi", "1:0:2:3"), ("lsisas1068", "1:0:2:3")),
        *(("lsilogic", "1:0:3:0"), ("auto", "1:0:3:0")),
    ):
        (device,) = devices(domain(scsi("virtio-scsi"), element, scsi(model, index=1)))
        assert (device["bus"], device["address"]) == ("scsi", text), model


BUSES: list[tuple[str, str, str | None]] = [
    (disk("hdd", "ide", drive(bus=1, unit=1)), "ide", "1:1"),
    (disk("hdd", "ide", drive(bus=2)), "ide", None),
    (disk("sdb", "usb", "<address type='usb' bus='0' port='2.1'/>"), "usb", "0:2.1"),
    (disk("sdb", "usb", "<address type='usb' bus='x' port='2'/>"), "usb", None),
    (disk("sdb", "scsi"), "scsi", None),
    (disk("sda", "sata", drive()), "none", None),
    (disk("vda", "virtio", "<address type='ccw' cssid='0xfe'/>"), "none", None),
]


def test_a_disk_is_on_the_bus_that_a_guest_sees() -> None:
    for element, bus, address in BUSES:
        (device,) = devices(domain(element))
        assert (device["bus"], device.get("address")) == (bus, address), element
    # Drives for media are no disks.
    cdrom = disk("sda", "sata", drive(), device="cdrom")
    assert devices(domain(cdrom, disk("fda", "fdc", device="floppy"))) == []
    assert len(devices(domain(disk("sda", "scsi", device="lun")))) == 1


def test_a_disk_of_a_xen_guest_has_its_number_in_xenbus() -> None:
    numbers = {"xvda": 51712, "xvdb": 51728, "xvda1": 51713, "xvdp": 51952, "xvdq": 268439552}
    numbers |= {"xvdaa": 268442112, "hda": 768, "hdd": 5696, "sdb": 2064}
    for target, number in numbers.items():
        (device,) = devices(domain(disk(target, "xen"), kind="xen", os="linux"))
        assert (device["bus"], device["address"]) == ("xen", str(number)), target
        assert device.get("path") == (f"/dev/{target}" if target.startswith("xvd") else None)
    for target in ("xvdaaaa", "hde", "xvda256", "sdz", "vda", ""):
        (device,) = devices(domain(disk(target, "xen"), kind="xen", os="linux"))
        assert (device["bus"], "address" in device) == ("xen", False), target


def test_a_xen_hvm_guest_has_two_views_of_a_disk_with_the_same_tag() -> None:
    xml = domain(
        interface(1),
        interface(2, "<target dev='vif3.4'/>"),
        disk("xvda", "xen", serial="disk-vol-1"),
        disk("xvdb", "xen", serial="disk-vol-2"),
        kind="xen",
    )
    disks = devices(xml, "disk:disk-vol-1=oracledb", "disk:target:xvdb=squidcache")
    assert [(view["bus"], view["address"], view.get("tags")) for view in disks] == [
        ("xen", "0", None),
        ("xen", "4", None),
        ("ide", "0:0", ["oracledb"]),
        ("xen", "51712", ["oracledb"]),
        ("ide", "0:1", ["squidcache"]),
        ("xen", "51728", ["squidcache"]),
    ]


def test_a_disk_that_a_guest_could_not_find_gets_no_tag() -> None:
    for bus in ("scsi", "usb", "sata", "ide", "virtio"):
        with pytest.raises(TagRuleError, match="give the disk a <serial>") as caught:
            devices(domain(disk("x", bus)), "disk:x=db")
        assert "disk:x=db" in str(caught.value)
        assert roles(domain(disk("x", bus, serial="s")), "disk:x=db") == {0: ["db"]}
    assert len(devices(domain(disk("xvda", "xen"), kind="xen"), "disk:xvda=db")) == 1


def test_a_containers_devices_have_names_and_no_address() -> None:
    xml = domain(
        interface(1, "<target dev='veth0'/><guest dev='eth1'/>"),
        disk("sda", "virtio", serial="s"),
        kind="lxc",
        os="exe",
    )
    assert devices(xml, "nic:veth0=lan") == [
        {"type": "nic", "bus": "none", "mac": f"{MAC}1", "devname": "eth1", "tags": ["lan"]},
        {"type": "disk", "bus": "none", "serial": "s", "path": "/dev/sda"},
    ]


RULES = [
    (f"nic:{MAC}1", 0),
    (f"nic:{MAC.upper()}2", 1),
    ("nic:vnet0", 0),
    ("nic:target:vnet0", 0),
    ("nic:alias:ua-second", 1),
    ("nic:network:lan", 0),
    ("nic:br-int", 1),
    (f"nic:port:{PORT}", 0),
    ("disk:root-1", 2),
    ("disk:serial:root-1", 2),
    ("disk:vda", 2),
    ("disk:alias:scsi0-0-2-1", 3),
    (f"disk:{VOLUME}", 3),
    (f"disk:volume:volumes/volume-{VOLUME}", 3),
]


def test_a_rule_finds_its_device() -> None:
    for rule, number in RULES:
        assert roles(WHOLE, f"{rule}=a=b") == {number: ["a=b"]}, rule
    assert roles(WHOLE, "nic:vnet0=a", "nic:net0=b", "nic:lan=a", "disk:vda=a") == {
        0: ["a", "b"],
        2: ["a"],
    }


def test_a_rule_for_no_device_is_refused_with_the_known_ones() -> None:
    for rule, cause in (
        ("nic:vnet9=a", f"no such device. Known devices: nic mac:{MAC}1 target:vnet0"),
        ("nic:target:net0=a", "no such device"),
        ("disk:vnet0=a", "no such device. Known devices: disk serial:root-1 target:vda"),
    ):
        with pytest.raises(TagRuleError) as caught:
            devices(WHOLE, rule)
        assert rule in str(caught.value)
        assert cause in str(caught.value)
    with pytest.raises(TagRuleError) as caught:
        devices(domain(interface(1, "<target dev='a&#10;b'/>")), "nic:x=y")
    assert str(caught.value).isprintable()


def test_a_rule_for_two_devices_is_refused_with_both() -> None:
    source = "<source network='lan'/><target dev='{}'/>"
    two = domain(*(interface(1, source.format(name)) for name in "ab"))
    for rule in ("nic:lan=x", f"nic:{MAC}1=x"):
        with pytest.raises(TagRuleError, match=r"2 devices.*target:a.*target:b"):
            devices(two, rule)
    assert roles(two, "nic:a=x", "nic:b=y") == {0: ["x"], 1: ["y"]}


def test_two_elements_of_one_serial_are_one_disk_where_the_buses_differ() -> None:
    views = [disk("hda", "ide", serial="s"), disk("vda", "virtio", pci("0x05"), serial="s")]
    assert roles(domain(*views), "disk:s=db") == {0: ["db"], 1: ["db"]}
    assert roles(domain(*views), "disk:hda=db") == {0: ["db"], 1: ["db"]}
    with pytest.raises(TagRuleError, match="2 devices"):
        devices(domain(views[1], views[1]), "disk:s=db")


def test_a_text_that_is_no_rule_is_refused() -> None:
    for text in (
        *("", "nic", "nic:", "nic:=a", "nic:x", "nic:x=", "cat:x=a", "nic=a:b", "NIC:x=a"),
        *("nic:mac:=a", "nic:x=a,b", "nic:x=a/b", "nic:x=a\n", f"nic:x={'a' * 61}"),
    ):
        with pytest.raises(TagRuleError) as caught:
            TagRule.parse(text)
        assert str(caught.value).isprintable()


def test_a_value_that_looks_like_a_key_can_be_named() -> None:
    assert TagRule.parse("disk:serial:target:1=db") == TagRule(
        "disk", "target:1", "db", key="serial"
    )
    assert TagRule.parse("disk:mac:1=db") == TagRule("disk", "mac:1", "db")


@given(st.sampled_from(["nic", "disk"]), st.text(), st.text())
def test_a_rule_is_written_as_it_is_read(kind: str, value: str, tag: str) -> None:
    try:
        rule = TagRule.parse(f"{kind}:{value}={tag}")
    except TagRuleError:
        return
    assert str(rule) == f"{kind}:{value}={tag}"
    assert TagRule.parse(str(rule)) == rule


def test_a_text_that_is_no_domain_is_refused() -> None:
    entity = f"<!DOCTYPE d [<!ENTITY a 'ha'>]><domain><uuid>{A}</uuid></domain>"
    wrong = f"<domain><uuid>{A}x</uuid></domain>"
    for xml in ("", "<network/>", "<domain/>", wrong, entity, "<domain>" + "<a>" * 70):
        with pytest.raises(DomainError):
            read_domain(xml.encode())


def test_a_file_is_read_in_the_encoding_that_it_declares() -> None:
    xml = "<?xml version='1.0' encoding='iso-8859-1'?>" + domain(disk("vda", "virtio", serial="é"))
    document = read_domain(xml.encode("iso-8859-1")).document([])
    assert document["devices"][0]["serial"] == "é"


@given(st.integers(0, len(WHOLE)), st.text(min_size=1, max_size=8))
def test_a_damaged_domain_gives_a_valid_document_or_none(place: int, junk: str) -> None:
    try:
        text = WHOLE[:place] + junk + WHOLE[place + len(junk) :]
        document = read_domain(text.encode()).document([])
    except DomainError:
        return
    validate(document)
