"""The stages between the identity sources and the registry: :class:`Subports`, :class:`Handover`.

Everything runs on the hub.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dfmeta import metrics
from dfmeta.model import Port, PortId, PortKind
from dfmeta.runtime import threads, throttle
from dfmeta.sources.resolution import bare
from dfmeta.sources.source import FIELDS, PROJECT

LOG = logging.getLogger(__name__)

PARENT: Final = "parent"
"""The source of a subport's values that are its parent's, in listings."""


class Subports:
    """Completes subports with values of their parents.

    ``own``: a subport has an instance of its own, or none, and the project of its parent if no
    source gives that of the instance. ``parent``: it has the instance of its parent, the VM.

    A subport that is unverified (:mod:`dfmeta.sources.source`) gets no project of its parent: the
    backend compares the project with that of the instance, which a tenant has named.

    :param deliver: called with each port, and again when its parent has changed.
    :param drop: called with the id of each removed port.
    :param independent: whether subports have instances of their own.
    """

    def __init__(
        self, deliver: Callable[[Port], None], drop: Callable[[PortId], None], *, independent: bool
    ) -> None:
        self._deliver, self._drop, self._independent = deliver, drop, independent
        self._ports: dict[PortId, Port] = {}
        self._parents: dict[str, Port] = {}
        """Name → the port of untagged frames, unless it is a subport."""
        self._children: dict[str, dict[PortId, None]] = {}
        """Name of a parent, known or not → its subports."""

    def put(self, port: Port) -> None:
        """Deliver a port that is new or has changed, and its subports."""
        before = self._ports.get(port.id)
        if before is not None:
            self._forget(before)
        self._ports[port.id] = port
        if port.kind is PortKind.SUBPORT:
            self._children.setdefault(port.parent, {})[port.id] = None
        elif _may_be_parent(port):
            self._parents[port.name] = port
        self._deliver(self._complete(port))
        for parent in dict.fromkeys(
            changed.name for changed in (before, port) if changed and _may_be_parent(changed)
        ):
            self._tell_children(parent)

    def forget(self, port_id: PortId) -> None:
        """Drop that port. Its subports stay, without its values."""
        port = self._ports.pop(port_id, None)
        if port is not None:
            self._forget(port)
        self._drop(port_id)
        if port is not None and _may_be_parent(port):
            self._tell_children(port.name)

    def _forget(self, port: Port) -> None:
        children = self._children.get(port.parent, {})
        children.pop(port.id, None)
        if not children:
            self._children.pop(port.parent, None)
        parent = self._parents.get(port.name)
        if parent is not None and parent.id == port.id:
            del self._parents[port.name]

    def _tell_children(self, parent: str) -> None:
        for child in list(self._children.get(parent, ())):
            self._deliver(self._complete(self._ports[child]))

    def _complete(self, port: Port) -> Port:
        if port.kind is not PortKind.SUBPORT or port.fault:
            return port
        parent = self._parents.get(port.parent)
        if self._independent:
            # The project of its port in Neutron is a guess, which comes later than the parent's.
            has_project = port.project_id and not port.sources.get(PROJECT, "").endswith("(port)")
            if parent is None or has_project or port.unverified or not parent.project_id:
                return port
            sources = {**port.sources, PROJECT: PARENT}
            return replace(port, project_id=parent.project_id, sources=sources)
        if parent is None:
            return replace(bare(port), unnamed=False)
        return replace(
            port,
            instance_id=parent.instance_id,
            project_id=parent.project_id,
            instance_name=parent.instance_name,
            unverified=parent.unverified,
            unnamed=False,
            sources={name: PARENT for name in FIELDS if getattr(parent, name)},
        )


def _may_be_parent(port: Port) -> bool:
    return port.kind is not PortKind.SUBPORT and not port.vid


class Handover:
    """Hands ports on to the registry, each apart from the others.

    A port that the registry does not take, because of a defect in dfmeta, is removed from it: its
    guest must not be served with the values of an earlier one. It is handed on again after
    :data:`LONGEST_PAUSE` seconds. Other ports do not notice.

    :param deliver: called with each port.
    :param drop: called with the id of each removed port. An error of it is not caught.
    """

    def __init__(self, deliver: Callable[[Port], None], drop: Callable[[PortId], None]) -> None:
        self._deliver, self._drop = deliver, drop
        self._refused: dict[PortId, Port] = {}

    def put(self, port: Port) -> None:
        """Hand on a port that is new or has changed."""
        self._refused.pop(port.id, None)
        try:
            self._deliver(port)
        except Exception:  # a defect, of any kind
            metrics.PORT_DEFECTS.inc()
            LOG.exception("Port %s cannot be served; retrying", port.name)
            self._drop(port.id)
            self._refused[port.id] = port
            threads.spawn_after(throttle.LONGEST_PAUSE, self._again, port)

    def forget(self, port_id: PortId) -> None:
        """Drop that port."""
        self._refused.pop(port_id, None)
        self._drop(port_id)

    def _again(self, port: Port) -> None:
        if self._refused.get(port.id) is port:
            self.put(port)
