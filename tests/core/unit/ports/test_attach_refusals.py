"""A refusal of Neutron should become the error that a VM can act on."""

from __future__ import annotations

import pytest

from dfmeta.exceptions import (
    AttachDriverError,
    AttachError,
    AttachNetworkError,
    AttachQuotaError,
    SourceError,
)
from dfmeta.ports import attach_refusals as refusals

SECRET = "port 5b7e94c9 of the network 066a2caf"


def refused(status: int, kind: str = "") -> SourceError:
    return SourceError(source="neutron", cause=SECRET, status=status, kind=kind)


@pytest.mark.parametrize(
    ("status", "kind", "made", "cause"),
    [
        (409, "SubPortMtuGreaterThanTrunkPortMtu", AttachNetworkError, "larger MTU"),
        (409, "MacAddressInUse", AttachNetworkError, "the MAC is in use"),
        (409, "OverQuota", AttachQuotaError, "quota of ports"),
        (400, "InvalidIpForSubnet", AttachNetworkError, "not one of the network"),
        (409, "PortInUse", AttachDriverError, "refuses the port"),
        (404, "SecurityGroupNotFound", AttachDriverError, "refuses the port"),
        (400, "", AttachDriverError, "refuses the port"),
    ],
)
def test_it_is_about_one_attachment(
    status: int, kind: str, made: type[AttachError], cause: str
) -> None:
    error = refusals.of(refused(status, kind))
    assert type(error) is made
    assert cause in str(error.cause)
    assert not error.fields.get("whole")
    assert SECRET not in error.line


@pytest.mark.parametrize(
    ("status", "kind", "cause"),
    [
        (404, "TrunkNotFound", "no parent of a trunk"),
        (409, "TrunkInErrorState", "the status ERROR"),
        (409, "TrunkDisabled", "switched off"),
        (0, "", "Neutron does not answer"),
        (500, "HTTPInternalServerError", "Neutron does not answer"),
        (503, "", "Neutron does not answer"),
        (401, "", "refuses the account"),
        (403, "PolicyNotAuthorized", "refuses the account"),
    ],
)
def test_it_is_about_all_attachments_of_the_request(status: int, kind: str, cause: str) -> None:
    error = refusals.of(refused(status, kind))
    assert type(error) is AttachDriverError
    assert cause in str(error.cause)
    assert error.fields["whole"]
    assert SECRET not in error.line


def test_an_error_without_a_status_is_no_answer() -> None:
    error = refusals.of(SourceError(source="neutron", cause="no list of ports"))
    assert (error.cause, error.status) == ("Neutron does not answer", 503)


def test_a_value_of_others_is_named() -> None:
    error = refusals.taken("the VLAN id 7")
    assert (error.cause, error.fields["taken"]) == ("the VLAN id 7 is in use in Neutron", True)
