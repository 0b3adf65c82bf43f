"""A document should come back from its values as it was, and they should be the right ones."""

from __future__ import annotations

import dataclasses

import pytest

from dfmeta.devices.model import (
    BUSES,
    Disk,
    Document,
    IdeBus,
    Nic,
    NoBus,
    OtherDevice,
    PciBus,
    XenBus,
    device_of,
)
from dfmeta.devices.schema import ADDRESSES
from dfmeta.exceptions import DeviceError
from tests.unit.devices.documents import GOOD, REFUSED, load, nic


@pytest.mark.parametrize("name", GOOD)
def test_a_document_comes_back_as_it_was(name: str) -> None:
    assert Document.from_dict(load(name)).to_dict() == load(name)


@pytest.mark.parametrize("document", [{}, {"devices": []}, {"x": None}])
def test_a_document_of_nothing_comes_back_as_it_was(document: dict[str, object]) -> None:
    assert Document.from_dict(document).to_dict() == document


@pytest.mark.parametrize("name", REFUSED)
def test_no_values_are_made_of_what_breaks_a_rule(name: str) -> None:
    with pytest.raises(DeviceError):
        Document.from_dict(load(name))


def test_a_nic_and_a_disk_have_their_members() -> None:
    found = Document.from_dict(load("nova-2018-08-27")).devices
    assert found is not None
    assert found[1] == Nic(
        bus=PciBus("0000:00:08.0"),
        mac="fa:16:3e:44:55:66",
        vlan=1000,
        vf_trusted=True,
        tags=("trusted",),
    )
    views = Document.from_dict(load("spec-xen")).devices
    assert views is not None
    assert views[2:4] == (
        Disk(bus=IdeBus("0:0"), serial="disk-vol-123456", tags=("oracledb",)),
        Disk(bus=XenBus("0"), serial="disk-vol-123456", path="/dev/xvda", tags=("oracledb",)),
    )


def test_no_tags_and_an_empty_list_of_them_are_told_apart() -> None:
    assert device_of(nic(tags=None)).tags is None
    assert device_of(nic(tags=[])).tags == ()


def test_a_type_that_is_not_known_keeps_all_it_has() -> None:
    members = {"type": "share", "kind": "nfs", "share_id": None, "tag": "b", "address": "7"}
    found = device_of(members)
    assert isinstance(found, OtherDevice)
    assert (found.type, found.bus) == ("share", None)
    assert found.to_dict() == members


def test_values_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NoBus().address = "0"  # type: ignore[misc]  # it is frozen: that is what is tried


def test_each_bus_of_the_schema_has_a_class() -> None:
    assert BUSES.keys() == ADDRESSES.keys()
