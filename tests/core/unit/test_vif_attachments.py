"""The row of a VM's interface should allow it to make attachments, and that of a container not."""

from __future__ import annotations

import json

import pytest

from dfmeta.ports.trunks import Lead, side_of
from dfmeta.ports.vif import InterfaceRow, vifs

KEY = "dfmeta-attachments"
IDS = {"iface-id": "p", "attached-mac": "fa:16:3e:00:00:01"}
VM = {**IDS, "vm-uuid": "11111111-2222-3333-4444-555555555555"}


@pytest.mark.parametrize(
    ("value", "allowed"), [("true", True), (" true ", True), ("True", False), ("", False)]
)
def test_the_key_of_a_tap_counts_only_if_it_is_true(value: str, *, allowed: bool) -> None:
    (port,) = vifs(InterfaceRow("u", "tap1", external_ids={**VM, KEY: value}))
    assert port.attachments == allowed
    (before,) = vifs(InterfaceRow("u", "tap1", external_ids=VM))
    # It does not concern the guest's identity.
    assert before.with_notes_of(port) == port


def test_a_trunks_parent_has_the_key_of_its_own_row_or_of_the_tap() -> None:
    row = InterfaceRow("u", "tpi-1", type="patch", external_ids=IDS)
    tap = side_of("tap1", "tbr", "", options={}, external_ids={**VM, KEY: "true"}, tag=())
    plain = side_of("tap1", "tbr", "", options={}, external_ids=VM, tag=())
    assert vifs(row, Lead(vm=tap))[0].attachments
    assert not vifs(row, Lead(vm=plain))[0].attachments
    own = InterfaceRow("u", "tpi-1", type="patch", external_ids={**IDS, KEY: "true"})
    assert vifs(own, Lead(vm=plain))[0].attachments


def test_a_subport_never_has_it() -> None:
    row = InterfaceRow("u", "spi-1", type="patch", external_ids={**IDS, KEY: "true"})
    assert not any(port.attachments for port in vifs(row, Lead(vid=7)))


def test_the_subport_of_an_attachment_is_known_by_its_row() -> None:
    ids = {**IDS, "dfmeta-attachment": "a"}
    (plain,) = vifs(InterfaceRow("u", "spi-1", type="patch", external_ids=IDS), Lead(vid=7))
    (ours,) = vifs(InterfaceRow("u", "spi-1", type="patch", external_ids=ids), Lead(vid=7))
    assert (plain.attached, ours.attached) == ("", "a")
    # It does not concern the guest's identity.
    assert plain.with_notes_of(ours) == ours
    # A VM with such a key stays a VM.
    (vm,) = vifs(InterfaceRow("u", "tap1", external_ids={**VM, "dfmeta-attachment": "a"}))
    assert not vm.attached


def test_the_subport_of_an_attachment_is_known_by_its_entry() -> None:
    """Where tags reach the bridge it has no row."""
    attachment = "22222222-3333-4444-5555-666666666666"
    listed = json.dumps([{"vid": 7, "attachment": attachment}, {"vid": 8}])
    ids = {**VM, "dfmeta-subports": listed}
    found = {one.vid: one.attached for one in vifs(InterfaceRow("u", "tap1", external_ids=ids))}
    assert found == {0: "", 7: attachment, 8: ""}
