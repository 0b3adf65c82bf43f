"""Refusals of Neutron, and which attachments work by the rows and entries of subports."""

from dfmeta.attach.drivers import neutron
from dfmeta.attach.drivers.wired import WiredState, claims_of
from dfmeta.errors import (
    AttachDriverError,
    AttachError,
    AttachNetworkError,
    AttachQuotaError,
    SourceError,
)
from dfmeta.ovsdb.rows import Interface
from dfmeta.ovsdb.subport_list import KEY, ListClaim
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE

SECRET = "port 5b7e94c9 of the network 066a2caf"


def test_a_refusal_is_about_one_attachment_or_the_whole_request() -> None:
    driver = AttachDriverError
    table: list[tuple[int, str, type[AttachError], str, bool]] = [
        (409, "SubPortMtuGreaterThanTrunkPortMtu", AttachNetworkError, "larger MTU", False),
        (409, "MacAddressInUse", AttachNetworkError, "the MAC is in use", False),
        (409, "OverQuota", AttachQuotaError, "quota of ports", False),
        (400, "InvalidIpForSubnet", AttachNetworkError, "not one of the network", False),
        (409, "PortInUse", driver, "refuses the port", False),
        (400, "", driver, "refuses the port", False),
        (404, "TrunkNotFound", driver, "no parent of a trunk", True),
        (409, "TrunkInErrorState", driver, "the status ERROR", True),
        (409, "TrunkDisabled", driver, "switched off", True),
        (0, "", driver, "Neutron does not answer", True),
        (500, "HTTPInternalServerError", driver, "Neutron does not answer", True),
        (401, "", driver, "refuses the account", True),
    ]
    for status, kind, made, cause, whole in table:
        failure = SourceError(source="neutron", cause=SECRET, status=status, kind=kind)
        error = neutron.refusal_of(failure)
        assert type(error) is made, kind
        assert cause in str(error.cause), kind
        assert bool(error.fields.get("whole")) is whole, kind
        assert SECRET not in error.line


OWN = ListClaim(100, INSTANCE, "p1")
STATE = WiredState(
    parents=frozenset({"trunk"}),
    marks={INSTANCE: "p1"},
    claims={
        "vm": [OWN, ListClaim(7, "", ""), ListClaim(0, "", ""), ListClaim(8, OTHER_INSTANCE, "p2")]
    },
)


def test_an_attachment_works_by_its_row_or_an_entry() -> None:
    for parent, attachment, port_id, vid, whole in (
        ("trunk", INSTANCE, "p1", 100, True),
        ("trunk", INSTANCE, "p9", 100, False),
        ("trunk", OTHER_INSTANCE, "p1", 100, False),
        ("vm", INSTANCE, "p1", 100, True),
        ("vm", INSTANCE, "p9", 100, False),
        ("vm", INSTANCE, "p1", 101, False),
        ("vm", INSTANCE, "p1", 7, True),
        ("vm", INSTANCE, "p2", 8, False),
        ("away", INSTANCE, "p1", 100, False),
    ):
        assert STATE.works(parent, attachment, port_id, vid) == whole, (parent, port_id, vid)


def test_entries_of_others_and_those_that_are_over() -> None:
    assert (STATE.others("vm"), STATE.others("trunk")) == ({7}, set())
    assert STATE.left({INSTANCE}) == {OTHER_INSTANCE: ("vm", 8)}
    assert STATE.left({INSTANCE, OTHER_INSTANCE}) == {}


def test_lists_are_those_of_vms_whose_tags_reach_the_bridge() -> None:
    listed = f'[{{"vid":100,"port_id":"{OTHER_INSTANCE}","attachment":"{INSTANCE}"}}]'

    def row(name: str, iface_id: str = "") -> Interface:
        ids = {"iface-id": iface_id or name, KEY: listed}
        return Interface(name, "br-int", external_ids=ids)

    ports = [row("tap1"), row("tpi-1"), row("tap3", iface_id=" ")]
    assert claims_of(ports) == {"tap1": [ListClaim(100, INSTANCE, OTHER_INSTANCE)]}
