"""Ports that contend for an endpoint: in OVSDB, two rows may have the same number for a while.

The later row wins. When it is removed, the earlier row gets the endpoint again.

Trust: OVSDB's data, from the host itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dfmeta.model import Endpoint, Port, PortId


class Contenders:
    """Endpoint → the ports that have its number and its VLAN id, the latest last."""

    def __init__(self) -> None:
        self._ports: dict[Endpoint, dict[PortId, Port]] = {}
        self._tagged: dict[int, dict[Endpoint, None]] = {}
        """OpenFlow number → its endpoints that have a VLAN id."""

    def put(self, port: Port, endpoint: Endpoint) -> None:
        """Store a port, or update it."""
        self._ports.setdefault(endpoint, {})[port.id] = port
        if endpoint.vid:
            self._tagged.setdefault(endpoint.ofport, {})[endpoint] = None

    def remove(self, port: Port, endpoint: Endpoint) -> None:
        """Remove a port, if it is known."""
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
        """Return the latest port of *endpoint* for which *agrees* is true, or None."""
        return next(filter(agrees, reversed(self._ports.get(endpoint, {}).values())), None)

    def with_number(self, *ofports: int) -> list[Endpoint]:
        """Return the endpoints with those numbers: the untagged one of each, and those of VLANs."""
        found: list[Endpoint] = []
        for ofport in ofports:
            found += (Endpoint(ofport), *self._tagged.get(ofport, ()))
        return found

    def ids(self, ofport: int) -> list[PortId]:
        """Return the ports with that number, for all VLAN ids."""
        return [one for at in self.with_number(ofport) for one in self._ports.get(at, ())]

    def patches(self) -> set[int]:
        """Return the numbers that only patch ports have."""
        found: dict[bool, set[int]] = {False: set(), True: set()}
        for endpoint, ports in self._ports.items():
            for port in ports.values():
                found[port.patch].add(endpoint.ofport)
        return found[True] - found[False]

    def __iter__(self) -> Iterator[Port]:
        for ports in self._ports.values():
            yield from ports.values()
