"""Guests' ports should be told from all others, and an odd one should be shown, not served."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.model import OFPORT_MAX, Endpoint, MetaIds, Port, PortKind, PortState
from dfmeta.ovsdb.external_ids import META_KEYS, PROVIDER_IDS
from dfmeta.ovsdb.rows import Interface, read_interface
from dfmeta.ovsdb.trunks import Lead, side_of
from dfmeta.ovsdb.vif import vifs
from tests.core.unit.support import GUEST_MAC, INSTANCE, OTHER_INSTANCE, IdlRow
from tests.harness.examples import examples

NOVA = {
    "iface-id": "port-1",
    "iface-status": "active",
    "attached-mac": GUEST_MAC,
    "vm-uuid": INSTANCE,
}


def row(**columns: Any) -> Interface:
    of_port = {name: columns.pop(name, ()) for name in ("tag", "vlan_mode")}
    of_port["other_config"] = columns.pop("other_config", {})
    base = {"uuid": "row-1", "name": "tap1", "ofport": (5,), "external_ids": NOVA}
    return read_interface("br-int", IdlRow(**of_port), IdlRow(**base | columns))


def port_of(**columns: Any) -> Port:
    (port,) = vifs(row(**columns))
    return port


def ids(**changes: str | None) -> dict[str, str]:
    merged = NOVA | {name.replace("_", "-"): value for name, value in changes.items()}
    return {name: value for name, value in merged.items() if value is not None}


def test_os_vifs_port_is_served() -> None:
    port = port_of()
    assert port.state is PortState.SERVED
    assert port.endpoint == Endpoint(5)
    assert (port.name, port.row, port.iface_id) == ("tap1", "row-1", "port-1")
    assert (port.mac, port.instance_id, port.project_id) == (GUEST_MAC, INSTANCE, "")
    assert port.sources == {"instance_id": "ovsdb"}


def test_instance_is_of_vm_uuid_and_else_of_vm_id() -> None:
    assert port_of(external_ids=ids(vm_id=OTHER_INSTANCE)).instance_id == INSTANCE
    for empty in (None, " "):
        port = port_of(external_ids=ids(vm_uuid=empty, vm_id=INSTANCE))
        assert (port.instance_id, port.state) == (INSTANCE, PortState.SERVED)
    assert port_of(external_ids={"vm-id": INSTANCE}).state is PortState.SERVED


def test_instance_is_read_into_the_canonical_form() -> None:
    for written in (
        *(INSTANCE.upper(), f"{{{INSTANCE}}}", INSTANCE.replace("-", "")),
        f" {INSTANCE}\n",
    ):
        assert port_of(external_ids=ids(vm_uuid=written)).instance_id == INSTANCE, written


META = MetaIds("240.0.0.5", "fa:16:ee:00:00:05", "fd00:a9fe:a9fe:a9fe::5")
PROVIDER = {"provider_ip": " 240.0.7.7", "provider_mac": "fa:16:ee:12:34:56"}
"""Addresses of Neutron's metadata_path."""


def test_a_port_has_the_meta_addresses_of_its_row() -> None:
    written = NOVA | dict(zip(META_KEYS, META, strict=True))
    assert port_of(external_ids=written).meta == META
    assert port_of(external_ids=written, other_config=PROVIDER).meta == META
    assert port_of().meta == MetaIds()


@pytest.mark.parametrize("ip", ["", " "])
def test_without_a_meta_ip_of_dfmetas_own_that_of_metadata_path_counts(ip: str) -> None:
    written = NOVA | dict(zip(META_KEYS, META._replace(ip=ip), strict=True))
    meta = port_of(external_ids=written, other_config=PROVIDER).meta
    assert meta == MetaIds("240.0.7.7", "fa:16:ee:12:34:56", META.ip6)
    assert port_of(external_ids=written).meta == MetaIds(ip6=META.ip6)


def test_type_of_an_interface_decides_whether_a_guest_can_be_behind_it() -> None:
    for kind in ("patch", "vxlan", "gre", "geneve", "erspan", "bareudp", "dpdk"):
        assert vifs(row(type=kind)) == (), kind
    for kind in ("", "system", "tap", "internal", "dpdkvhostuserclient", "afxdp"):
        assert port_of(type=kind).state is PortState.SERVED, kind
    assert vifs(row(type="internal", external_ids=ids(vm_uuid=None))) == (), "an agent's"


@pytest.mark.parametrize(
    ("name", "kind"), [("tpi-0a1b2c3d-4e", PortKind.PARENT), ("spi-0a", PortKind.SUBPORT)]
)
def test_a_trunks_patch_port_is_a_guests(name: str, kind: PortKind) -> None:
    patch = replace(row(type="patch", external_ids=ids(vm_uuid=None)), name=name)
    (port,) = vifs(patch)
    assert (port.state, port.endpoint, port.kind) == (PortState.NO_INSTANCE, Endpoint(5), kind)
    assert port.patch
    (long,) = vifs(replace(patch, name=f"{name:16s}"))
    assert not long.patch, "OpenFlow has no room for its name"
    assert vifs(replace(patch, external_ids={})) == ()
    assert vifs(replace(patch, name="int-br-ex")) == ()
    (ordinary,) = vifs(replace(row(), name=name))
    assert ordinary.kind is PortKind.PORT, "the name alone makes no trunk"
    assert not ordinary.patch


def test_an_instance_of_a_subport_is_of_no_other_port() -> None:
    assert port_of(external_ids=ids(vm_uuid=None, dfmeta_instance=INSTANCE)).instance_id == ""
    assert port_of(external_ids=ids(dfmeta_instance=OTHER_INSTANCE)).instance_id == INSTANCE


