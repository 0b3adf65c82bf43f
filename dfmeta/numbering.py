"""Which device has which number on the bridge: the switch's word, beside OVSDB's.

OVSDB says later than the switch that a port is gone, and a name does not tell two ports apart that
have it one after the other. So a number is in doubt from each change of its device until OVSDB has
answered a question that was asked after it. OVSDB answers in order, and a row is deleted before
the switch lets go of its device: what was deleted has been read by then. A row that is still there
is right.

Trust: the switch's and OVSDB's words, both the host's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from dfmeta.model import Port

WIRE_NAME_MAX = 15
"""Bytes of a device's name that OpenFlow has room for (OFP_MAX_PORT_NAME_LEN, 1.3.5, 7.2.1)."""


class Device(NamedTuple):
    """A device as OpenFlow describes it (OpenFlow 1.3.5, 7.2.1)."""

    name: bytes
    """Cut to :data:`WIRE_NAME_MAX` bytes."""
    mac: str = ""
    """Of the device itself, in lower case with colons; not the guest's."""


class Numbering:
    """Devices by their numbers, and which of the numbers are in doubt.

    :param ask: asks OVSDB a question and gives its number at once: they count up from 1, and the
        answer comes by :meth:`answered`. 0: what OVSDB says is never late.
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._devices: dict[int, Device] = {}
        self._doubts: dict[int, int] = {}
        """Number → the question that has to be answered."""
        self._answered = 0

    def put(self, ofport: int, device: Device | None) -> bool:
        """Take in which device has the number now; None: no device. False: that was known."""
        before = self._devices.get(ofport)
        if before == device:
            return False
        if device is None:
            del self._devices[ofport]
        else:
            self._devices[ofport] = device
        self._doubt((ofport,))
        return True

    def put_all(self, devices: Mapping[int, Device], *, gap: bool) -> dict[int, bool]:
        """Take in the devices of all numbers.

        :param gap: the switch may have changed devices unheard since the last time. Then every
            number is in doubt, also that of a device which looks the same.
        :return: numbers that have changed, and whether another device had them or may have had.
        """
        before, self._devices = self._devices, dict(devices)
        numbers = devices.keys() | before.keys()
        changed = {n: n in before or not gap for n in numbers if devices.get(n) != before.get(n)}
        self._doubt(numbers if gap else changed)
        return changed

    def answered(self, question: int) -> list[int]:
        """Take in that OVSDB has answered *question* and all before it.

        :return: numbers that are in doubt no more.
        """
        self._answered = max(self._answered, question)
        certain = [n for n, asked in self._doubts.items() if asked <= self._answered]
        for ofport in certain:
            del self._doubts[ofport]
        return certain

    def certain(self, ofport: int) -> bool:
        """Whether OVSDB's word about that number counts."""
        return ofport not in self._doubts

    def doubted(self) -> Collection[int]:
        """Numbers that are in doubt."""
        return self._doubts.keys()

    def name(self, ofport: int) -> bytes:
        """Name of the device that has the number, as far as it is known."""
        device = self._devices.get(ofport)
        return device.name if device is not None else b""

    def agrees(self, port: Port) -> bool:
        """Whether the switch does not say that the port's number is another device's.

        Of a name that does not fit into OpenFlow, the device's MAC has to agree as well.
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
