"""No document should get anything into the rules but encoded tags, in their place."""

import ast
import json
import quopri
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dfmeta.guest import tag_devices
from tests.harness.examples import examples
from tests.harness.sysfs import MAC, PCI, Machine

OTHER_MAC = "fa:16:3e:00:00:02"
TEXT = "[A-Za-z0-9._=-]+"
PATH = r'DEVPATH=="/devices(?:/[A-Za-z0-9._:*-]+)+"'
SERIAL = r'(?:, ATTRS\{serial\}=="[A-Za-z0-9._:-]+")?'
TAGS = (
    rf'ENV\{{DFMETA_TAGS\}}="(?P<tags>{TEXT}(?:,{TEXT})*)"(?P<udev>(?:, TAG\+="[A-Za-z0-9_-]+")+)'
)
LINKS = rf'(?P<links>(?:, SYMLINK\+="disk/by-role/{TEXT}")+)'
PARTITIONS = rf'(?P<links>(?:, SYMLINK\+="disk/by-role/{TEXT}-part%n")+)'
NIC = (
    rf'ACTION!="remove", SUBSYSTEM=="net", (?:{PATH}|ATTR\{{address\}}=="[0-9a-f:]{{17}}", '
    rf'ENV\{{DEVTYPE\}}=="[a-z]*"|KERNEL=="[A-Za-z0-9._:-]+"), {TAGS}'
)
BLOCK = 'ACTION!="remove", SUBSYSTEM=="block", '
DISK = rf'{BLOCK}ENV\{{DEVTYPE\}}=="disk", {PATH}{SERIAL}, {TAGS}{LINKS}'
PART = rf'{BLOCK}ENV\{{DEVTYPE\}}=="partition", {PATH}{SERIAL}{PARTITIONS}'
HOSTILE = [
    'a", RUN+="/bin/sh -c id", ENV{X}="',
    'a\nRUN+="/bin/id"',
    "a\\",
    'a\\"',
    "$env{PATH}",
    "%k%n%%",
    "../../../etc/passwd",
    "..",
    "/dev/vda",
    "uaccess",
    "a b\tc",
    "é\u202e\u2028\U0001f600",
    "\0",
    "e\u0301",
    "a=20b",
    "a_20b",
    "db-part1",
    "-n",
    "{a}*?[b]|c",
]


def rules(machine: Machine, document: Any, messages: list[str]) -> list[str]:
    """The lines but the comment at the head; each of the strict form above."""
    devices = machine.devices()
    raw = json.dumps(document).encode()
    wanted = tag_devices.wanted_devices(tag_devices.read_document(raw), messages.append)
    tagged = tag_devices.matches(wanted, devices, messages.append)
    text = tag_devices.rules(tagged, devices, messages.append)
    assert text.isascii()
    if not text:
        return []
    assert text.startswith(tag_devices.MARK)
    lines = text[len(tag_devices.MARK) :].split("\n")
    assert lines.pop() == ""
    return [strict(line) for line in lines]


def strict(line: str) -> str:
    match = next(
        candidate
        for candidate in (re.fullmatch(form, line) for form in (NIC, DISK, PART))
        if candidate
    )
    groups = match.groupdict()
    links = groups.get("links", "").count("SYMLINK+=")
    tags = len(groups["tags"].split(",")) if groups.get("tags") else 0
    assert groups.get("udev", "").count("TAG+=") == tags
    assert not (tags and links) or tags == links
    assert len(re.findall(r'[^=!]="', line)) == (1 + tags if tags else 0) + links
    assert len(groups.get("tags") or "") < 512, "what udev takes"
    assert len(line) < 16384
    return line


def decoded(line: str) -> list[str]:
    match = re.search('ENV{DFMETA_TAGS}="([^"]*)"', line)
    assert match
    return [quopri.decodestring(text).decode() for text in match[1].split(",")]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    made = Machine(tmp_path_factory.mktemp("small") / "sys")
    made.nic(f"{PCI}:02.0/virtio0/net/eth0", MAC)
    made.disk(f"{PCI}:07.0/virtio4/block/vda", serial="serial-1", partitions=1)
    return made


def nic(*tags: Any, **members: Any) -> dict[str, Any]:
    return {"type": "nic", "bus": "pci", "address": "0000:00:02.0", "tags": [*tags], **members}


def disk(*tags: Any, **members: Any) -> dict[str, Any]:
    return {"type": "disk", "bus": "pci", "address": "0000:00:07.0", "tags": [*tags], **members}


def test_a_nic_gets_its_tags(small: Machine, messages: list[str]) -> None:
    assert rules(small, {"devices": [nic("nfvfunc1", "web_cache")]}, messages) == [
        (
            'ACTION!="remove", SUBSYSTEM=="net", '
            'DEVPATH=="/devices/pci0000:00/0000:00:02.0/virtio*/net/*", '
            'ENV{DFMETA_TAGS}="nfvfunc1,web_cache", TAG+="dfmeta-nfvfunc1", TAG+="dfmeta-web_cache"'
        )
    ]


