"""The engine of attachments: from a request to a data plane that stands, and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set

from dfmeta.attach.model import Attachment, Driver, Network, Parent, Wanted
from dfmeta.attach.settings import Settings, Status
from dfmeta.store.db.attachments import Attachments

__all__ = ["Engine", "Settings", "Status"]


class Engine:
    """Gives the containers of this host's VMs their attachments.

    All methods may block, and may be called from several green threads at once.

    :param attachments: the tables; other hosts may use them too.
    :param driver: makes attachments real.
    :param networks: the operator's networks, by name; may change while the engine runs.
    :param settings: limits.
    :param host: name of this host, unique among the hosts that share the tables.
    :param clock: seconds of Unix time.
    :param present: tells whether the port of a VM (:attr:`Parent.port_id`) is on this host now.
    """

    def __init__(
        self,
        attachments: Attachments,
        driver: Driver,
        networks: Mapping[str, Network],
        settings: Settings,
        *,
        host: str,
        clock: Callable[[], float] = time.time,
        present: Callable[[str], bool] = lambda port_id: True,
    ) -> None:
        raise NotImplementedError

    def attach(self, parent: Parent, wanted: Wanted) -> tuple[Attachment, bool]:
        """Return the attachment of a container's interface once its data plane stands.

        A repeated request returns the same attachment.

        :returns: the attachment, and whether this call has created it.
        :raises AttachConflictError: the interface is on another network.
        :raises AttachNetworkError: the network is unknown, or lacks the requested address or MAC.
        :raises AttachQuotaError: the quota or the rate of the VM is used up.
        :raises AttachFullError: no VLAN id or no address is free.
        :raises AttachDriverError: the data plane or the database failed; the VM may try again.
        """
        raise NotImplementedError

    def get(self, parent: Parent, container: str, ifname: str) -> Attachment | None:
        """Return an attachment of a VM; None if it does not exist or is being removed.

        :raises AttachDriverError: the database failed.
        """
        raise NotImplementedError

    def listed(self, parent: Parent) -> list[Attachment]:
        """Return the attachments of a VM, by VLAN id, without those that are being removed.

        :raises AttachDriverError: the database failed.
        """
        raise NotImplementedError

    def detach(self, parent: Parent, container: str, ifname: str, *, gone: bool) -> None:
        """Remove an attachment; no effect if it does not exist.

        Also succeeds while the data plane does not answer: :meth:`tidy` then finishes the removal.

        :param gone: the guest has deleted its device.
        :raises AttachDriverError: the database failed.
        """
        raise NotImplementedError

    def collect(self, parent: Parent, network: str, owner: str, valid: Set[tuple[str, str]]) -> int:
        """Remove the attachments of one owner on one network that are not in *valid*.

        :param valid: pairs of container and interface name that stay.
        :returns: how many leave; none that is younger than :attr:`Settings.gc_min_age`.
        :raises AttachDriverError: the database failed.
        """
        raise NotImplementedError

    def status(self, parent: Parent) -> Status:
        """Return the numbers of a VM, and whether it can get attachments.

        A database that fails is a cause, and no error.
        """
        raise NotImplementedError

    def resume(self) -> None:
        """At start: bring each row of this host to its end, as :meth:`tidy` does at once."""
        raise NotImplementedError

    def tidy(self) -> None:
        """Now and then: compare rows and data plane, and finish the work that failed before."""
        raise NotImplementedError

    def everything(self) -> list[Attachment]:
        """Return all attachments of all hosts, in every state, for operators.

        :raises AttachDriverError: the database failed.
        """
        raise NotImplementedError
