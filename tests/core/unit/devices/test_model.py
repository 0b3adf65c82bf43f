"""The values of devices should give the members of the document, and only those that are known."""

from __future__ import annotations

import dataclasses

import pytest

from dfmeta.devices.check import validate
from dfmeta.devices.model import Disk, IdeBus, Nic, NoBus, PciBus, ScsiBus, UsbBus, XenBus
from dfmeta.devices.schema import ADDRESSES


def test_a_nic_and_a_disk_have_their_members() -> None:
    devices = [
        Nic(
            bus=PciBus("0000:00:08.0"),
            mac="fa:16:3e:44:55:66",
            vlan=1000,
            vf_trusted=True,
            tags=("trusted",),
        ).to_dict(),
        Disk(bus=IdeBus("0:0"), serial="disk-vol-123456", tags=()).to_dict(),
    ]
    assert devices == [
        {
            "type": "nic",
            "bus": "pci",
            "address": "0000:00:08.0",
            "mac": "fa:16:3e:44:55:66",
            "vlan": 1000,
            "vf_trusted": True,
            "tags": ["trusted"],
        },
        {
            "type": "disk",
            "bus": "ide",
            "address": "0:0",
            "serial": "disk-vol-123456",
            "tags": [],
        },
    ]
    validate({"devices": devices})


def test_a_missing_member_is_not_written() -> None:
    assert Disk(bus=NoBus()).to_dict() == {"type": "disk", "bus": NoBus.name}


def test_values_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NoBus().address = "0"  # type: ignore[misc]  # it is frozen: that is what is tried


def test_each_bus_of_the_schema_has_a_class() -> None:
    classes = (PciBus, UsbBus, ScsiBus, IdeBus, XenBus, NoBus)
    assert {one.name for one in classes} == ADDRESSES.keys()