def test_disk_and_its_partitions_get_tags_and_links(small: Machine, messages: list[str]) -> None:
    assert rules(small, {"devices": [disk("oracledb")]}, messages) == [
        (
            'ACTION!="remove", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", '
            'DEVPATH=="/devices/pci0000:00/0000:00:07.0/virtio*/block/*", '
            'ATTRS{serial}=="serial-1", '
            'ENV{DFMETA_TAGS}="oracledb", TAG+="dfmeta-oracledb", SYMLINK+="disk/by-role/oracledb"'
        ),
        (
            'ACTION!="remove", SUBSYSTEM=="block", ENV{DEVTYPE}=="partition", '
            'DEVPATH=="/devices/pci0000:00/0000:00:07.0/virtio*/block/*/*", '
            'ATTRS{serial}=="serial-1", SYMLINK+="disk/by-role/oracledb-part%n"'
        ),
    ]


def test_pattern_omits_numbers_that_a_boot_changes(machine: Machine, messages: list[str]) -> None:
    for number, (path, pattern) in enumerate(
        (
            ("virtio2/host6/target6:0:0/6:0:0:1", "virtio*/host*/target*:0:0/*:0:0:1"),
            ("ata2/host1/target1:0:0/1:0:0:0", "ata2/host*/target*:0:0/*:0:0:0"),
            (
                "usb1/1-2/1-2:1.0/host8/target8:0:0/8:0:0:0",
                "usb1/1-2/1-2:1.0/host*/target*:0:0/*:0:0:0",
            ),
        )
    ):
        machine.disk(f"{PCI}:0{number}.0/{path}/block/sd{number}")
        document = {"devices": [disk("db", address=f"0000:00:0{number}.0")]}
        whole, parts = rules(machine, document, messages)
        place = f'DEVPATH=="/devices/pci0000:00/0000:00:0{number}.0/{pattern}/block/*'
        assert f'{place}"' in whole
        assert f'{place}/*"' in parts


def test_devices_of_a_function_differ_by_mac(machine: Machine, messages: list[str]) -> None:
    for number, mac in enumerate((MAC, OTHER_MAC), 1):
        machine.disk(f"{PCI}:05.0/nvme/nvme0/nvme0n{number}")
        machine.nic(f"{PCI}:02.0/net/eth{number}", mac)
    document = {"devices": [disk("db", bus="none", path="/dev/nvme0n2")]}
    assert 'nvme/nvme*/nvme*n2"' in rules(machine, document, messages)[0]
    [line] = rules(machine, {"devices": [nic("a", mac=OTHER_MAC)]}, messages)
    assert f'ATTR{{address}}=="{OTHER_MAC}"' in line
    assert "DEVPATH" not in line


def test_interface_on_no_bus_matches_by_mac_or_name(machine: Machine, messages: list[str]) -> None:
    for number, mac in enumerate((MAC, OTHER_MAC, OTHER_MAC, MAC.replace("fa", "fe"))):
        machine.nic(f"virtual/net/eth{number}", mac)
    with (machine.root / "devices/virtual/net/eth3/uevent").open("a") as uevent:
        uevent.write("DEVTYPE=macvlan\n")
    for name, key in (
        ("eth0", f'ATTR{{address}}=="{MAC}", ENV{{DEVTYPE}}==""'),
        ("eth2", 'KERNEL=="eth2"'),
        ("eth3", 'ENV{DEVTYPE}=="macvlan"'),
    ):
        [line] = rules(machine, {"devices": [nic("a", bus="none", devname=name)]}, messages)
        assert key in line


def test_name_that_udev_would_change_gets_no_rule(machine: Machine, messages: list[str]) -> None:
    machine.nic("virtual/net/eth0", "")
    for name in ("eth*", 'e"x', "e|th0", "e\\x"):
        machine.nic(f"virtual/net/{name}", "")
        machine.disk(f"virtual/block/{name}d")
        for wanted in (
            nic("a", bus="none", devname=name),
            disk("a", bus="none", path=f"/dev/{name}d"),
        ):
            messages.clear()
            assert rules(machine, {"devices": [wanted]}, messages) == []
            assert "no name that udev can match" in messages[0]


def test_hostile_tag_comes_back_and_is_nothing_else(small: Machine, messages: list[str]) -> None:
    for tag in HOSTILE:
        for make in (nic, disk):
            lines = rules(small, {"devices": [make(tag, "plain")]}, messages)
            assert decoded(lines[0]) == [tag, "plain"]
    assert messages == []


