"""A document of devices should be accepted or refused by its rules, whatever it is."""

import copy
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.cli.devices_command import splice
from dfmeta.devices import as_of, validate
from dfmeta.devices.schema import ADDRESSES, DEPTH_MAX, DEVICES_MAX, SCHEMA, TAG_MAX, VALUES_MAX
from dfmeta.errors import DeviceError
from tests.core.unit.devices.documents import GOOD, REFUSED, disk, load, nic


def refusal(document: object) -> tuple[str, str]:
    with pytest.raises(DeviceError) as caught:
        validate(document)
    assert str(caught.value).isprintable()
    return caught.value.path, caught.value.cause


def outcome(document: object) -> DeviceError | None:
    """The error, if there is one; any other than ours goes through."""
    try:
        validate(document)
    except DeviceError as error:
        return error
    return None


def of_device(device: object) -> tuple[str, str]:
    return refusal({"devices": [device]})


def test_documents_of_the_specification_and_nova_are_valid_and_wrong_ones_refused() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for document in ({}, {"devices": []}, *map(load, GOOD)):
        validate(document)
    for name in REFUSED:
        refusal(load(name))


WRONG_DEVICES: list[tuple[Any, str, str]] = [
    ("nic", "devices[0]", '"nic" is not of type object'),
    ({}, "devices[0]", "has no type"),
    (nic(type=5), "devices[0].type", "5 is not of type string"),
    (nic(bus=None), "devices[0]", "has no bus"),
    (nic(bus="isa"), "devices[0].bus", '"isa" is not one of pci, usb, scsi, ide, xen, none'),
    (nic(bus=["pci"]), "devices[0].bus", "a list is not one of"),
    (nic(mac=None), "devices[0]", "has no mac"),
    (nic(mac="fa:16:3e:00:00"), "devices[0].mac", "the required form"),
    (nic(mac=":".join(["fa"] * 20)), "devices[0].mac", "the required form"),
    (nic(mac="fa:16:3e:00:00:01\n"), "devices[0].mac", "the required form"),
    (nic(address=5), "devices[0].address", "5 is not of type string"),
    (nic(vlan=0), "devices[0].vlan", "out of range"),
    (nic(vlan=4095), "devices[0].vlan", "out of range"),
    (nic(vlan=True), "devices[0].vlan", "true is not of type integer"),
    (nic(vf_trusted="yes"), "devices[0].vf_trusted", '"yes" is not of type boolean'),
    (nic(devname="a\nb"), "devices[0].devname", "the required form"),
    (disk(serial="a\x00b"), "devices[0].serial", "the required form"),
    (nic(tags="lan"), "devices[0].tags", '"lan" is not of type array'),
    (nic(tags=[5]), "devices[0].tags[0]", "5 is not of type string"),
    (nic(tags=["ok", ""]), "devices[0].tags[1]", "is empty"),
    (nic(tags=["x" * (TAG_MAX + 1)]), "devices[0].tags[0]", "more than 60 characters"),
    (nic(tags=["a", "a"]), "devices[0].tags[1]", "occurs twice"),
    ({"type": "gpu", "tags": ["a/b"]}, "devices[0].tags[0]", "the required form"),
]


def test_a_device_that_breaks_a_rule_is_refused_by_its_place() -> None:
    for device, path, cause in WRONG_DEVICES:
        result = of_device(device)
        assert result[0] == path, device
        assert cause in result[1], device
    for make in (nic, disk):
        members = {"mac", "devname", "vlan"} if make is nic else {"serial", "path"}
        for member in {"type", "bus", "address", "tags"} | members:
            # Null is no value of a member.
            assert of_device({**make(), member: None})[0] == f"devices[0].{member}"


def test_a_tag_has_no_comma_slash_or_control_character_as_in_nova() -> None:
    for tag in ("a,b", "a/b", "a\n", "\n", "a\x1b[0m", "a\x7f", "a\x85", "a\u2028b"):
        assert of_device(nic(tags=[tag]))[0] == "devices[0].tags[0]", tag
    for tag in ("a", "x" * TAG_MAX, "\u00e9" * TAG_MAX, "a b", 'a"b', "a=b", "$x", "."):
        validate({"devices": [nic(tags=[tag])]})


ADDRESS_GOOD = {
    "pci": ["0000:00:02.0", "abcd:ff:1f.7", "10000:e1:00.0"],
    "usb": ["1:2", "0:2.1.4", "05c8:021e"],
    "scsi": ["1:0:2:0", "05c8:021e:04a7:011b"],
    "ide": ["0:0", "1:1"],
    "xen": ["0", "1", "51712", "000100"],
    "none": [],
}
ADDRESS_BAD = {
    "pci": ["0000:00:02:0", "0000:00:2.0", "00:02.0", "0000:00:02.0\n", "0000:AB:02.0", ""],
    "usb": ["1", "1:2:3", "x1:2"],
    "scsi": ["1:0:2", "1:0:2:0:0", "1:0:2:0 "],
    "ide": ["0:2", "00:0"],
    "xen": ["a", "-1", "\u0661"],
    "none": ["0"],
}


def test_an_address_has_its_buss_form_or_is_not_known() -> None:
    assert ADDRESS_GOOD.keys() == ADDRESS_BAD.keys() == ADDRESSES.keys()
    for bus in ADDRESSES:
        for address in (None, "none", *ADDRESS_GOOD[bus]):
            validate({"devices": [nic(bus=bus, address=address), disk(bus=bus, address=address)]})
        for address in ADDRESS_BAD[bus]:
            assert of_device(disk(bus=bus, address=address))[0] == "devices[0].address"


