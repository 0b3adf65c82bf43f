"""The files of state_path: the guests and addresses of each port, and the key of tokens.

A start adopts the addresses of a guest that is still on its port: from the switch's flows, and from
the state where the switch has lost them. The keys of a guest that has left rest, so that no other
guest gets them too early.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dfmeta import errors, model
from dfmeta.identity.registry import Registry
from dfmeta.proxy.tokens import KEY_BYTES, KEY_FILE, load_key
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.saved_state import Holder, Listeners, SavedState, StateFile
from dfmeta.runtime.throttle import LONGEST_PAUSE, pause_after

if TYPE_CHECKING:
    from dfmeta.apps.reconciler import Remembered


class SavedGuests:
    """The state file and the changes that are not written yet.

    :param directory: value of state_path.
    """

    def __init__(self, directory: Path) -> None:
        self._file = StateFile(directory)
        self.state: SavedState = self._file.load()
        self._saved, self._next = -1, 0.0

    def adopts(self, endpoint: model.Endpoint, registry: Registry) -> bool:
        """Return whether the guest at *endpoint* is the same as at the end of the previous run."""
        identity = registry.identity(endpoint)
        holder = self.state.holders.get(endpoint)
        return (
            identity is not None
            and holder is not None
            and (holder.port_id, holder.instance_id) == (identity.port_id, identity.instance_id)
        )

    def addresses(self, registry: Registry) -> Iterator[Remembered]:
        """Yield the addresses of the previous run whose guest is the same now."""
        for endpoint, holder in self.state.holders.items():
            if self.adopts(endpoint, registry):
                for number, address in holder.slots.items():
                    if address is not None:
                        yield endpoint, number, address

    def quarantine_keys(self, registry: Registry) -> None:
        """Make the keys rest that another guest of a port used at the end of the previous run, and
        those that rested then. The others are kept for their guests."""
        registry.rest(None, self.state.resting)
        for endpoint, holder in self.state.holders.items():
            if self.adopts(endpoint, registry):
                registry.allocator.expect(endpoint, holder.slots)
            else:
                registry.rest(endpoint, holder.slots)

    def due_in(self, registry: Registry) -> float:
        """Return seconds until the next saving; infinite when nothing has changed."""
        changed = self._saved != registry.version
        return self._next - clock.now() if changed else math.inf

    def save(self, listeners: Listeners, registry: Registry, *, now: bool = False) -> None:
        """Save the changes since the last saving, unless that was too recent.

        :param now: save everything at once.
        """
        begun = clock.now()
        if not now and self.due_in(registry) > 0:
            return
        self._saved = registry.version
        self.state.port, self.state.listener, self.state.listener6 = listeners
        self.state.resting = registry.allocator.resting()
        turns, changed = hub.Turns(), registry.take_changed()
        if now:
            self.state.holders = {}
            endpoints = (port.endpoint for port in registry.ports())
            changed = {endpoint for endpoint in endpoints if endpoint is not None}
        for endpoint in changed:
            self._remember(endpoint, registry)
            turns.give_way()
        saved = self._file.save(self.state, apart=threads.call_in_thread)
        ended = clock.now()
        self._next = ended + (pause_after(ended - begun) if saved else LONGEST_PAUSE)
        if not saved:
            self._saved = -1

    def _remember(self, endpoint: model.Endpoint, registry: Registry) -> None:
        """Update the state of the port at *endpoint*."""
        guest = registry.guest(endpoint)
        if guest is None or not guest.port.instance_id:
            self.state.holders.pop(endpoint, None)
        else:
            port, slots = guest.port, guest.slots
            addresses = {number: slots[number].address for number in sorted(slots)}
            self.state.holders[endpoint] = Holder(port.iface_id, port.instance_id, addresses)


class TokenKey:
    """The key in state_path. Where the disk is full at the first start, it is written later.

    Until then guests get no tokens, since these would not be valid after a restart. Everything else
    is served.

    :param folder: state_path.
    :raises StartError: see :func:`~dfmeta.proxy.tokens.load_key`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.value = secrets.token_bytes(KEY_BYTES)
        """The key that the file has or will get."""
        self.fault = ""
        """Why the file does not exist yet, with the remedy; empty: it exists."""
        self._load()

    @property
    def usable(self) -> bytes:
        """The key if the file exists, else empty."""
        return b"" if self.fault else self.value

    def follow(self, ready: Callable[[], object]) -> None:
        """If the file does not exist yet, write it when there is room, and then call *ready*."""
        if self.fault:
            hub.VITAL.spawn("key of tokens", self._await_room, ready, may_return=True)

    def _await_room(self, ready: Callable[[], object]) -> None:
        while self.fault:
            clock.sleep(LONGEST_PAUSE)
            try:
                self._load()
            except errors.StartError as error:
                self.fault = str(error)
        ready()

    def _load(self) -> None:
        key = load_key(self._folder, make=lambda _length: self.value)
        if key is None:
            self.fault = (
                f"the disk of {self._folder} is full, and guests get no tokens before {KEY_FILE} "
                f"is written there. Make room: `df -h {self._folder}`"
            )
        else:
            self.value, self.fault = key, ""
