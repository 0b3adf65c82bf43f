"""Ports that contend for an endpoint: OVSDB may give two rows one number for a while.

The later row wins, and the earlier one follows when the later one goes.

Trust: OVSDB's words, the host's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dfmeta.model import Endpoint, Port, PortId


class Contenders:
    """Endpoint → the ports that have its number and its VLAN id, the latest last."""

    def __init__(self) -> None:
        self._ports: dict[Endpoint, dict[PortId, Port]] = {}
        self._tagged: dict[int, dict[Endpoint, None]] = {}
        """Number → the endpoints that have it and a VLAN id."""

    def put(self, port: Port, endpoint: Endpoint) -> None:
        """Take in a port, or more that is known of it."""
        self._ports.setdefault(endpoint, {})[port.id] = port
        if endpoint.vid:
            self._tagged.setdefault(endpoint.ofport, {})[endpoint] = None

    def remove(self, port: Port, endpoint: Endpoint) -> None:
        """Forget a port, if it is known."""
        ports = self._ports.get(endpoint, {})
        ports.pop(port.id, None)
        if ports:
            return
        self._ports.pop(endpoint, None)
        tagged = self._tagged.get(endpoint.ofport, {})
        tagged.pop(endpoint, None)
        if not tagged:
            self._tagged.pop(endpoint.ofport, None)

    def latest(self, endpoint: Endpoint, agrees: Callable[[Port], bool]) -> Port | None:
        """The latest port of *endpoint* that *agrees* says yes to."""
        return next(filter(agrees, reversed(self._ports.get(endpoint, {}).values())), None)

    def with_number(self, *ofports: int) -> list[Endpoint]:
        """Endpoints that have those numbers: each number's untagged one and those of VLANs."""
        found: list[Endpoint] = []
        for ofport in ofports:
            found += (Endpoint(ofport), *self._tagged.get(ofport, ()))
        return found

    def ids(self, ofport: int) -> list[PortId]:
        """The ports that have that number, of all VLAN ids."""
        return [one for at in self.with_number(ofport) for one in self._ports.get(at, ())]

    def __iter__(self) -> Iterator[Port]:
        for ports in self._ports.values():
            yield from ports.values()
