"""What the daemon keeps of a port for the next start: whose it is, its slots, its meters."""

from __future__ import annotations

from dfmeta.apps.meters import Meters
from dfmeta.flows.pipeline import Purpose
from dfmeta.model import Endpoint
from dfmeta.registry import Registry
from dfmeta.state import Holder, State


def meters_of(state: State) -> dict[Purpose, dict[Endpoint, int]]:
    """Give purpose → endpoint → meter id: the parts of *state* themselves."""
    return {Purpose.SYN: state.meters, Purpose.GUEST_SYN: state.syn_meters}


def remember(endpoint: Endpoint, state: State, *, registry: Registry, meters: Meters) -> None:
    """Put into *state* how the port at *endpoint* is now."""
    held = registry.holder(endpoint)
    if held is None:
        state.holders.pop(endpoint, None)
    else:
        port, slots = held
        state.holders[endpoint] = Holder(port.iface_id, port.instance_id, tuple(sorted(slots)))
    for purpose, memory in meters_of(state).items():
        number = meters.known(endpoint, purpose)
        if number is None:
            memory.pop(endpoint, None)
        else:
            memory[endpoint] = number
