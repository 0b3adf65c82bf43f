"""Brings rows of one trunk and their data plane together, one step at a time.

The states of a row and the order of the steps:

=========  =====================================================================
wanted     committed by the engine: VLAN id, address and MAC are taken
made       committed before the driver is asked to create the port
active     committed after the driver has said that the port works
leaving    committed before the driver is asked to delete the port
(no row)   committed after the driver has said that the port is gone; in the same
           transaction the VLAN id begins to rest
=========  =====================================================================

A program that ends between two steps leaves a row that says what may exist outside, and each step
can be repeated. One green thread at a time works on a trunk, so that no port is created after it
was deleted.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from dfmeta.attach.alone import Alone
from dfmeta.attach.model import Attachment, Driver, Parent, Settings, State
from dfmeta.attach.rows import to_attachment
from dfmeta.errors import AttachDriverError, AttachError
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import Seldom
from dfmeta.store.db.attachments import Attachments

LOG = logging.getLogger(__name__)

PATIENCE: Final = 30.0
"""Seconds to wait for other work on the same trunk."""
IN_ROW: Final = 3
"""Attachments that may fail one after the other, before the driver is taken to be away."""
_STANDING: Final = (State.WANTED.value, State.MADE.value, State.ACTIVE.value)


class Plane:
    """The rows of trunks, and the driver.

    :param clock: seconds of Unix time.
    :param patience: seconds to wait for other work on a trunk.
    """

    def __init__(
        self,
        attachments: Attachments,
        driver: Driver,
        settings: Settings,
        *,
        clock: Callable[[], float] = clock.wall,
        patience: float = PATIENCE,
    ) -> None:
        self.driver = driver
        self.patience = patience
        self._attachments = attachments
        self._settings = settings
        self._clock = clock
        self._alone = Alone("other work on the trunk")
        self._seldom = Seldom()

    @contextlib.contextmanager
    def alone(self, parent: str) -> Iterator[None]:
        """Exclude other work on a trunk in this process.

        :raises AttachDriverError: other work takes longer than the patience.
        """
        with self._alone.by(parent, self.patience):
            yield

    def rows(self, parent: str) -> list[Attachment]:
        """Return the attachments of a trunk in all states."""
        return [to_attachment(row) for row in self._attachments.of_trunk(parent)]

    def make(
        self, parent: Parent, those: Sequence[Attachment], *, undo: Callable[[Attachment], bool]
    ) -> dict[str, AttachError]:
        """Create the data plane of attachments; call it inside :meth:`alone`.

        :param undo: tells which of those that fail leave; the others wait for the next attempt.
        :returns: the errors of those that failed, by id.
        :raises StoreError: the database failed; the rows show how far the work went.
        """
        # With a VM that moves, another host may make the same rows active at the same time.
        made = self._move(those, _STANDING, State.MADE)
        errors = self._each(lambda some: self._drive(parent, some), made)
        done = [one for one in made if one.id not in errors]
        active = self._move(done, _STANDING, State.ACTIVE)
        there = {one.id for one in active} | errors.keys()
        for one in those:
            if one.id not in there:
                errors[one.id] = AttachDriverError(cause="it was deleted while it was created")
        back = [one.id for one in those if one.id in errors and undo(one)]
        if self._attachments.leave(back, self._settings.rest, self._clock()):
            self.remove(parent.port_id)
        return errors

    def remake(self, parent: Parent, those: Sequence[Attachment]) -> dict[str, AttachError]:
        """Create the data plane of active attachments again; call it inside :meth:`alone`.

        Those that fail stay active: their containers run, and the next attempt may succeed.

        :returns: the errors of those that failed, by id.
        """
        errors = self._each(lambda some: self._drive(parent, some), those)
        self._log(errors)
        return errors

    def remove(self, parent: str) -> None:
        """Delete the data plane and then the rows of a trunk's attachments that leave.

        Call it inside :meth:`alone`. The row of an attachment for which the driver fails stays.
        """
        leaving = [one for one in self.rows(parent) if one.state is State.LEAVING]
        if not leaving:
            return
        errors = self._each(self.driver.remove, leaving)
        gone = [one.id for one in leaving if one.id not in errors]
        self._attachments.free(gone, self._clock())
        self._log(errors)

    def _move(
        self, those: Iterable[Attachment], before: Iterable[str], after: State
    ) -> list[Attachment]:
        those = list(those)
        moved = self._attachments.move(
            [one.id for one in those], [str(state) for state in before], after.value, self._clock()
        )
        return [one for one in those if one.id in moved]

    def _drive(self, parent: Parent, those: Sequence[Attachment]) -> None:
        """Call the driver, and commit the names that it has given to the ports."""
        names: Mapping[str, str] = self.driver.make(parent, those) or {}
        before = {one.id: one.port_id for one in those}
        new = {one: name for one, name in names.items() if before[one] != name}
        self._attachments.name_ports(new)

    def _each(
        self, step: Callable[[Sequence[Attachment]], None], those: Sequence[Attachment]
    ) -> dict[str, AttachError]:
        """Call the driver for all at once, and for each one if that fails; return the errors."""
        if not those:
            return {}
        try:
            step(those)
        except AttachError as error:
            if len(those) == 1 or error.fields.get("whole"):
                return {one.id: error for one in those}
        else:
            return {}
        errors: dict[str, AttachError] = {}
        failed = 0
        last: AttachError | None = None
        for one in those:
            if failed >= IN_ROW and last is not None:
                errors[one.id] = last
                continue
            try:
                step([one])
            except AttachError as error:
                errors[one.id] = last = error
                failed = 0 if error.fields.get("taken") else failed + 1
            else:
                failed = 0
        return errors

    def _log(self, errors: dict[str, AttachError]) -> None:
        for name, error in errors.items():
            self._seldom.warn(LOG, "attachment %s waits for its data plane: %s", name, error.line)
