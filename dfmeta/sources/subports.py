"""Completes subports with values of their parents, after the identity sources.

``own``: a subport has an instance of its own, or none, and the project of its parent if no source
gives that of the instance. ``parent``: it has the instance of its parent, the VM.

A subport that is unverified (:mod:`dfmeta.sources.source`) gets no project of its parent: the
backend compares the project with that of the instance, which a tenant has named.

Everything runs on the hub.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dfmeta.model import Port, PortId, PortKind
from dfmeta.sources.resolution import bare
from dfmeta.sources.source import FIELDS, PROJECT

PARENT: Final = "parent"
"""The source of a subport's values that are its parent's, in listings."""


class Subports:
    """A stage between the identity sources and the registry.

    :param deliver: called with each port, and again when its parent has changed.
    :param drop: called with the id of each removed port.
    :param own: whether subports have instances of their own.
    """

    def __init__(
        self, deliver: Callable[[Port], None], drop: Callable[[PortId], None], *, own: bool
    ) -> None:
        self._deliver, self._drop, self._own = deliver, drop, own
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
            one.name for one in (before, port) if one and _may_be_parent(one)
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
        there = self._children.get(port.parent, {})
        there.pop(port.id, None)
        if not there:
            self._children.pop(port.parent, None)
        mine = self._parents.get(port.name)
        if mine is not None and mine.id == port.id:
            del self._parents[port.name]

    def _tell_children(self, parent: str) -> None:
        for one in list(self._children.get(parent, ())):
            self._deliver(self._complete(self._ports[one]))

    def _complete(self, port: Port) -> Port:
        if port.kind is not PortKind.SUBPORT or port.fault:
            return port
        parent = self._parents.get(port.parent)
        if self._own:
            # The project of its port in Neutron is a guess, which comes later than the parent's.
            known = port.project_id and not port.sources.get(PROJECT, "").endswith("(port)")
            if parent is None or known or port.unverified or not parent.project_id:
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
