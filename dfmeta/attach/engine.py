"""The engine of attachments: from a request to a data plane that stands, and back.

:mod:`dfmeta.attach.trunk_loop` has the states of an attachment, and :mod:`dfmeta.attach.resync` the
work that no request waits for.
"""

import contextlib
import dataclasses
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

from dfmeta import errors, metrics
from dfmeta.attach import choice, limits, model, resync, trunk_loop
from dfmeta.runtime import clock
from dfmeta.store.db.attachments import AttachmentTables

LOG = logging.getLogger(__name__)

_ROUNDS: Final = 8
"""How often a request begins again after others have changed the same attachment, or have taken its
VLAN id or its address."""


def name_of_port() -> str:
    """Return an iface-id for a port that dfmeta makes itself."""
    return str(uuid.uuid4())


@contextlib.contextmanager
def _database() -> Iterator[None]:
    """Turn an error of the database into one for a VM, which must not see the database's name."""
    try:
        yield
    except errors.StoreError as error:
        LOG.warning("the database of attachments failed: %s", error.line)
        raise errors.AttachDriverError(
            cause="the database of attachments does not answer"
        ) from error


class AttachmentEngine:
    """Gives the containers of this host's VMs their attachments.

    All methods may block, and may be called from several green threads at once.

    :param attachments: the tables; other hosts may use them too.
    :param driver: makes attachments real.
    :param networks: the operator's networks, by name; may change while the engine runs.
    :param settings: limits.
    :param host: name of this host, unique among the hosts that share the tables.
    :param clock: seconds of Unix time.
    :param present: tells whether the port of a VM (:attr:`Parent.port_id`) is on this host now.
    :param name: returns the iface-id of a new port; empty: the driver gives it.
    :param burst: see :class:`dfmeta.attach.trunk_loop.TrunkLoop`.
    """

    def __init__(
        self,
        attachments: AttachmentTables,
        driver: model.AttachmentDriver,
        networks: Mapping[str, model.Network],
        settings: model.AttachmentLimits,
        *,
        host: str,
        clock: Callable[[], float] = clock.wall,
        present: Callable[[str], bool] = lambda port_id: True,
        name: Callable[[], str] = name_of_port,
        burst: float = 0.0,
    ) -> None:
        self._attachments = attachments
        self._driver = driver
        self._networks = networks
        self._settings = settings
        self._host = host
        self._clock = clock
        self._name = name
        self._rate = limits.Rate(settings.rate, clock)
        self._loop = trunk_loop.TrunkLoop(attachments, driver, settings, clock=clock, burst=burst)
        self._choice = choice.Choice(settings)
        self._resync_alone = threading.Lock()
        self._resync = resync.Resync(
            attachments, self._loop, settings, host=host, clock=clock, present=present
        )

    def take(self, settings: model.AttachmentLimits) -> None:
        """Take another quota and rate; everything else stays as it was at the start."""
        self._settings = dataclasses.replace(
            self._settings, quota=settings.quota, rate=settings.rate
        )
        self._rate = limits.Rate(settings.rate, self._clock)
        self._choice = choice.Choice(self._settings)

    def attach(
        self, parent: model.Parent, wanted: model.AttachmentRequest
    ) -> tuple[model.Attachment, bool]:
        """Return the attachment of a container's interface once its data plane stands.

        A repeated request returns the same attachment.

        :returns: the attachment, and whether this call has created it.
        :raises AttachConflictError: the interface is on another network.
        :raises AttachNetworkError: the network is unknown, or lacks the requested address or MAC.
        :raises AttachQuotaError: the quota of the VM is used up, or (AttachRateError) its rate.
        :raises AttachFullError: no VLAN id or no address is free.
        :raises AttachDriverError: the data plane or the database failed; the VM may try again.
        """
        began = clock.now()
        outcome: metrics.Attached = "failed"
        try:
            made, new = self._attach(parent, wanted)
            outcome = "made" if new else "found"
        finally:
            metrics.ATTACH_SECONDS.labels(outcome).observe(clock.now() - began)
        return made, new

    def _attach(
        self, parent: model.Parent, wanted: model.AttachmentRequest
    ) -> tuple[model.Attachment, bool]:
        taken: errors.AttachError | None = None
        with _database():
            for _round in range(_ROUNDS):
                network = self._network(wanted.network)
                rows = self._loop.rows(parent.port_id)
                attachment = self._clear(parent, wanted, rows)
                if attachment is not None and self._works(attachment):
                    return attachment, False
                # A VM with an attachment has its trunk; the driver would read all ports to say so.
                if not any(map(self._works, rows)) and (cause := self._driver.ready(parent)):
                    raise errors.AttachDriverError(cause=cause)
                if attachment is None and not taken and not self._rate.take(parent.port_id):
                    cause = f"more than {self._settings.rate:g} new attachments in a second"
                    raise errors.AttachRateError(cause=cause)
                unknown = attachment is None and bool(wanted.mac)
                if unknown and self._driver.has_mac(parent, wanted.mac, network):
                    raise choice.mac_in_use(wanted.mac, network)
                row, created = self._reserve(parent, network, wanted)
                if row.state is model.AttachmentState.LEAVING or row.vid in wanted.avoid:
                    continue
                _check_network(row, wanted)
                try:
                    self._loop.stand(parent, row)
                except errors.AttachDriverError as error:
                    if not error.fields.get("taken"):
                        raise
                    taken = error
                    wanted = dataclasses.replace(wanted, avoid=wanted.avoid | {row.vid})
                    continue
                return self._renewed(row), created
        raise taken or errors.AttachDriverError(cause="other requests change the same attachment")

    def get(self, parent: model.Parent, container: str, ifname: str) -> model.Attachment | None:
        """Return an attachment of a VM; None if it does not exist or is being removed.

        :raises AttachDriverError: the database failed.
        """
        with _database():
            return next(
                (
                    attachment
                    for attachment in self._standing(parent)
                    if _is(attachment, container, ifname)
                ),
                None,
            )

    def listed(self, parent: model.Parent) -> list[model.Attachment]:
        """Return the attachments of a VM, by VLAN id, without those that are being removed.

        :raises AttachDriverError: the database failed.
        """
        with _database():
            return self._standing(parent)

    def detach(self, parent: model.Parent, container: str, ifname: str, *, gone: bool) -> None:
        """Remove an attachment; no effect if it does not exist.

        Also succeeds while the data plane does not answer: :meth:`tidy` then finishes the removal.

        :param gone: the guest has deleted its device.
        :raises AttachDriverError: the database failed.
        """
        rest = self._settings.rest if gone else self._settings.rest_unknown
        with _database():
            rows = self._loop.rows(parent.port_id)
            ids = [attachment.id for attachment in rows if _is(attachment, container, ifname)]
            if ids:
                self._attachments.leave(ids, rest, self._clock())
                self._remove(parent)

    def collect(
        self, parent: model.Parent, network: str, owner: str, valid: Set[tuple[str, str]]
    ) -> int:
        """Remove the attachments of one owner on one network that are not in *valid*.

        :param valid: pairs of container and interface name that stay.
        :returns: how many leave; none that is younger than :attr:`AttachmentLimits.gc_min_age`.
        :raises AttachDriverError: the database failed.
        """
        oldest = self._clock() - self._settings.gc_min_age
        with _database():
            ids = [
                attachment.id
                for attachment in self._standing(parent)
                if (attachment.network, attachment.owner) == (network, owner)
                and (attachment.container, attachment.ifname) not in valid
                and attachment.created <= oldest
            ]
            left = self._attachments.leave(ids, self._settings.rest_unknown, self._clock())
            if left:
                self._remove(parent)
            return left

    def status(self, parent: model.Parent) -> model.AttachmentStatus:
        """Return the numbers of a VM, and whether it can get attachments.

        A database that fails is a cause, and no error.
        """
        quota = self._settings.quota
        networks = tuple(self._networks[name] for name in sorted(self._networks))
        used = free = 0
        try:
            with _database():
                rows = self._loop.rows(parent.port_id)
                left = self._free(parent.port_id, rows)
            cause = self._driver.ready(parent)
            used, free = len(rows), left
        except errors.AttachError as error:
            cause = error.cause
        return model.AttachmentStatus(
            ready=not cause,
            cause=cause,
            used=used,
            free=free,
            quota=quota,
            networks=networks,
        )

    def resume(self) -> None:
        """At start, when the ports of this host are known: do the work of :meth:`tidy`.

        The absence of a VM begins anew: the ports were not observed meanwhile.

        :raises AttachDriverError: the database failed; the next :meth:`tidy` does the work.
        """
        with _database():
            self._tidy(restart=True)

    def tidy(self) -> None:
        """Now and then: compare rows and data plane, and finish the work that failed before.

        A data plane that does not answer is logged, and the rows wait.

        :raises AttachDriverError: the database failed.
        """
        with _database():
            self._tidy(restart=False)

    def everything(self) -> list[model.Attachment]:
        """Return all attachments of all hosts, in every state.

        :raises AttachDriverError: the database failed.
        """
        with _database():
            return [model.to_attachment(row) for row in self._attachments.everything()]

    # For operators

    def report(self) -> list[dict[str, Any]]:
        """Return all attachments of all hosts as JSON has them, by the VM's port and VLAN id.

        :raises AttachDriverError: the database failed.
        """
        attachments = self.everything()
        with _database():
            trunks = {row["parent"]: row for row in self._attachments.trunks()}
        return [
            model.to_report(attachment, trunks[attachment.parent])
            for attachment in attachments
            if attachment.parent in trunks
        ]

    def dismiss(self, attachment: str) -> bool:
        """Remove an attachment by its id, of any host; return whether there was one.

        The daemon of another host removes it when it tidies.

        :raises AttachDriverError: the database failed.
        """
        dismissed = next((each for each in self.everything() if each.id == attachment), None)
        if dismissed is None:
            return False
        with _database():
            self._attachments.leave([dismissed.id], self._settings.rest_unknown, self._clock())
            trunks = {row["parent"]: row for row in self._attachments.trunks()}
            if dismissed.host == self._host and dismissed.parent in trunks:
                self._remove(model.to_parent(trunks[dismissed.parent]))
        return True

    def tidy_now(self) -> dict[str, int]:
        """Do the work of :meth:`tidy`, and return numbers of this host's attachments.

        ``removed``: those that are gone now; ``waiting``: those that are not active or still leave.

        :raises AttachDriverError: the database failed.
        """
        before = {row.id for row in self._ours()}
        self.tidy()
        after = self._ours()
        waiting = [row for row in after if row.state is not model.AttachmentState.ACTIVE]
        return {"removed": len(before - {row.id for row in after}), "waiting": len(waiting)}

    def _ours(self) -> list[model.Attachment]:
        return [row for row in self.everything() if row.host == self._host]

    def _tidy(self, *, restart: bool) -> None:
        with self._resync_alone:
            self._resync.run(restart=restart)
        rows = self._ours()
        for state in model.AttachmentState:
            metrics.ATTACHMENTS.labels(state.value).set(sum(row.state is state for row in rows))
        trunks: dict[str, list[model.Attachment]] = {}
        for row in rows:
            trunks.setdefault(row.parent, []).append(row)
        most = min(self._settings.quota, len(self._settings.vids))
        left = (self._free(parent, some) for parent, some in trunks.items())
        metrics.VIDS_FREE.set(min(left, default=most))

    def _free(self, parent: str, rows: Sequence[model.Attachment]) -> int:
        """Return how many more attachments a VM can have.

        :param rows: those that it has.
        """
        vids = self._settings.vids
        taken = {row.vid for row in rows} | self._resync.foreign(parent)
        taken |= self._attachments.resting(parent, self._clock())
        free = len(vids) - sum(vid in vids for vid in taken)
        return max(min(self._settings.quota - len(rows), free), 0)

    def _network(self, name: str) -> model.Network:
        network = self._networks.get(name)
        if network is None:
            raise model.unknown_network(name)
        return network

    def _standing(self, parent: model.Parent) -> list[model.Attachment]:
        rows = self._loop.rows(parent.port_id)
        return [row for row in rows if row.state is not model.AttachmentState.LEAVING]

    def _works(self, attachment: model.Attachment) -> bool:
        return attachment.state is model.AttachmentState.ACTIVE and attachment.host == self._host

    def _clear(
        self,
        parent: model.Parent,
        wanted: model.AttachmentRequest,
        rows: Sequence[model.Attachment],
    ) -> model.Attachment | None:
        """Return the attachment of a request, after those in its way have left.

        :param rows: all attachments of the VM.
        :raises AttachDriverError: one that leaves is in the way, and cannot be removed now.
        """
        now = self._clock()
        # The guest has started again: its devices of before are gone.
        old = [
            row.id
            for row in rows
            if row.boot_id and wanted.boot_id and row.boot_id != wanted.boot_id
        ]
        previous = next((row for row in rows if _is(row, wanted.container, wanted.ifname)), None)
        left = self._attachments.leave(old, 0.0, now)
        if (
            previous is not None
            and previous.id not in old
            and previous.state is not model.AttachmentState.LEAVING
        ):
            _check_network(previous, wanted)
            if previous.vid not in wanted.avoid:
                if left:
                    self._remove(parent)
                return previous
            self._attachments.leave([previous.id], self._settings.rest_unknown, now)
        if left or previous is not None:
            self._remove(parent)
        if previous is not None and any(
            row.id == previous.id for row in self._loop.rows(parent.port_id)
        ):
            raise errors.AttachDriverError(cause="the previous attachment cannot be removed yet")
        return None

    def _remove(self, parent: model.Parent) -> None:
        """Remove the attachments of a VM that leave; :meth:`tidy` does what fails here."""
        try:
            self._loop.run(parent)
        except errors.AttachDriverError as error:
            LOG.warning("attachments of %s leave later: %s", parent.port_name, error.line)

    def _reserve(
        self, parent: model.Parent, network: model.Network, wanted: model.AttachmentRequest
    ) -> tuple[model.Attachment, bool]:
        """Return the committed row of a request, and whether it is new."""
        now = self._clock()
        avoid = dict.fromkeys(wanted.avoid, now + self._settings.rest_unknown)
        name = str(uuid.uuid4())
        fixed: dict[str, Any] = {
            "id": name,
            # Never a value from the guest: it would name the record of another guest.
            "instance_id": name if self._settings.instances else "",
            "trunk": parent.port_id,
            "host": self._host,
            "port_id": self._name(),
            "created": now,
            "changed": now,
        }
        foreign = self._resync.foreign(parent.port_id)
        result = self._attachments.reserve(
            model.to_trunk(parent, self._host),
            (wanted.container, wanted.ifname),
            rest={vid: end for vid, end in avoid.items() if vid in self._settings.vids},
            now=now,
            choose=lambda taken: self._choice.row(taken, network, wanted, foreign, fixed),
        )
        if isinstance(result, errors.AttachError):
            raise result
        row, created = result
        if row is None:
            raise errors.AttachDriverError(cause="other VMs take the same addresses")
        return model.to_attachment(row), created

    def _renewed(self, row: model.Attachment) -> model.Attachment:
        """Return a row whose data plane stands, with the name of its port."""
        if row.port_id and row.state is not model.AttachmentState.ACTIVE:
            return dataclasses.replace(
                row, state=model.AttachmentState.ACTIVE, changed=self._clock()
            )
        rows = self._loop.rows(row.parent)
        return next((current for current in rows if current.id == row.id), row)


def _is(attachment: model.Attachment, container: str, ifname: str) -> bool:
    return (attachment.container, attachment.ifname) == (container, ifname)


def _check_network(attachment: model.Attachment, wanted: model.AttachmentRequest) -> None:
    if attachment.network != wanted.network:
        raise errors.AttachConflictError(
            cause=f"{wanted.ifname} of this container is on the network {attachment.network!r}"
        )
