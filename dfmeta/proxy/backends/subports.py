"""A backend that tells a VM its subports: it completes another backend's ``network_data.json``.

Trust: the VM is known by its port (``identity``), and the subports by the host's rows. A parent's
port whose instance a tenant has named counts only for the project that it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dfmeta import metrics
from dfmeta.identity.registry import Registry
from dfmeta.model import GuestRequest, Identity, Port, PortKind, View, is_unicast
from dfmeta.proxy.backend import Backend
from dfmeta.proxy.backends.network_data import Vlan, completed, is_file, whole

Subports = Callable[[Identity, float], Sequence[Vlan]]
"""Return the VLANs of a VM, within that deadline (monotonic seconds)."""


class Completing:
    """A backend whose ``network_data.json`` has the VM's subports; see
    :class:`~dfmeta.proxy.backend.Backend`.

    :param backend: answers all requests.
    :param subports: returns the VLANs of an instance.
    """

    def __init__(self, backend: Backend, subports: Subports) -> None:
        self.backend = backend
        self.name: metrics.Backend = backend.name
        self._subports = subports

    def open(
        self,
        request: GuestRequest,
        identity: Identity,
        *,
        deadline: float,
        goes_on: Callable[[str | None], bool],
    ) -> View:
        """See :class:`~dfmeta.proxy.backend.Backend`."""
        vlans: Sequence[Vlan] = ()
        if request.method in ("GET", "HEAD") and is_file(request.path):
            vlans = self._subports(identity, deadline)
        if not vlans:
            return self.backend.open(request, identity, deadline=deadline, goes_on=goes_on)
        view = self.backend.open(whole(request), identity, deadline=deadline, goes_on=goes_on)
        return View(view.http_tokens, lambda: completed(view.answer(), vlans, request))

    def remark(self, status: int) -> str:
        """See :class:`~dfmeta.proxy.backend.Backend`."""
        return self.backend.remark(status)


def of(registry: Registry, identity: Identity) -> list[Vlan]:
    """Return the VLANs of an instance: the subports of all its ports, with their MACs.

    A subport without a valid MAC or VLAN id is left out. So are attachments: cloud-init would make
    their devices at the VM's next boot, before the program that asked for them.
    """
    ports = registry.ports()
    macs = {one.name: one.mac for one in ports if _is_parent(one, identity)}
    if not macs:
        return []
    return [
        Vlan(macs[one.parent], one.segmentation_id, one.mac, one.mtu)
        for one in ports
        if one.parent in macs
        and one.kind is PortKind.SUBPORT
        and not one.attached
        and one.segmentation_id
        and is_unicast(one.mac)
    ]


def _is_parent(port: Port, identity: Identity) -> bool:
    return (
        port.instance_id == identity.instance_id
        and port.kind is PortKind.PARENT
        and not port.vid
        and bool(port.mac)
        and (not port.unverified or port.project_id == identity.project_id)
    )