SHARED_TAGS: list[tuple[list[Any], str]] = [
    ([nic(), nic(mac="FA:16:3E:00:00:01", bus="usb")], "with the same MAC"),
    ([nic(), nic(mac="fa:16:3e:00:00:02")], "belongs to one NIC"),
    ([disk(), disk(serial="s2", bus="ide")], "not a view of the same disk"),
    ([disk(), disk()], "with the same serial on the bus pci"),
    ([disk(serial=None), disk(serial=None, bus="ide")], "not a view of the same disk"),
    ([disk(serial=""), disk(serial="", bus="ide")], "not a view of the same disk"),
]


def test_a_tag_is_the_role_of_one_device() -> None:
    for devices, cause in SHARED_TAGS:
        path, result = refusal({"devices": devices})
        assert path == "devices[1].tags[0]"
        assert cause in result
    for devices in ([nic(tags=["a"]), disk(tags=["a"])], [nic(tags=["a"]), nic(tags=["b"])]):
        validate({"devices": devices})
    views = [disk(), disk(bus="ide"), disk(bus="xen")]
    validate({"devices": views})
    # Each view of a disk is compared with all before it.
    for another in (disk(bus="ide"), disk(bus="usb", serial="t")):
        assert refusal({"devices": [*views, another]})[0] == "devices[3].tags[0]"


NO_DOCUMENTS: list[Any] = [
    None,
    [],
    {"devices": None},
    {"devices": ({},)},
    {"devices": [{"type": "x", "a": float("nan")}]},
    {"devices": [{"type": "x", "a": 10**5000}]},
    {"devices": [{"type": "x", "a": "\ud800"}]},
    {"devices": [{"type": "x", "\ud800": 1}]},
    {"devices": [{"type": "x", 5: 1}]},
    {"devices": [{"type": "x"}] * (DEVICES_MAX + 1)},
    {"devices": [], "x": [0] * VALUES_MAX},
]


def test_a_value_that_is_no_document_is_refused() -> None:
    loop: list[Any] = []
    loop += [loop] * 1000
    for document in (*NO_DOCUMENTS, loop, {"devices": [{"type": loop}]}):
        refusal(document)


def test_a_document_that_is_too_deep_is_refused() -> None:
    for depth in (DEPTH_MAX + 1, 100_000):
        deep: Any = []
        for _ in range(depth):
            deep = [deep]
        assert "deeper" in refusal(deep)[1]
        for member in ("type", "bus", "tags", "mac", "x"):
            assert "deeper" in of_device({**nic(), member: deep})[1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
VALUE = JSON | st.sampled_from(["nic", "disk", "pci", "scsi", "none", "0:0", ["a"], ["a", "b"]])
DEVICE = st.dictionaries(
    st.sampled_from(
        ["type", "bus", "address", "mac", "serial", "path", "devname", "vlan", "tags", "x"]
    ),
    VALUE,
)


@given(JSON | st.fixed_dictionaries({"devices": st.lists(DEVICE | JSON, max_size=4)}))
def test_any_value_is_accepted_or_refused(document: object) -> None:
    before = copy.deepcopy(document)
    error = outcome(document)
    assert str(error).isprintable()
    if error is None:
        json.dumps(document, allow_nan=False).encode()
    assert repr(document) == repr(before)


def test_unknown_members_pass() -> None:
    members = {"x-1": [None, {"a": 1.5}], "x-é": "\u2028"}
    validate({**members, "devices": [{**nic(), **members}, {**disk(), **members}]})


def test_an_older_version_has_what_nova_has_in_it() -> None:
    newest = load("nova-2025-04-04")["devices"]
    assert as_of("latest", newest) == newest
    for version in ("2016-06-30", "2017-02-22", "2018-08-27", "2025-04-04"):
        assert as_of(version, newest) == load(f"nova-{version}")["devices"], version


CHANGES = [
    ("{}", '{"d": [1]}'),
    ("{ }\n", '{"d": [1] }\n'),
    ('{"a": 1.0e2}', '{"a": 1.0e2, "d": [1]}'),
    ('{\n  "a": 1\n}\n', '{\n  "a": 1, "d": [1]\n}\n'),
    ('{"d":[ {"d": 5} ],"a" : "}"}', '{"d":[1],"a" : "}"}'),
    ('{"a": {"d": 5}, "d": "x, \\"d\\": 5"}', '{"a": {"d": 5}, "d": [1]}'),
    ('{"\\u0064": null}', '{"\\u0064": [1]}'),
    (' {"a": "\\ud83d\\ude00\u00e9"}', ' {"a": "\\ud83d\\ude00\u00e9", "d": [1]}'),
]


def test_all_other_bytes_stay() -> None:
    for before, after in CHANGES:
        assert splice(before, "d", [1]) == after, before


def test_a_text_that_is_no_object_is_refused() -> None:
    deep, twice = '{"a":' + "[" * 100_000, '{"d": 1, "d": 2}'
    for text in ("", "[]", "5", "{", '{"a": NaN}', "{} {}", twice, deep):
        with pytest.raises(DeviceError):
            splice(text, "d", [1])
