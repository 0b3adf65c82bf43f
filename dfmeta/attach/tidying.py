"""Brings all rows of a host and its data plane together: at the start, and now and then.

A row that waits goes forward, or back after :data:`GIVE_UP` seconds. A row that leaves goes. An
active row without data plane gets one. What the data plane has without a row is removed. The rows
of a VM that is away for longer than its grace leave, and those of a VM that has come from another
host become this host's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address
from typing import Final

from dfmeta.attach.model import Attachment, Found, Settings, State
from dfmeta.attach.plane import Plane
from dfmeta.attach.rows import to_attachment, to_parent
from dfmeta.errors import AttachError
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import Seldom
from dfmeta.store.db.attachments import Attachments, Row

LOG = logging.getLogger(__name__)

GIVE_UP: Final = 300.0
"""Seconds after which a row whose data plane cannot be created leaves."""
_WAITING: Final = (State.WANTED, State.MADE)


class Tidying:
    """The work that no request waits for.

    :param clock: seconds of Unix time.
    :param present: tells whether a VM's port is on this host.
    """

    def __init__(
        self,
        attachments: Attachments,
        plane: Plane,
        settings: Settings,
        *,
        host: str,
        clock: Callable[[], float] = clock.wall,
        present: Callable[[str], bool],
    ) -> None:
        self._attachments = attachments
        self._plane = plane
        self._settings = settings
        self._host = host
        self._clock = clock
        self._present = present
        self._foreign: dict[str, frozenset[int]] = {}
        self._seldom = Seldom()

    def foreign(self, parent: str) -> frozenset[int]:
        """Return the VLAN ids of a trunk that others use, as the data plane last said."""
        return self._foreign.get(parent, frozenset())

    def run(self, *, restart: bool) -> None:
        """Do the work once.

        :param restart: the program has just started.
        :raises StoreError: the database failed; the rows show how far the work went.
        """
        ours = self._trunks(restart=restart)
        before = self._rows()
        found = self._found()
        missing: set[str] = set()
        if found is not None:
            # A port without its parent is half of a pair.
            there = {one.id for one in found if one.parent and one.whole}
            missing = {
                one.id for one in before if one.state is State.ACTIVE and one.id not in there
            }
        for parent, trunk in ours.items():
            rows = [one for one in before if one.parent == parent]
            if any(one.state is not State.ACTIVE or one.id in missing for one in rows):
                self._trunk(trunk, missing)
        if found is not None:
            self._orphans(found)
        self._attachments.prune(self._host, self._clock())

    def _trunks(self, *, restart: bool) -> dict[str, Row]:
        """Return the trunks of this host, after those that are away for too long have left."""
        now = self._clock()
        known = [row["parent"] for row in self._attachments.trunks()]
        there = [parent for parent in known if self._present(parent)]
        self._attachments.present(self._host, there, now, restart=restart)
        ours = {
            row["parent"]: row for row in self._attachments.trunks() if row["host"] == self._host
        }
        for parent, row in ours.items():
            since = row["absent_since"]
            if since is not None and since <= now - self._settings.grace:
                ids = [one.id for one in self._plane.rows(parent)]
                if self._attachments.leave(ids, 0.0, now):
                    LOG.info("attachments of %s leave: its port is gone", row["port_name"])
        return ours

    def _rows(self) -> list[Attachment]:
        return [to_attachment(row) for row in self._attachments.of_host(self._host)]

    def _found(self) -> Sequence[Found] | None:
        """Return the data plane of this host; None if it does not answer."""
        try:
            found = self._plane.driver.found()
        except AttachError as error:
            self._warn("the data plane of attachments is not compared: %s", error)
            return None
        foreign: dict[str, set[int]] = {}
        for one in found:
            if not one.id and one.vid:
                foreign.setdefault(one.parent, set()).add(one.vid)
        self._foreign = {parent: frozenset(vids) for parent, vids in foreign.items()}
        return [one for one in found if one.id]

    def _trunk(self, trunk: Row, missing: Iterable[str]) -> None:
        """Bring the rows of a trunk to their ends."""
        parent = to_parent(trunk)
        try:
            with self._plane.alone(parent.port_id):
                self._plane.remove(parent.port_id)
                if trunk["absent_since"] is not None:
                    return
                rows = self._plane.rows(parent.port_id)
                waiting = [one for one in rows if one.state in _WAITING]
                if waiting:
                    self._plane.make(parent, waiting, undo=self._is_given_up)
                again = [one for one in rows if one.state is State.ACTIVE and one.id in missing]
                if again:
                    LOG.info("attachments of %s get their data plane again", parent.port_name)
                    self._plane.remake(parent, again)
        except AttachError as error:
            self._warn("attachments wait: %s", error)

    def _is_given_up(self, attachment: Attachment) -> bool:
        return attachment.created <= self._clock() - GIVE_UP

    def _orphans(self, found: Iterable[Found]) -> None:
        """Remove what the data plane had before the rows were read, and no row names."""
        named = {one.id for one in self._rows()}
        rest = [one for one in found if one.removable and one.id not in named]
        # Another host may still have the rows of a VM that has moved.
        for parent in {one.parent for one in rest if one.shared}:
            named |= {row["id"] for row in self._attachments.of_trunk(parent)}
        orphans = [_nameless(one) for one in rest if one.id not in named]
        if not orphans:
            return
        LOG.info("%d attachments without a row are removed", len(orphans))
        for one in orphans:
            try:
                self._plane.driver.remove([one])
            except AttachError as error:
                self._warn("an attachment without a row stays: %s", error)

    def _warn(self, message: str, error: AttachError) -> None:
        self._seldom.warn(LOG, message, error.line)


def _nameless(found: Found) -> Attachment:
    """Return an attachment with the values that a data plane knows, for its removal."""
    return Attachment(
        id=found.id,
        parent=found.parent,
        host="",
        container="",
        ifname="",
        network="",
        owner="",
        vid=found.vid,
        mac="",
        ip=IPv4Address(0),
        port_id="",
        boot_id="",
        state=State.LEAVING,
        created=0.0,
        changed=0.0,
    )
