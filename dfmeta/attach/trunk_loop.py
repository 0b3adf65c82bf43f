"""Brings the rows of a trunk and its data plane together.

A request commits its row and calls :meth:`TrunkLoop.run`. One caller at a time makes a pass over a
trunk; those that come before it begins wait for its end. So requests that come while the trunk is
at work are one call of the driver afterwards: it creates or deletes a hundred ports in about the
time of one. Requests, retries and what an ended process has left take the same pass.

The states of a row and the order of the steps:

=========  =====================================================================
wanted     committed by the engine: VLAN id, address and MAC are taken
made       committed before the driver is asked to create the port
active     committed after the driver has said that the port works
leaving    committed before the driver is asked to delete the port
(no row)   committed after the driver has said that the port is gone; in the same
           transaction the VLAN id begins to rest
=========  =====================================================================

A process that ends between two steps leaves a row that says what may exist outside, and each step
can be repeated.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dfmeta.attach.limits import Alone
from dfmeta.attach.model import (
    Attachment,
    AttachmentDriver,
    AttachmentLimits,
    AttachmentState,
    Parent,
    to_attachment,
)
from dfmeta.errors import AttachDriverError, AttachError
from dfmeta.runtime import clock, throttle
from dfmeta.store.db.attachments import AttachmentTables

LOG = logging.getLogger(__name__)

PATIENCE: Final = 30.0
"""Seconds to wait for other work on the same trunk."""
IN_ROW: Final = 3
"""Attachments that may fail one after the other, before the driver is taken to be away."""
RECENT: Final = 1.0
"""Seconds for which the requests of a VM count as a burst: its clients send the next ones."""
GIVE_UP: Final = 300.0
"""Seconds after which a row leaves that no request waits for, and that cannot be made."""
_WAITING: Final = (AttachmentState.WANTED, AttachmentState.MADE)
_STANDING: Final = (*_WAITING, AttachmentState.ACTIVE)


@dataclass(slots=True, kw_only=True)
class _Pass:
    """A pass over a trunk, and the callers that wait for it."""

    parent: Parent
    requested: set[str] = field(default_factory=set)
    """Ids of rows that requests wait for."""
    lost: set[str] = field(default_factory=set)
    """Ids of active rows that have no data plane here."""
    resync: bool = False
    """Rows that no request waits for are made as well."""
    requests: int = 0
    errors: dict[str, AttachError] | None = None
    """The errors of rows that have none or half a data plane, by id; None: the pass failed."""
    done: threading.Event = field(default_factory=threading.Event)


class TrunkLoop:
    """The rows of trunks, and the driver.

    :param clock: seconds of Unix time.
    :param burst: seconds for which a pass waits for further requests, within :data:`RECENT` of a
        pass for several.
    """

    def __init__(
        self,
        attachments: AttachmentTables,
        driver: AttachmentDriver,
        settings: AttachmentLimits,
        *,
        clock: Callable[[], float] = clock.wall,
        burst: float = 0.0,
    ) -> None:
        self.driver = driver
        self._attachments = attachments
        self._settings = settings
        self._clock = clock
        self._burst = burst
        self._bursts: dict[str, float] = {}
        """Trunk → the monotonic time of its last pass for several requests."""
        self._alone = Alone("other work on the trunk")
        self._next: dict[str, _Pass] = {}
        """Trunk → its pass that has not begun yet."""
        self._mutex = threading.Lock()
        self._throttle = throttle.LogThrottle()

    def rows(self, parent: str) -> list[Attachment]:
        """Return the attachments of a trunk in all states."""
        return [to_attachment(row) for row in self._attachments.of_trunk(parent)]

    def stand(self, parent: Parent, row: Attachment) -> None:
        """Return when the data plane of a committed row stands; a new row that fails leaves.

        :raises AttachError: as the driver raised it, or other work on the trunk takes too long.
        :raises StoreError: the database failed.
        """
        # The VM has moved to this host with an active row.
        lost = {row.id} if row.state is AttachmentState.ACTIVE else ()
        errors = self.run(parent, requested={row.id}, lost=lost)
        if row.id in errors:
            raise errors[row.id]

    def run(
        self,
        parent: Parent,
        *,
        requested: Iterable[str] = (),
        lost: Iterable[str] = (),
        resync: bool = False,
    ) -> Mapping[str, AttachError]:
        """Return when a pass that began after the call has ended.

        It deletes the ports of the rows that leave, and then these rows; a row whose port cannot be
        deleted stays. Then it creates the ports of rows. An active row whose port cannot be created
        stays active, since its container runs.

        :param requested: ids of rows that a request waits for; if they fail, they leave.
        :param lost: ids of active rows whose ports are created again.
        :param resync: the other rows that wait are made as well; if they fail, they leave after
            :data:`GIVE_UP`.
        :returns: the errors of rows whose ports could not be created, by id.
        :raises AttachDriverError: other work on the trunk takes too long, or the pass failed.
        :raises StoreError: the database failed; the rows show how far the work went.
        """
        joined, first = self._join(parent, set(requested), set(lost), resync=resync)
        if first:
            self._lead(joined)
        elif not joined.done.wait(2 * PATIENCE):
            raise AttachDriverError(cause="the data plane does not answer")
        if joined.errors is None:
            raise AttachDriverError(cause="the data plane is not ready")
        return joined.errors

    def _join(
        self, parent: Parent, requested: set[str], lost: set[str], *, resync: bool
    ) -> tuple[_Pass, bool]:
        """Return the next pass over a trunk, and whether the caller makes it."""
        with self._mutex:
            first = parent.port_id not in self._next
            joined = self._next.setdefault(parent.port_id, _Pass(parent=parent))
            # A repeated request for an attachment is no other one.
            joined.requests += not resync and not (requested and requested <= joined.requested)
            joined.requested |= requested
            joined.lost |= lost
            joined.resync |= resync
            return joined, first

    def _lead(self, led: _Pass) -> None:
        trunk = led.parent.port_id
        try:
            with self._alone.by(trunk, PATIENCE):
                self._gather(trunk)
                self._close(led)
                led.errors = self._work(led)
        finally:
            self._close(led)
            self._note(trunk, led.requests)
            led.done.set()

    def _close(self, begun: _Pass) -> None:
        """Let later requests join the pass after this one."""
        with self._mutex:
            if self._next.get(begun.parent.port_id) is begun:
                del self._next[begun.parent.port_id]

    def _gather(self, trunk: str) -> None:
        """Let the requests that are ready join, and in a burst those that follow."""
        recent = clock.now() - self._bursts.get(trunk, float("-inf")) < RECENT
        clock.sleep(self._burst if recent else 0.0)

    def _note(self, trunk: str, requests: int) -> None:
        if requests > 1:
            now = clock.now()
            with self._mutex:
                recent = {name: at for name, at in self._bursts.items() if now - at < RECENT}
                self._bursts = {**recent, trunk: now}

    def _work(self, begun: _Pass) -> dict[str, AttachError]:
        parent = begun.parent
        rows = self.rows(parent.port_id)
        self._remove(rows)
        waiting = [
            row
            for row in rows
            if row.state in _WAITING and (begun.resync or row.id in begun.requested)
        ]
        lost = [row for row in rows if row.state is AttachmentState.ACTIVE and row.id in begun.lost]
        errors = self._make(parent, waiting, lost)
        standing = {row.id for row in rows if row.state is not AttachmentState.LEAVING}
        for name in begun.requested - standing:
            errors[name] = _deleted()
        self._log({name: errors[name] for name in errors.keys() - begun.requested})
        oldest = self._clock() - GIVE_UP
        back = [
            row.id
            for row in waiting
            if row.id in errors and (row.id in begun.requested or row.created <= oldest)
        ]
        if self._attachments.leave(back, self._settings.rest, self._clock()):
            self._remove(self.rows(parent.port_id))
        return errors

    def _make(
        self, parent: Parent, waiting: Sequence[Attachment], lost: Sequence[Attachment]
    ) -> dict[str, AttachError]:
        """Create the ports of rows that wait, and those of active rows again."""
        # With a VM that moves, another host may make the same rows active at the same time.
        made = self._move(waiting, AttachmentState.MADE)
        errors = self._each(lambda some: self._drive(parent, some), [*made, *lost])
        active = self._move([row for row in made if row.id not in errors], AttachmentState.ACTIVE)
        ended = {row.id for row in active} | errors.keys()
        return errors | {row.id: _deleted() for row in waiting if row.id not in ended}

    def _remove(self, rows: Iterable[Attachment]) -> None:
        """Delete the ports of those rows that leave, and then these rows."""
        leaving = [row for row in rows if row.state is AttachmentState.LEAVING]
        errors = self._each(self.driver.remove, leaving)
        gone = [row.id for row in leaving if row.id not in errors]
        self._attachments.free(gone, self._clock())
        self._log(errors)

    def _move(self, rows: Sequence[Attachment], after: AttachmentState) -> list[Attachment]:
        """Commit another state of those rows that do not leave, and return these."""
        ids = [row.id for row in rows]
        moved = self._attachments.move(ids, _STANDING, after.value, self._clock())
        return [row for row in rows if row.id in moved]

    def _drive(self, parent: Parent, rows: Sequence[Attachment]) -> None:
        """Call the driver, and commit the names that it has given to the ports."""
        names: Mapping[str, str] = self.driver.make(parent, rows) or {}
        before = {row.id: row.port_id for row in rows}
        self._attachments.name_ports(
            {row: name for row, name in names.items() if before[row] != name}
        )

    def _each(
        self, step: Callable[[Sequence[Attachment]], None], rows: Sequence[Attachment]
    ) -> dict[str, AttachError]:
        """Call the driver for all rows at once, and for each if that fails; return the errors."""
        if not rows:
            return {}
        try:
            step(rows)
        except AttachError as error:
            if len(rows) == 1 or error.fields.get("whole"):
                return {row.id: error for row in rows}
        else:
            return {}
        errors: dict[str, AttachError] = {}
        failed = 0
        last: AttachError | None = None
        for row in rows:
            if failed >= IN_ROW and last is not None:
                errors[row.id] = last
                continue
            try:
                step([row])
            except AttachError as error:
                errors[row.id] = last = error
                failed = 0 if error.fields.get("taken") else failed + 1
            else:
                failed = 0
        return errors

    def _log(self, errors: Mapping[str, AttachError]) -> None:
        for name, error in errors.items():
            self._throttle.warn(LOG, "attachment %s waits for its data plane: %s", name, error.line)


def _deleted() -> AttachDriverError:
    return AttachDriverError(cause="it was deleted while it was created")
