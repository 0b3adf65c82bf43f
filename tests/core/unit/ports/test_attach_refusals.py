"""A refusal of Neutron should become the error that a VM can act on."""

from __future__ import annotations

from dfmeta.exceptions import (
    AttachDriverError,
    AttachError,
    AttachNetworkError,
    AttachQuotaError,
    SourceError,
)
from dfmeta.ports import attach_refusals as refusals

SECRET = "port 5b7e94c9 of the network 066a2caf"


def test_a_refusal_is_about_one_attachment_or_the_whole_request() -> None:
    driver = AttachDriverError
    table: list[tuple[int, str, type[AttachError], str, bool]] = [
        (409, "SubPortMtuGreaterThanTrunkPortMtu", AttachNetworkError, "larger MTU", False),
        (409, "MacAddressInUse", AttachNetworkError, "the MAC is in use", False),
        (409, "OverQuota", AttachQuotaError, "quota of ports", False),
        (400, "InvalidIpForSubnet", AttachNetworkError, "not one of the network", False),
        (409, "PortInUse", driver, "refuses the port", False),
        (404, "SecurityGroupNotFound", driver, "refuses the port", False),
        (400, "", driver, "refuses the port", False),
        (404, "TrunkNotFound", driver, "no parent of a trunk", True),
        (409, "TrunkInErrorState", driver, "the status ERROR", True),
        (409, "TrunkDisabled", driver, "switched off", True),
        (0, "", driver, "Neutron does not answer", True),
        (500, "HTTPInternalServerError", driver, "Neutron does not answer", True),
        (503, "", driver, "Neutron does not answer", True),
        (401, "", driver, "refuses the account", True),
        (403, "PolicyNotAuthorized", driver, "refuses the account", True),
    ]
    for status, kind, made, cause, whole in table:
        failure = SourceError(source="neutron", cause=SECRET, status=status, kind=kind)
        error = refusals.of(failure)
        assert type(error) is made, kind
        assert cause in str(error.cause), kind
        assert bool(error.fields.get("whole")) is whole, kind
        assert SECRET not in error.line


def test_an_error_without_a_status_is_no_answer() -> None:
    error = refusals.of(SourceError(source="neutron", cause="no list of ports"))
    assert (error.cause, error.status) == ("Neutron does not answer", 503)


def test_a_value_of_others_is_named() -> None:
    error = refusals.taken("the VLAN id 7")
    assert (error.cause, error.fields["taken"]) == ("the VLAN id 7 is in use in Neutron", True)