def test_a_devices_mac_is_of_use_where_its_name_is_too_long_for_openflow() -> None:
    assert port_of(mac_in_use=("02:00:00:00:00:AB",)).device_mac == ""
    (long,) = vifs(replace(row(mac_in_use=("02:00:00:00:00:AB",)), name="vhost-user-of-a-guest"))
    assert long.device_mac == "02:00:00:00:00:ab"


def test_uplink_or_port_of_the_host_is_no_guests() -> None:
    for external_ids in (
        {},
        {"iface-id": "port-1"},
        {"attached-mac": GUEST_MAC},
        {"iface-id": "", "attached-mac": GUEST_MAC},
        {"skip_cleanup": "true"},
    ):
        assert vifs(row(external_ids=external_ids)) == (), external_ids


def test_dead_port_is_not_served_and_an_isolated_one_is() -> None:
    for tag, vlan_mode, state in (
        ((), (), PortState.SERVED),
        ((5,), (), PortState.SERVED),
        ((4095,), (), PortState.DEAD),
        ((4095,), ("access",), PortState.DEAD),
        ((4095,), ("trunk",), PortState.SERVED),
    ):
        assert port_of(tag=tag, vlan_mode=vlan_mode).state is state, (tag, vlan_mode)


def test_port_without_a_usable_number_has_no_endpoint() -> None:
    for ofport in ((), (-1,), (0,), (65534,), (OFPORT_MAX + 1,)):
        port = port_of(ofport=ofport)
        assert (port.state, port.endpoint) == (PortState.NO_OFPORT, None), ofport


def test_instance_that_is_no_uuid_is_a_fault_that_names_it() -> None:
    for written in ("web-1", "0", INSTANCE + "0", "ü", "\0"):
        port = port_of(external_ids=ids(vm_uuid=written))
        assert (port.state, port.endpoint, port.instance_id) == (PortState.BROKEN, None, "")
        assert repr(written) in port.fault


@settings(deadline=None, max_examples=examples(33))
@given(
    st.dictionaries(
        st.sampled_from([*NOVA, "vm-id", "project-id", *META_KEYS]), st.text(max_size=40)
    ),
    st.dictionaries(st.sampled_from(PROVIDER_IDS), st.text(max_size=40)),
    st.lists(st.integers(-1, 70000), max_size=1),
    st.lists(st.integers(0, 4095), max_size=1),
    st.lists(st.sampled_from(["trunk", "access"]), max_size=1),
)
def test_any_row_is_a_guests_port_or_none(
    external_ids: dict[str, str],
    other_config: dict[str, str],
    ofport: list[int],
    tag: list[int],
    vlan_mode: list[str],
) -> None:
    columns: dict[str, Any] = {"external_ids": external_ids, "other_config": other_config}
    columns |= {"ofport": ofport, "tag": tag, "vlan_mode": vlan_mode}
    ports = (*vifs(row(**columns)), *vifs(replace(row(type="patch", **columns), name="spi-1")))
    for port in ports:
        if port.state is PortState.SERVED:
            assert port.endpoint is not None
            assert len(port.instance_id) == 36


KEY = "dfmeta-attachments"
SUBPORT_IDS = ids(vm_uuid=None)


def test_key_of_a_tap_allows_attachments_only_if_it_is_true() -> None:
    before = port_of()
    for value, allowed in (("true", True), (" true ", True), ("True", False), ("", False)):
        port = port_of(external_ids=NOVA | {KEY: value})
        assert port.attachments == allowed, value
        # It does not concern the guest's identity.
        assert before.with_notes_of(port) == port


def test_a_trunks_parent_has_the_key_of_its_own_row_or_of_the_tap() -> None:
    row = Interface("tpi-1", "br-int", type="patch", external_ids=SUBPORT_IDS)
    tap = side_of(Interface("tap1", "tbr", external_ids={**NOVA, KEY: "true"}))
    plain = side_of(Interface("tap1", "tbr", external_ids=NOVA))
    assert vifs(row, Lead(vm=tap))[0].attachments
    assert not vifs(row, Lead(vm=plain))[0].attachments
    parent = Interface("tpi-1", "br-int", type="patch", external_ids={**SUBPORT_IDS, KEY: "true"})
    assert vifs(parent, Lead(vm=plain))[0].attachments


def test_a_subport_never_has_it() -> None:
    row = Interface("spi-1", "br-int", type="patch", external_ids={**SUBPORT_IDS, KEY: "true"})
    assert not any(port.attachments for port in vifs(row, Lead(vid=7)))


def test_the_subport_of_an_attachment_is_known_by_its_row() -> None:
    written = {**SUBPORT_IDS, "dfmeta-attachment": "a"}
    (plain,) = vifs(
        Interface("spi-1", "br-int", type="patch", external_ids=SUBPORT_IDS), Lead(vid=7)
    )
    (subport,) = vifs(Interface("spi-1", "br-int", type="patch", external_ids=written), Lead(vid=7))
    assert (plain.attached, subport.attached) == ("", "a")
    # It does not concern the guest's identity.
    assert plain.with_notes_of(subport) == subport
    # A VM with such a key stays a VM.
    (vm,) = vifs(Interface("tap1", "br-int", external_ids={**NOVA, "dfmeta-attachment": "a"}))
    assert not vm.attached


def test_the_subport_of_an_attachment_is_known_by_its_entry() -> None:
    """Where tags reach the bridge it has no row."""
    attachment = "22222222-3333-4444-5555-666666666666"
    listed = json.dumps([{"vid": 7, "attachment": attachment}, {"vid": 8}])
    written = {**NOVA, "dfmeta-subports": listed}
    attached = {
        port.vid: port.attached for port in vifs(Interface("tap1", "br-int", external_ids=written))
    }
    assert attached == {0: "", 7: attachment, 8: ""}
