"""A MAC should be found in the rows of ports, and in what a bridge has learned."""

from dfmeta.attach.drivers.local import is_learned, is_ports
from dfmeta.attach.model import Parent
from dfmeta.model import ATTACHMENT_KEY
from dfmeta.ovsdb.rows import Interface

MAC = "fa:16:3e:00:00:07"
VM = Parent(port_id="vm", port_name="tpi-1", instance_id="i")


def row(iface_id: str = "other", mac_in_use: str = "", **ids: str) -> Interface:
    keys = {"iface-id": iface_id, **{name.replace("_", "-"): text for name, text in ids.items()}}
    return Interface("p", "br-int", external_ids=keys, mac_in_use=mac_in_use)


def test_mac_of_another_port_is_found() -> None:
    for port, expected in (
        (row(mac_in_use=MAC.upper()), True),
        (row(attached_mac=f" {MAC} "), True),
        (row(dfmeta_meta_mac=MAC), True),
        (row(), False),
        (row("vm", attached_mac=MAC), False),
        (row(attached_mac=MAC, **{ATTACHMENT_KEY: "a"}), False),
    ):
        assert is_ports([row(attached_mac="02:00:00:00:00:01"), port], MAC, VM) == expected, port


def test_mac_is_learned_in_a_vlan() -> None:
    table = (
        f" port  VLAN  MAC                Age\n    3     7  {MAC}    2\nLOCAL     0  {MAC}  299\n"
    )
    assert [is_learned(table, MAC, vlan) for vlan in (0, 1, 7)] == [True, False, True]
    assert not is_learned(table, "fa:16:3e:00:00:08", 7)
