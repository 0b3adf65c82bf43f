"""OpenFlow numbers of devices on the bridge, as the switch reports them, compared with OVSDB.

OVSDB reports the removal of a port later than the switch does, and a name does not distinguish two
ports that have it one after the other. So a number is in doubt from each change of its device until
OVSDB has answered an echo request that was sent after the change. OVSDB answers in order, and a row
is deleted before the switch releases its device. So at the answer, dfmeta has read all these
deletions, and a row that still exists is valid.

Trust: the data of the switch and of OVSDB, both from the host itself.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from dfmeta.model import Endpoint, Port, PortId

WIRE_NAME_MAX = 15
"""Bytes of a device's name that OpenFlow has room for (OFP_MAX_PORT_NAME_LEN, 1.3.5, 7.2.1)."""


class SwitchDevice(NamedTuple):
    """A device as OpenFlow describes it (OpenFlow 1.3.5, 7.2.1)."""

    name: bytes
    """Name of the device, cut to :data:`WIRE_NAME_MAX` bytes."""
    mac: str = ""
    """MAC of the device itself, in lower case with colons; not the guest's."""


class Numbering:
    """Devices by their numbers, and the numbers that are in doubt.

    :param ask: sends OVSDB an echo request and returns its number at once; the numbers count up
        from 1. :meth:`answered` receives the answer. A return of 0 means that OVSDB's reports are
        never late.
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._devices: dict[int, SwitchDevice] = {}
        self._doubts: dict[int, int] = {}
        """OpenFlow number → echo request that OVSDB has to answer."""
        self._answered = 0

    def put(self, ofport: int, device: SwitchDevice | None) -> bool:
        """Store the device that has the number now; None: no device. Return whether it changed."""
        before = self._devices.get(ofport)
        if before == device:
            return False
        if device is None:
            del self._devices[ofport]
        else:
            self._devices[ofport] = device
        self._doubt((ofport,))
        return True

    def put_all(
        self, devices: Mapping[int, SwitchDevice], *, gap: bool, patches: Collection[int] = ()
    ) -> dict[int, bool]:
        """Store the devices of all numbers.

        :param gap: changes since the last call may have been missed. Then every number is in doubt,
            even if its device looks the same.
        :param patches: numbers of patch ports. After a gap, which a start of Open vSwitch is,
            another MAC does not show another port: the name does, and OVSDB's answer.
        :return: numbers that have changed, and whether another device had them or may have had.
        """
        before, self._devices = self._devices, dict(devices)
        numbers = devices.keys() | before.keys()
        changed = {n: n in before or not gap for n in numbers if devices.get(n) != before.get(n)}
        if gap:
            for n in changed.keys() & patches & devices.keys() & before.keys():
                if devices[n].name == before[n].name:
                    del changed[n]
        self._doubt(numbers if gap else changed)
        return changed

    def answered(self, question: int) -> list[int]:
        """Note that OVSDB has answered *question* and all earlier ones.

        :return: numbers that are no longer in doubt.
        """
        self._answered = max(self._answered, question)
        certain = [n for n, echo in self._doubts.items() if echo <= self._answered]
        for ofport in certain:
            del self._doubts[ofport]
        return certain

    def certain(self, ofport: int) -> bool:
        """Return whether the number is not in doubt."""
        return ofport not in self._doubts

    def doubted(self) -> Collection[int]:
        """Return the numbers that are in doubt."""
        return self._doubts.keys()

    def name(self, ofport: int) -> bytes:
        """Return the name of the device that has the number; empty if it is not known."""
        device = self._devices.get(ofport)
        return device.name if device is not None else b""

    def agrees(self, port: Port) -> bool:
        """Return False if the switch reports another device at the port's number, else True.

        For a name that is too long for OpenFlow, the device's MAC must agree as well.
        """
        device = self._devices.get(port.ofport) if port.ofport is not None else None
        if device is None:
            return True
        name = port.name.encode()
        if device.name != name[:WIRE_NAME_MAX]:
            return False
        return len(name) <= WIRE_NAME_MAX or device.mac == port.device_mac

    def _doubt(self, numbers: Collection[int]) -> None:
        if not numbers:
            return
        question = self._ask()
        if question > self._answered:
            self._doubts.update(dict.fromkeys(numbers, question))


class OfportClaims:
    """Endpoint → the ports that have its number and its VLAN id, the latest last."""

    def __init__(self) -> None:
        self._ports: dict[Endpoint, dict[PortId, None]] = {}
        self._tagged: dict[int, dict[Endpoint, None]] = {}
        """OpenFlow number → its endpoints that have a VLAN id."""

    def put(self, port_id: PortId, endpoint: Endpoint) -> None:
        """Store a port."""
        self._ports.setdefault(endpoint, {})[port_id] = None
        if endpoint.vid:
            self._tagged.setdefault(endpoint.ofport, {})[endpoint] = None

    def remove(self, port_id: PortId, endpoint: Endpoint) -> None:
        """Remove a port, if it is known."""
        ports = self._ports.get(endpoint, {})
        ports.pop(port_id, None)
        if ports:
            return
        self._ports.pop(endpoint, None)
        tagged = self._tagged.get(endpoint.ofport, {})
        tagged.pop(endpoint, None)
        if not tagged:
            self._tagged.pop(endpoint.ofport, None)

    def at(self, endpoint: Endpoint) -> Iterator[PortId]:
        """Yield the ports of *endpoint*, the latest first."""
        yield from reversed(self._ports.get(endpoint, {}))

    def with_number(self, *ofports: int) -> list[Endpoint]:
        """Return the endpoints with those numbers: the untagged one of each, and those of VLANs."""
        endpoints: list[Endpoint] = []
        for ofport in ofports:
            endpoints += (Endpoint(ofport), *self._tagged.get(ofport, ()))
        return endpoints

    def __iter__(self) -> Iterator[tuple[int, PortId]]:
        """Yield each port with its OpenFlow number."""
        for endpoint, ports in self._ports.items():
            for port_id in ports:
                yield endpoint.ofport, port_id
