"""The values of devices should give the members of the document, and only those that are known."""

from __future__ import annotations

from dfmeta.devices.check import validate
from dfmeta.devices.model import Disk, IdeBus, Nic, NoBus, PciBus


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
    assert Disk(bus=NoBus()).to_dict() == {"type": "disk", "bus": "none"}
