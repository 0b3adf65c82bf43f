"""What the daemon keeps of a port for the next start: whose it is, its slots, its meters."""

from __future__ import annotations

from dfmeta.apps.meters import Meters
from dfmeta.flows.pipeline import Purpose
from dfmeta.registry import Registry
from dfmeta.state import Holder, State


def meters_of(state: State) -> dict[Purpose, dict[int, int]]:
    """Give purpose → ofport → meter id: the parts of *state* themselves, to be read or changed."""
    return {Purpose.SYN: state.meters, Purpose.GUEST_SYN: state.syn_meters}


def remember(ofport: int, state: State, *, registry: Registry, meters: Meters) -> None:
    """Put into *state* how the port with that number is now."""
    held = registry.holder(ofport)
    if held is None:
        state.holders.pop(ofport, None)
    else:
        port, slots = held
        state.holders[ofport] = Holder(port.iface_id, port.instance_id, tuple(sorted(slots)))
    for purpose, memory in meters_of(state).items():
        number = meters.of_port(ofport, purpose)
        if number is None:
            memory.pop(ofport, None)
        else:
            memory[ofport] = number
