"""VLAN tags of tagged subports: taken off on the way to the proxy, put back on the way back.

A tagged subport is an endpoint with a VLAN id, such as a container's behind the port of its virtual
machine. Its frames come in at the parent's port with one 802.1Q tag. ``other_config:vlan-limit``
may make Open vSwitch look behind two tags: a frame with a second tag then matches as well. No match
field shows the second tag, so the tag is taken off, and the next table drops frames that still have
one. ARP and neighbour discovery need none of this: their answers leave with the tags of their
requests.
"""

from __future__ import annotations

from collections.abc import Mapping

from dfmeta.flows.flow import (
    TAGGED,
    UNTAGGED,
    Action,
    Flow,
    Move,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    ToController,
    Value,
    flow,
)
from dfmeta.flows.pipeline import CONTROLLER_ID, Purpose, Register
from dfmeta.model import Endpoint

_VID_BITS = 12
"""Length of vlan_vid without OFPVID_PRESENT."""


def fixed(proxy: int) -> tuple[Flow, ...]:
    """Return the flows of the subport table.

    :param proxy: OpenFlow number of the port that leads to the proxy.
    """
    back = (PushVlan(), Move(Register.TAG, "vlan_vid", _VID_BITS))
    return (
        flow(
            Purpose.SUBPORT_PROXY,
            {"vlan_vid": UNTAGGED, Register.TAG: 0},
            actions=(Output(proxy),),
        ),
        # The controller learns from the tag which subport has sent the SYN.
        flow(
            Purpose.SUBPORT_SYN,
            {"vlan_vid": UNTAGGED, Register.TAG: (TAGGED, TAGGED)},
            actions=(*back, ToController(CONTROLLER_ID)),
        ),
        flow(Purpose.SUBPORT_DROP, {}),
    )


def untag(endpoint: Endpoint) -> tuple[Action, ...]:
    """Return the actions that take the tag of *endpoint* off; none if its frames have no tag."""
    return (PopVlan(),) if endpoint.vid else ()


def untagged(endpoint: Endpoint) -> Mapping[str, Value]:
    """Return the match that :func:`tag` needs, so that no frame gets a second tag."""
    return {"vlan_vid": UNTAGGED} if endpoint.vid else {}


def tag(endpoint: Endpoint) -> tuple[Action, ...]:
    """Return the actions that put the tag of *endpoint* on; none if its frames have no tag."""
    return (PushVlan(), SetField("vlan_vid", TAGGED | endpoint.vid)) if endpoint.vid else ()


def to_proxy(endpoint: Endpoint) -> tuple[Action, ...]:
    """Return the actions by which the subport table takes a frame of *endpoint* for the proxy's.

    The register is set because another program may have used it before.
    """
    return (*untag(endpoint), SetField(Register.TAG, 0))


def to_controller(endpoint: Endpoint) -> tuple[Action, ...]:
    """Return the actions by which the subport table takes a frame of *endpoint* for a first SYN."""
    return (*untag(endpoint), SetField(Register.TAG, TAGGED | endpoint.vid))
