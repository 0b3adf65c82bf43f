"""Decides which VMs get attachments, and on which networks. Pure.

Trust: ports come from the registry, ids from the operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dfmeta.model import Port, PortKind


@dataclass(frozen=True, slots=True)
class Access:
    """Ids of instances and projects that get attachments, in lower case."""

    default: frozenset[str] = frozenset()
    """For the networks without a list of their own. A VM whose row in OVSDB allows it
    (:attr:`~dfmeta.model.Port.attachments`) has these networks as well."""
    networks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Network with a list of its own → that list, which counts alone."""

    def allows(self, port: Port) -> bool:
        """Return whether the VM at *port* gets attachments on any network."""
        if not _is_vm(port):
            return False
        return port.attachments or _names(port, self.default.union(*self.networks.values()))

    def opens(self, port: Port, network: str) -> bool:
        """Return whether the VM at *port* gets attachments on that network."""
        if not _is_vm(port):
            return False
        if network in self.networks:
            return _names(port, self.networks[network])
        return port.attachments or _names(port, self.default)


def _is_vm(port: Port) -> bool:
    """Return whether it is the untagged port of a VM: a container never gets attachments."""
    return bool(
        port.kind is not PortKind.SUBPORT and not port.vid and port.iface_id and port.instance_id
    )


def _names(port: Port, ids: frozenset[str]) -> bool:
    """Return whether *ids* has the instance or the project of *port*.

    An instance or project that a tenant may have named does not count
    (:attr:`~dfmeta.model.Port.unverified`).
    """
    owners = {port.instance_id.lower(), port.project_id.lower()}
    return not port.unverified and not owners.isdisjoint(ids)
