"""cloud-init should make of a completed network_data.json a device for each subport."""

from __future__ import annotations

from tests.core.unit.test_network_data import NOVA, ONE, SUB, TWO, VLAN, Vlan, completed_document
from tests.harness.netjson import CloudInit

NICS = {ONE: "eth0", TWO: "eth1"}


def test_cloud_init_makes_a_device_of_each_subport() -> None:
    vlans = [VLAN, Vlan(ONE, 4094, "fa:16:3f:00:0f:fe"), Vlan(TWO, 100, "fa:16:3f:00:00:65")]
    document = completed_document(NOVA, *vlans)
    with CloudInit() as cloud_init:
        before = cloud_init.netplan(NOVA, NICS)
        found = cloud_init.netplan(document, NICS)
        meant = cloud_init.network_data(document, NICS)
        was = cloud_init.network_data(NOVA, NICS)
    assert found["ethernets"] == before["ethernets"]
    assert found["vlans"] == {
        "eth0.100": {"id": 100, "link": "eth0", "macaddress": SUB, "mtu": 1442},
        "eth0.4094": {"id": 4094, "link": "eth0", "macaddress": vlans[1].mac, "mtu": 1442},
        "eth1.100": {"id": 100, "link": "eth1", "macaddress": vlans[2].mac},
    }
    assert (meant["routes"], meant["servers"]) == (was["routes"], was["servers"])
    assert was["links"].items() <= meant["links"].items()
