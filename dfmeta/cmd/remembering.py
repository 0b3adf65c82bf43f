"""The daemon's memory: what it keeps of each port for the next start, and when it is saved.

That is the guest of a port, its slots and its meters. A start adopts the flows of a guest that is
still there, and lets the keys of one that is gone rest.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Final

from eventlet import tpool

from dfmeta import hub
from dfmeta.apps.meters import Meters
from dfmeta.flows.pipeline import Purpose
from dfmeta.model import Endpoint
from dfmeta.registry import Registry
from dfmeta.state import Holder, State, StateFile

SAVE: Final = 0.1
"""Seconds between two savings of the state at least: a daemon that is killed adopts no address
of a port that it had not yet saved."""
SAVE_SHARE: Final = 0.05
"""How much of the time may go into saving, where there are many ports."""


def meters_of(state: State) -> dict[Purpose, dict[Endpoint, int]]:
    """Give purpose → endpoint → meter id: the parts of *state* themselves."""
    return {Purpose.SYN: state.meters, Purpose.GUEST_SYN: state.syn_meters}


class Memory:
    """The state file, and what of it is still to be written.

    :param folder: state_path.
    """

    def __init__(self, folder: Path) -> None:
        self._file = StateFile(folder)
        self.state: State = self._file.load()
        self._saved, self._next = -1, 0.0

    @property
    def meters(self) -> dict[Purpose, dict[Endpoint, int]]:
        """See :func:`meters_of`."""
        return meters_of(self.state)

    def adopts(self, endpoint: Endpoint, registry: Registry) -> bool:
        """Whether the guest at *endpoint* is the one that was there when the earlier run ended."""
        identity = registry.identity(endpoint)
        holder = self.state.holders.get(endpoint)
        return (
            identity is not None
            and holder is not None
            and (holder.port_id, holder.instance_id) == (identity.port_id, identity.instance_id)
        )

    def rest_strangers(self, registry: Registry) -> None:
        """Let the keys rest that another guest of a port used when the earlier run ended."""
        for endpoint, holder in self.state.holders.items():
            if not self.adopts(endpoint, registry):
                registry.rest(endpoint, holder.slots)

    def due_in(self, registry: Registry) -> float:
        """Seconds until the next saving; infinite where nothing has changed."""
        changed = self._saved != registry.version
        return self._next - time.monotonic() if changed else math.inf

    def save(
        self, listener: tuple[int, int], registry: Registry, meters: Meters, *, now: bool = False
    ) -> None:
        """Save what has changed since the last time, unless that was just now.

        :param listener: TCP port and inode.
        :param now: save everything, whatever has been.
        """
        begun = time.monotonic()
        if not now and self.due_in(registry) > 0:
            return
        self._saved = registry.version
        self.state.port, self.state.listener = listener
        turns, changed = hub.Turns(), registry.take_changed()
        if now:
            self.state.holders, self.state.meters, self.state.syn_meters = {}, {}, {}
            endpoints = (port.endpoint for port in registry.ports())
            changed = {endpoint for endpoint in endpoints if endpoint is not None}
        for endpoint in changed:
            self._remember(endpoint, registry, meters)
            turns.give_way()
        self._file.save(
            self.state, None if now else changed, give_way=turns.give_way, apart=tpool.execute
        )
        ended = time.monotonic()
        self._next = ended + max(SAVE, (ended - begun) / SAVE_SHARE)

    def _remember(self, endpoint: Endpoint, registry: Registry, meters: Meters) -> None:
        """Put into the state how the port at *endpoint* is now."""
        held = registry.holder(endpoint)
        if held is None:
            self.state.holders.pop(endpoint, None)
        else:
            port, slots = held
            holder = Holder(port.iface_id, port.instance_id, tuple(sorted(slots)))
            self.state.holders[endpoint] = holder
        for purpose, memory in self.meters.items():
            number = meters.known(endpoint, purpose)
            if number is None:
                memory.pop(endpoint, None)
            else:
                memory[endpoint] = number
