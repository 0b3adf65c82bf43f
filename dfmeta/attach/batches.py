"""Collects new attachments of one trunk that come at nearly the same time.

A driver creates a hundred ports together in about the time of one. Those that come while the trunk
is at work are made together afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dfmeta.attach.model import Attachment, Parent
from dfmeta.attach.plane import Plane
from dfmeta.exceptions import AttachDriverError, AttachError

WINDOW: Final = 0.0
"""Seconds from the first attachment of a batch to the call of the driver, if no other work on the
same trunk is under way. None: a single attachment would wait for others in vain, and those that
come during its work are the next batch."""


@dataclass(slots=True)
class _Batch:
    rows: dict[str, Attachment] = field(default_factory=dict)
    errors: dict[str, AttachError] | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Batches:
    """Makes attachments together.

    :param sleep: lets other green threads run.
    """

    def __init__(self, plane: Plane, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self._plane = plane
        self._sleep = sleep
        self._open: dict[str, _Batch] = {}
        self._mutex = threading.Lock()

    def make(self, parent: Parent, attachment: Attachment) -> None:
        """Return when the data plane of an attachment stands.

        The first call for a trunk does the work of the others. An attachment that fails leaves.

        :raises AttachError: as the driver raised it, or other work on the trunk takes too long.
        :raises StoreError: the database failed.
        """
        with self._mutex:
            batch = self._open.get(parent.port_id)
            first = batch is None
            if batch is None:
                batch = self._open[parent.port_id] = _Batch()
            batch.rows[attachment.id] = attachment
        if first:
            self._lead(parent, batch)
        elif not batch.done.wait(2 * self._plane.patience):
            raise AttachDriverError(cause="the data plane does not answer")
        if batch.errors is None:
            raise AttachDriverError(cause="the data plane is not ready")
        if attachment.id in batch.errors:
            raise batch.errors[attachment.id]

    def _lead(self, parent: Parent, batch: _Batch) -> None:
        try:
            self._sleep(WINDOW)
            with self._plane.alone(parent.port_id):
                self._close(parent, batch)
                rows = list(batch.rows.values())
                batch.errors = self._plane.make(parent, rows, undo=lambda _one: True)
        finally:
            self._close(parent, batch)
            batch.done.set()

    def _close(self, parent: Parent, batch: _Batch) -> None:
        with self._mutex:
            if self._open.get(parent.port_id) is batch:
                del self._open[parent.port_id]
