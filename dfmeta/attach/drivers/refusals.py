"""Refusals of Neutron as errors of attachments. Pure.

Neutron's own message has ids and names that a VM must not see: it goes to the log, and the VM gets
a sentence of this module. The types are those of ``NeutronError.type`` in Neutron's answers
(neutron.services.trunk.exceptions, neutron_lib.exceptions, neutron.ipam.exceptions).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dfmeta.errors import (
    AttachDriverError,
    AttachError,
    AttachNetworkError,
    AttachQuotaError,
    SourceError,
)

NO_TRUNK: Final = "the VM's port is no parent of a trunk in Neutron"
BROKEN: Final = "the trunk of the VM's port has the status ERROR in Neutron"
DOWN: Final = "the trunk of the VM's port is switched off in Neutron"
ADDRESS_TYPES: Final = frozenset({"IpAddressAlreadyAllocated", "IpAddressInUse"})
"""Another port has the address."""
MAC_TYPES: Final = frozenset({"MacAddressInUse"})
"""Another port of the network has the MAC."""
_ABOUT_THE_TRUNK: Final[Mapping[str, str]] = {
    "TrunkNotFound": NO_TRUNK,
    "TrunkInErrorState": BROKEN,
    "TrunkDisabled": DOWN,
}
_ABOUT_THE_REQUEST: Final[Mapping[str, tuple[type[AttachError], str, str]]] = {
    "SubPortMtuGreaterThanTrunkPortMtu": (
        AttachNetworkError,
        "the network has a larger MTU than the VM's own network",
        "Ask for another network",
    ),
    "MacAddressInUse": (
        AttachNetworkError,
        "the MAC is in use on the network",
        "Ask for another, or for none",
    ),
    "OverQuota": (AttachQuotaError, "the project's quota of ports in Neutron is used up", ""),
    "InvalidIpForSubnet": (
        AttachNetworkError,
        "the address is not one of the network",
        "Ask for another, or for none",
    ),
}
_NOT_ALLOWED: Final = (401, 403)
_SERVER_ERROR: Final = 500


def of(error: SourceError) -> AttachError:
    """Return what a VM is told about a request that Neutron has not done.

    An error with the field ``whole`` is about all attachments of the request.
    """
    status, kind = error.fields.get("status", 0), str(error.fields.get("kind", ""))
    if kind in _ABOUT_THE_TRUNK:
        return AttachDriverError(cause=_ABOUT_THE_TRUNK[kind], whole=True)
    if kind in _ABOUT_THE_REQUEST:
        made, cause, remedy = _ABOUT_THE_REQUEST[kind]
        return made(cause=cause, remedy=remedy)
    if not isinstance(status, int) or not status or status >= _SERVER_ERROR:
        return AttachDriverError(cause="Neutron does not answer", whole=True)
    if status in _NOT_ALLOWED:
        return AttachDriverError(cause="Neutron refuses the account of the host", whole=True)
    return AttachDriverError(cause="Neutron refuses the port of the container")


def taken(text: str) -> AttachDriverError:
    """Return the error for a value that others use, so that the next one may be free.

    :param text: names the value.
    """
    return AttachDriverError(cause=f"{text} is in use in Neutron", taken=True)
