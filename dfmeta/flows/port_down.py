"""Why a port of the bridge is cut off, from its config and state bits on the switch. Pure.

Source: OpenFlow 1.3.5, 7.2.1, and its notation in ovs-ofctl(8), mod-port. Open vSwitch sets
``PORT_DOWN`` and ``LINK_DOWN`` from the port's device; it applies ``NO_RECV`` and ``NO_FWD``
itself, before any flow. ``NO_PACKET_IN`` affects only packets that match no flow, and so none of
dfmeta's.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self

# The commands read ports without os-ken, which would take a fifth of a second more.
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
    def of(cls, port: Any) -> Self:
        """Read os-ken's description of a port."""
        return cls(port.config, port.state, port.hw_addr)

    @property
    def hidden(self) -> bool:
        """Whether the bits of the device are meaningless.

        Open vSwitch reports a device as down after it was moved to another network namespace, as
        an internal port of a container is. Its frames still pass.
        """
        return self.mac == _HIDDEN_MAC and bool(self.config & PORT_DOWN)

    def of_switch(self) -> Self:
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
