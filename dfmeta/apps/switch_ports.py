"""The ports as the switch itself describes them: their OpenFlow numbers, and whether frames pass.

Flows match numbers, and OVSDB reports the new port of a number later than the switch has it. So a
port is not served when the switch contradicts its number in the registry, nor when the device at
its number has changed and OVSDB has not confirmed it.

The same description shows why a port is cut off. Source: OpenFlow 1.3.5, 7.2.1, and its notation in
ovs-ofctl(8), mod-port. Open vSwitch sets ``PORT_DOWN`` and ``LINK_DOWN`` from the port's device; it
applies ``NO_RECV`` and ``NO_FWD`` itself, before any flow. ``NO_PACKET_IN`` affects only packets
that match no flow, and so none of dfmeta's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta import metrics
from dfmeta.apps.channel import Channel
from dfmeta.errors import DfmetaError, NotConnectedError
from dfmeta.identity.numbering import SwitchDevice
from dfmeta.identity.registry import Registry
from dfmeta.model import PortId
from dfmeta.runtime import clock

LOG = logging.getLogger(__name__)

SILENT: Final = 2.0
"""Seconds after which OVSDB counts as not answering which port has a number: two lists may follow
each other within milliseconds."""
PORT_DOWN: Final = 1 << 0
NO_RECV: Final = 1 << 2
NO_FWD: Final = 1 << 5
"""Bits of ``config``."""
LINK_DOWN: Final = 1 << 0
"""Bit of ``state``."""
_HIDDEN_MAC: Final = "00:00:00:00:00:00"


@dataclass(frozen=True, slots=True)
class PortBits:
    """Bits and MAC of a port in the switch's port description."""

    config: int = 0
    state: int = 0
    mac: str = ""
    """MAC of the device, with colons; all zeros if Open vSwitch cannot see the device."""

    @classmethod
    def of(cls, port: Any) -> PortBits:
        """Read os-ken's description of a port."""
        return cls(port.config, port.state, port.hw_addr)

    @property
    def hidden(self) -> bool:
        """Whether the bits of the device are meaningless.

        Open vSwitch reports a device as down after it was moved to another network namespace, as
        an internal port of a container is. Its frames still pass.
        """
        return self.mac == _HIDDEN_MAC and bool(self.config & PORT_DOWN)

    def of_switch(self) -> PortBits:
        """Return only the bits that the switch itself applies, without those of the device."""
        return replace(self, config=self.config & (NO_RECV | NO_FWD), state=0)


class Cut(NamedTuple):
    """Why a port's frames do not pass."""

    cause: str
    remedy: str
    """Text with at least one command between backticks."""

    def __str__(self) -> str:
        return f"{self.cause}: {self.remedy}"


def refused(cause: str, bridge: str) -> Cut:
    """Return the cut of a port whose flows the switch refuses, as a full table does.

    :param cause: the switch's error.
    """
    return Cut(
        f"the switch refuses flows of the port ({cause})",
        f"`ovs-vsctl get Bridge {bridge} flow_tables` and `ovs-vsctl list Flow_Table` show limits, "
        f"and `ovs-vsctl clear Bridge {bridge} flow_tables` ends them",
    )


def cut_of(bits: PortBits | None, name: str, *, bridge: str) -> Cut | None:
    """Return why the port *name* is cut off; None if no reason is known.

    :param bits: None if the switch has not described the port.
    """
    if bits is None or not (bits.config & (PORT_DOWN | NO_RECV | NO_FWD) or bits.state & LINK_DOWN):
        return None
    modify = f"ovs-ofctl -O OpenFlow13 mod-port {bridge} {name}"
    faults = []
    if bits.config & PORT_DOWN and not bits.hidden:
        faults.append(("its device is down", f"`{modify} up`, or `ip link set {name} up`"))
    elif bits.state & LINK_DOWN and not bits.hidden:
        faults.append(
            (
                "its device has no link: the guest is off, or its own interface is down",
                f"start the guest, or set its interface up inside it; `ip link show {name}`",
            )
        )
    if bits.config & NO_RECV:
        faults.append(("the switch accepts no frames from it (no-receive)", f"`{modify} receive`"))
    if bits.config & NO_FWD:
        faults.append(("the switch sends no frames to it (no-forward)", f"`{modify} forward`"))
    if not faults:
        return None
    causes, remedies = zip(*faults, strict=True)
    return Cut(", and ".join(causes), ", and ".join(remedies))


class Numbers:
    """Gives the switch's list of ports to the registry, and keeps the bits of each port.

    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        channel: Channel,
        registry: Registry,
        *,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._channel = channel
        self._registry = registry
        self._parts: dict[int, tuple[SwitchDevice, PortBits]] = {}
        self._bits: dict[int, PortBits] = {}
        self._clock = clock
        self._doubted: dict[PortId, float] = {}
        """Port whose number was in doubt at the last list → time of the first such list."""
        self._heard: Any = None
        """Connection of the last list: since then, only changes on this one were received."""

    def ask(self) -> bool:
        """Have the switch list its ports, before flows are compared; False when that failed."""
        self._parts = {}
        try:
            request = self._channel.wire.list_ports()
            self._channel.request(request, "the list of ports").wait()
        except DfmetaError as error:
            if not isinstance(error, NotConnectedError):  # logged where it is noticed
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
        self._say_doubted()
        return True

    def _say_doubted(self) -> None:
        """Log the ports that wait for OVSDB for longer than its answer takes on a busy host."""
        doubted, now = self._registry.doubted(), self._clock()
        for port in doubted:
            if now - self._doubted.get(port.id, now) >= SILENT:
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
