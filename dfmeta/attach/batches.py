"""Collects the work on one trunk that comes at nearly the same time.

A driver creates or deletes a hundred ports together in about the time of one. Requests that come
while the trunk is at work are done together afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dfmeta.attach.model import Attachment, Parent
from dfmeta.attach.plane import Plane
from dfmeta.errors import AttachDriverError, AttachError
from dfmeta.runtime import clock

WINDOW: Final = 0.0
"""Seconds from the turn of a batch to the call of the driver. None: a single attachment would wait
for others in vain, and those that come during its work are the next batch."""
RECENT: Final = 1.0
"""Seconds for which the requests of a VM count as a burst: its clients send the next ones."""


@dataclass(slots=True)
class _Batch:
    """Work on a trunk: attachments to make, or those that leave."""

    requests: int = 0
    rows: dict[str, Attachment] = field(default_factory=dict)
    errors: dict[str, AttachError] | None = None
    done: threading.Event = field(default_factory=threading.Event)


_Open = dict[str, _Batch]
"""Trunk → its work that has not begun yet."""


class Batches:
    """Makes attachments together, and removes them together.

    :param burst: seconds to wait for others within :data:`RECENT` of work for several requests.
    :param clock: monotonic seconds.
    :param sleep: lets other green threads run.
    """

    def __init__(
        self,
        plane: Plane,
        *,
        burst: float = 0.0,
        clock: Callable[[], float] = clock.now,
        sleep: Callable[[float], object] = clock.sleep,
    ) -> None:
        self._plane = plane
        self._burst, self._clock, self._sleep = burst, clock, sleep
        self._several: dict[str, float] = {}
        """Trunk → the time of the last work for several requests."""
        self._open: _Open = {}
        self._leaving: _Open = {}
        self._mutex = threading.Lock()

    def make(self, parent: Parent, attachment: Attachment) -> None:
        """Return when the data plane of an attachment stands.

        The first call for a trunk does the work of the others. An attachment that fails leaves.

        :raises AttachError: as the driver raised it, or other work on the trunk takes too long.
        :raises StoreError: the database failed.
        """

        def work(batch: _Batch) -> None:
            rows = list(batch.rows.values())
            batch.errors = self._plane.make(parent, rows, undo=lambda _one: True)

        batch = self._together(self._open, parent.port_id, work, attachment)
        if batch.errors is None:
            raise AttachDriverError(cause="the data plane is not ready")
        if attachment.id in batch.errors:
            raise batch.errors[attachment.id]

    def remove(self, parent: str) -> None:
        """Return when the attachments of a trunk that leave were removed, or have failed.

        The first call does the work of those that come before it begins.

        :raises AttachDriverError: other work on the trunk takes too long.
        :raises StoreError: the database failed.
        """
        self._together(self._leaving, parent, lambda _batch: self._plane.remove(parent))

    def _together(
        self,
        waiting: _Open,
        parent: str,
        work: Callable[[_Batch], object],
        attachment: Attachment | None = None,
    ) -> _Batch:
        """Return the batch of a request when its work is done."""
        with self._mutex:
            batch = waiting.setdefault(parent, _Batch())
            first = not batch.requests
            # A repeated request for an attachment is no other one.
            batch.requests += attachment is None or attachment.id not in batch.rows
            if attachment is not None:
                batch.rows[attachment.id] = attachment
        if not first:
            if not batch.done.wait(2 * self._plane.patience):
                raise AttachDriverError(cause="the data plane does not answer")
            return batch
        try:
            with self._plane.alone(parent):
                self._gather(parent)
                self._begin(waiting, parent, batch)
                work(batch)
        finally:
            self._begin(waiting, parent, batch)
            self._note(parent, batch.requests)
            batch.done.set()
        return batch

    def _begin(self, waiting: _Open, parent: str, batch: _Batch) -> None:
        """Close a batch: a later request is one of the next."""
        with self._mutex:
            if waiting.get(parent) is batch:
                del waiting[parent]

    def _gather(self, parent: str) -> None:
        """Wait for others, if several requests have just been done together."""
        recent = self._clock() - self._several.get(parent, float("-inf")) < RECENT
        self._sleep(max(WINDOW, self._burst) if recent else WINDOW)

    def _note(self, parent: str, requests: int) -> None:
        if requests > 1:
            now = self._clock()
            with self._mutex:
                kept = {one: at for one, at in self._several.items() if now - at < RECENT}
                self._several = {**kept, parent: now}
