"""Reads from the switch itself which OpenFlow number each port has.

Flows match numbers, and OVSDB reports the new port of a number later than the switch has it. So a
port is not served when the switch contradicts its number in the registry, nor when the device at
its number has changed and OVSDB has not confirmed it.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta import errors, metrics, model
from dfmeta.apps.channel import Channel
from dfmeta.flows.port_down import PortBits
from dfmeta.identity.numbering import SwitchDevice
from dfmeta.identity.registry import Registry
from dfmeta.runtime import clock
from dfmeta.runtime.clock import ANSWER_TIMEOUT

LOG = logging.getLogger(__name__)


class Numbers:
    """Gives the switch's list of ports to the registry, and keeps the bits of each port.

    :param clock: monotonic seconds.
    """

    def __init__(
        self, channel: Channel, registry: Registry, *, clock: Callable[[], float] = clock.now
    ) -> None:
        self._channel = channel
        self._registry = registry
        self._parts: dict[int, tuple[SwitchDevice, PortBits]] = {}
        self._bits: dict[int, PortBits] = {}
        self._clock = clock
        self._doubted: dict[model.PortId, float] = {}
        """Port whose number was in doubt at the last list → time of the first such list."""
        self._heard: Any = None
        """Connection of the last list: since then, only changes on this one were received."""

    def ask(self) -> bool:
        """Have the switch list its ports, before flows are compared; False when that failed."""
        self._parts = {}
        try:
            request = self._channel.wire.list_ports()
            self._channel.request(request, "the list of ports").wait()
        except errors.DfmetaError as error:
            if not isinstance(error, errors.NotConnectedError):  # logged where it is noticed
                LOG.warning("Cannot read the numbers of the ports: %s", error)
            metrics.RECONCILES.labels("failed").inc()
            return False
        for port, name in self._registry.misnamed():
            LOG.info(
                "Port %s is not served: on the switch its number %s belongs to %s",
                port.name,
                port.ofport,
                name.decode(errors="replace"),
            )
        self._log_doubted()
        return True

    def _log_doubted(self) -> None:
        """Log the ports that wait for OVSDB for longer than its answer takes on a busy host."""
        doubted, now = self._registry.doubted(), self._clock()
        for port in doubted:
            if now - self._doubted.get(port.id, now) >= ANSWER_TIMEOUT:
                LOG.warning(
                    "Port %s is not served: its number %s was reassigned, and OVSDB does not yet "
                    "show to which port. Check that ovsdb-server answers",
                    port.name,
                    port.ofport,
                )
        self._doubted = {port.id: self._doubted.get(port.id, now) for port in doubted}

    def listed(self, datapath: Any, xid: int, ports: Iterable[Any], *, more: bool) -> None:
        """Take a part of the list. The switch sends all parts before it reports a change."""
        if not self._channel.uses(datapath):
            return
        self._parts.update((port.port_no, (_device(port), PortBits.of(port))) for port in ports)
        if not more:
            parts, self._parts = self._parts, {}
            gap, self._heard = datapath is not self._heard, datapath
            self._bits = {number: bits for number, (_, bits) in parts.items()}
            self._registry.set_devices({n: device for n, (device, _) in parts.items()}, gap=gap)
        self._channel.multipart_reply(xid, (), more=more)

    def changed(self, datapath: Any, reason: int, port: Any) -> None:
        """Take the addition, change or removal of a port."""
        if not self._channel.uses(datapath):
            return
        if reason != ofp.OFPPR_MODIFY:
            self._bits.pop(port.port_no, None)
            self._registry.set_device(port.port_no, None)
        if reason != ofp.OFPPR_DELETE:
            self._bits[port.port_no] = PortBits.of(port)
            self._registry.set_device(port.port_no, _device(port))

    def bits(self, ofport: int) -> PortBits | None:
        """Return the bits of the port with that number, from the switch's latest report."""
        return self._bits.get(ofport)

    def answered(self, question: int) -> None:
        """Note that OVSDB has answered the registry's question *question*, with one echo."""
        metrics.OVSDB_ECHOES.inc()
        self._registry.answered(question)


def _device(port: Any) -> SwitchDevice:
    return SwitchDevice(port.name, port.hw_addr)
