"""The second bridge should be read whole, and with the same effort on a host of any size."""

from __future__ import annotations

from typing import Any

import pytest

from dfmeta.model import MetaNames
from dfmeta.ports.bridge_reader import BridgeReader
from dfmeta.ports.meta_rows import MetaRows
from tests.core.unit.test_ovsdb import BridgeRow, Counting, bridge_row, idl, interface, port_row

NAMES = MetaNames("br-meta", "tap-meta", "int-br-meta", "phy-br-meta", "fa:16:ee:00:00:01")
VLAN = {"tag": [4095], "vlan_mode": ["dot1q-tunnel"], "cvlans": [1]}
MARK = {"dfmeta": "meta of br-int"}


def port(name: str, ofport: int, **columns: Any) -> Any:
    base = {"external_ids": MARK, "options": {}, "mac": [], "ofport": [ofport]}
    return port_row(interface(name, **base | columns), name=name, **VLAN)


def patch(name: str, peer: str, ofport: int) -> Any:
    return port(name, ofport, type="patch", options={"peer": peer})


class Host:
    """br-int with guests, the second bridge, and the reader of both."""

    def __init__(self, guests: int = 3, *others: Any, **columns: Any) -> None:
        self.near = patch("int-br-meta", "phy-br-meta", 5)
        self.far = patch("phy-br-meta", "int-br-meta", 6)
        macs = {"mac": [NAMES.mac], "mac_in_use": [NAMES.mac]}
        self.tap = port("tap-meta", 7, type="internal", **macs)
        self.guests = [
            port_row(interface(f"tap{n}", ofport=[100 + n]), name=f"tap{n}") for n in range(guests)
        ]
        self.home = bridge_row(*self.guests, self.near)
        base = {"external_ids": MARK, "fail_mode": ["secure"]}
        self.meta: Any = bridge_row(self.far, self.tap, *others, name="br-meta", **base | columns)
        self._reader = BridgeReader("br-int", "tap-metadata", NAMES)

    @property
    def bridges(self) -> list[BridgeRow]:
        """The rows of Bridge; a bridge that is None does not exist."""
        return [row for row in (self.home, self.meta) if row is not None]

    def read(self, changes: Any = None) -> tuple[MetaRows, int]:
        """The second bridge, and how many rows of Port were looked up."""
        database = idl(*self.bridges)
        rows = database.tables["Port"].rows = Counting(database.tables["Port"].rows)
        found = self._reader.read(database, changes).meta
        assert found is not None
        return found, rows.asked


def test_numbers_of_the_second_bridge_are_read() -> None:
    found, _asked = Host().read()
    assert found == MetaRows(
        datapath_id=0xAABBCCDDEEFF,
        tap=7,
        tap_mac=NAMES.mac,
        patch_int=5,
        patch_meta=6,
        sound=True,
    )


@pytest.mark.parametrize("guests", [3, 300])
def test_a_change_of_a_guest_costs_the_same_beside_any_number_of_others(guests: int) -> None:
    host = Host(guests)
    before, _asked = host.read()
    for changed in ([host.guests[0]], host.guests[0].interfaces, [host.near], [host.tap], []):
        found, asked = host.read(changed)
        assert found == before
        assert asked <= 1


def test_a_patch_port_that_goes_and_comes_is_noticed() -> None:
    host = Host()
    host.read()
    host.home.ports.remove(host.near)
    found, _asked = host.read([host.home, host.near, *host.near.interfaces])
    assert (found.patch_int, found.sound) == (None, False)
    again = patch("int-br-meta", "phy-br-meta", 9)
    again.uuid = "made again"
    host.home.ports.append(again)
    found, _asked = host.read([host.home, again, *again.interfaces])
    assert (found.patch_int, found.sound) == (9, True)


def test_a_bond_is_not_the_port_of_that_name() -> None:
    host = Host()
    host.tap.interfaces.append(interface("bonded"))
    found, _asked = host.read()
    assert (found.tap, found.tap_mac, found.sound) == (None, "", False)


@pytest.mark.parametrize("ofport", [[], [-1], [0]])
def test_ports_without_a_number_are_sound_and_have_none(ofport: list[int]) -> None:
    host = Host()
    for row in (host.tap, host.near, host.far):
        row.interfaces[0].ofport = ofport
    found, _asked = host.read()
    assert (found.tap, found.patch_int, found.patch_meta) == (None, None, None)
    assert found.sound


@pytest.mark.parametrize(
    ("own", "home", "sound"),
    [
        ("system", "", True),
        ("", "system", True),
        ("netdev", "netdev", True),
        ("", "netdev", False),
        ("netdev", "system", False),
    ],
)
def test_an_empty_datapath_type_is_the_kernels(own: str, home: str, sound: bool) -> None:
    host = Host(datapath_type=own)
    host.home.datapath_type = home
    assert host.read()[0].sound is sound


@pytest.mark.parametrize("fail_mode", [[], ["standalone"]])
def test_only_a_bridge_with_ports_of_others_may_have_any_fail_mode(fail_mode: list[str]) -> None:
    uplink = port("uplink", 8)
    assert not Host(fail_mode=fail_mode).read()[0].sound
    assert not Host(3, uplink, fail_mode=fail_mode).read()[0].sound, "the bridge is dfmeta's"
    assert not Host(fail_mode=fail_mode, external_ids={}).read()[0].sound
    assert Host(3, uplink, fail_mode=fail_mode, external_ids={}).read()[0].sound
