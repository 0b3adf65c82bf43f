"""Compares all rows of a host with its data plane: at the start, and now and then.

A row that waits goes forward, or back. A row that leaves goes. An active row without data plane
gets one. What the data plane has without a row is removed. The rows of a VM that is away for longer
than its grace leave, and those of a VM that has come from another host become this host's.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address

from dfmeta.attach import model, trunk_loop
from dfmeta.errors import AttachError
from dfmeta.runtime.throttle import LogThrottle
from dfmeta.store.db.attachments import AttachmentTables, Row

LOG = logging.getLogger(__name__)


class Resync:
    """The work that no request waits for.

    :param clock: seconds of Unix time.
    :param present: tells whether a VM's port is on this host.
    """

    def __init__(
        self,
        attachments: AttachmentTables,
        loop: trunk_loop.TrunkLoop,
        settings: model.AttachmentLimits,
        *,
        host: str,
        clock: Callable[[], float],
        present: Callable[[str], bool],
    ) -> None:
        self._attachments = attachments
        self._loop = loop
        self._settings = settings
        self._host = host
        self._clock = clock
        self._present = present
        self._foreign: dict[str, frozenset[int]] = {}
        self._throttle = LogThrottle()

    def foreign(self, parent: str) -> frozenset[int]:
        """Return the VLAN ids of a trunk that others use, as the data plane last said."""
        return self._foreign.get(parent, frozenset())

    def run(self, *, restart: bool) -> None:
        """Do the work once.

        :param restart: the program has just started.
        :raises StoreError: the database failed; the rows show how far the work went.
        """
        trunks = self._trunks(restart=restart)
        rows = self._rows()
        ports = self._ports()
        lost: set[str] = set()
        if ports is not None:
            # A port without its parent is half of a pair.
            whole = {port.id for port in ports if port.parent and port.whole}
            lost = {
                row.id
                for row in rows
                if row.state is model.AttachmentState.ACTIVE and row.id not in whole
            }
        for trunk in trunks:
            of_trunk = [row for row in rows if row.parent == trunk["parent"]]
            if any(
                row.state is not model.AttachmentState.ACTIVE or row.id in lost for row in of_trunk
            ):
                self._run_loop(trunk, {row.id for row in of_trunk} & lost)
        if ports is not None:
            self._remove_orphans(ports)
        self._attachments.prune(self._host, self._clock())

    def _trunks(self, *, restart: bool) -> list[Row]:
        """Return the trunks of this host, after those that are away for too long have left."""
        now = self._clock()
        present = [
            row["parent"] for row in self._attachments.trunks() if self._present(row["parent"])
        ]
        self._attachments.present(self._host, present, now, restart=restart)
        trunks = [row for row in self._attachments.trunks() if row["host"] == self._host]
        for row in trunks:
            since = row["absent_since"]
            if since is not None and since <= now - self._settings.grace:
                ids = [attachment.id for attachment in self._loop.rows(row["parent"])]
                if self._attachments.leave(ids, 0.0, now):
                    LOG.info("attachments of %s leave: its port is gone", row["port_name"])
        return trunks

    def _rows(self) -> list[model.Attachment]:
        return [model.to_attachment(row) for row in self._attachments.of_host(self._host)]

    def _ports(self) -> Sequence[model.Found] | None:
        """Return the data plane of this host; None if it does not answer."""
        try:
            ports = self._loop.driver.found()
        except AttachError as error:
            self._warn("the data plane of attachments is not compared: %s", error)
            return None
        foreign: dict[str, set[int]] = {}
        for port in ports:
            if not port.id and port.vid:
                foreign.setdefault(port.parent, set()).add(port.vid)
        self._foreign = {parent: frozenset(vids) for parent, vids in foreign.items()}
        return [port for port in ports if port.id]

    def _run_loop(self, trunk: Row, lost: set[str]) -> None:
        """Bring the rows of a trunk to their ends; those of an absent VM leave at most."""
        parent, here = model.to_parent(trunk), trunk["absent_since"] is None
        if here and lost:
            LOG.info("attachments of %s get their data plane again", parent.port_name)
        try:
            self._loop.run(parent, lost=lost if here else (), resync=here)
        except AttachError as error:
            self._warn("attachments wait: %s", error)

    def _remove_orphans(self, ports: Iterable[model.Found]) -> None:
        """Remove what the data plane had before the rows were read, and no row names."""
        named = {row.id for row in self._rows()}
        rest = [port for port in ports if port.removable and port.id not in named]
        # Another host may still have the rows of a VM that has moved.
        for parent in {port.parent for port in rest if port.shared}:
            named |= {row["id"] for row in self._attachments.of_trunk(parent)}
        orphans = [_nameless(port) for port in rest if port.id not in named]
        if orphans:
            LOG.info("%d attachments without a row are removed", len(orphans))
        for orphan in orphans:
            try:
                self._loop.driver.remove([orphan])
            except AttachError as error:
                self._warn("an attachment without a row stays: %s", error)

    def _warn(self, message: str, error: AttachError) -> None:
        self._throttle.warn(LOG, message, error.line)


def _nameless(port: model.Found) -> model.Attachment:
    """Return an attachment with the values that a data plane knows, for its removal."""
    return model.Attachment(
        id=port.id,
        parent=port.parent,
        host="",
        container="",
        ifname="",
        network="",
        owner="",
        vid=port.vid,
        mac="",
        ip=IPv4Address(0),
        port_id="",
        boot_id="",
        state=model.AttachmentState.LEAVING,
        created=0.0,
        changed=0.0,
    )