def test_value_that_is_no_tag_is_left_out_with_a_line(small: Machine, messages: list[str]) -> None:
    values = ["", "x" * 241, "é" * 50, "\ud800", 1, 1.5, None, True, ["a"], {"a": "b"}]
    for tag in values:
        [line] = rules(small, {"devices": [nic(tag, "plain")]}, messages)
        assert decoded(line) == ["plain"]
    assert len(messages) == len(values)
    assert all(text.isascii() and text.isprintable() and len(text) < 200 for text in messages)


def test_tags_above_udevs_limit_are_left_out_and_said(small: Machine, messages: list[str]) -> None:
    tags = [f"{number:0240d}" for number in range(3)]
    lines = rules(small, {"devices": [disk(*tags), disk("more", "m" * 100)]}, messages)
    assert decoded(lines[0]) == [*tags[:2], "more"]
    assert [text.rpartition(": no")[2] for text in messages] == [
        f" room for its tag '{'0' * 60}... in DFMETA_TAGS: left out",
        f" room for its tag '{'m' * 60}... in DFMETA_TAGS: left out",
    ]
    messages.clear()
    [line] = rules(small, {"devices": [nic(*"abcdefghijklmnopqrstuvwxyz")]}, messages)
    assert decoded(line) == [*"abcdefghijklmnop"]
    assert messages == ["devices[0] has more than 16 tags: the rest is left out"]


NO_DOCUMENTS = [
    b"",
    b"[]",
    b"nonsense",
    b"\xff\xfe",
    b'{"devices": 1}',
    b'{"devices": [' + b"1," * 2000 + b"1]}",
    b"[" * 100_000,
    b'{"a":' * 40 + b"1" + b"}" * 40,
    b'{"a": "' + b'\\"' * 100_000,
    b"{" + b" " * (5 << 20) + b"}",
]


def test_a_text_that_is_no_document_is_an_error() -> None:
    for raw in NO_DOCUMENTS:
        with pytest.raises(tag_devices.TagError):
            tag_devices.wanted_devices(tag_devices.read_document(raw), print)


def test_brackets_in_texts_are_not_counted_and_long_numbers_are_cut() -> None:
    raw = b'{"a": "[[\\\\\\"[[' + b"[{" * 100 + b'", "n": ' + b"9" * 1_000_000 + b"}"
    assert tag_devices.read_document(raw)["n"] == 10**20 - 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
tags = st.lists(st.text(max_size=80) | st.sampled_from(HOSTILE) | json_values, max_size=20)
devices = st.fixed_dictionaries(
    {"type": st.sampled_from(["nic", "disk"]) | json_values, "tags": tags | json_values},
    optional={
        "bus": st.sampled_from(["pci", "none", "scsi", "xen"]) | json_values,
        "address": st.sampled_from(["0000:00:02.0", "0000:00:07.0", "none"]) | json_values,
        "devname": st.sampled_from(["eth0", *HOSTILE]) | json_values,
        "path": st.sampled_from(["/dev/vda", *HOSTILE]) | json_values,
        "mac": st.sampled_from([MAC, OTHER_MAC]) | json_values,
        "serial": st.sampled_from(["serial-1", "x"]) | json_values,
    },
)


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(document=st.fixed_dictionaries({"devices": st.lists(devices, max_size=4) | json_values}))
def test_any_document_gives_strict_rules_or_error(small: Machine, document: dict[str, Any]) -> None:
    messages: list[str] = []
    try:
        lines = rules(small, document, messages)
    except tag_devices.TagError:
        return
    entries = [device for device in document["devices"] or () if isinstance(device, dict)]
    lists = [device["tags"] for device in entries if isinstance(device.get("tags"), list)]
    given_tags = [tag for tags in lists for tag in tags if isinstance(tag, str)]
    for line in lines:
        assert "DFMETA" not in line or set(decoded(line)) <= set(given_tags)
    assert all(line.isascii() and line.isprintable() for line in messages)


@given(st.text(min_size=1), st.text(min_size=1))
@example("db-part1", "db-part1x")
@example("a b", "a_20b")
@example("a=20b", "a_20b")
def test_no_two_tags_become_the_same(first: str, second: str) -> None:
    made = []
    for tag in (first, second):
        try:
            text = tag_devices.encoded(tag)
        except ValueError:
            return
        assert re.fullmatch(TEXT, text)
        assert quopri.decodestring(text).decode() == tag
        assert not re.search(r"-part\d+$", text), "a partition of another role"
        made.append((text, tag_devices.udev_tag(text)))
    assert (first == second) == (made[0][0] == made[1][0]) == (made[0][1] == made[1][1])


def test_the_program_is_in_the_python_of_old_guests() -> None:
    source = Path(tag_devices.__file__).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 6))
    # Not before 3.7, and what ast does not look at.
    for late in ("from __future__", "dataclass", "capture_output", "removeprefix", ".isascii()"):
        assert late not in source
