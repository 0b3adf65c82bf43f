"""The interface of a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dfmeta import metrics
from dfmeta.model import GuestRequest, Identity, View


class Backend(Protocol):
    """Answers guests' requests."""

    name: metrics.Backend
    """Name in metrics and logs."""

    def open(
        self,
        request: GuestRequest,
        identity: Identity,
        *,
        deadline: float,
        goes_on: Callable[[str | None], bool],
    ) -> View:
        """Look up *identity* once for *request*, and read no more than the request needs.

        :param request: the guest's request. Trust: every part comes from the guest.
        :param deadline: monotonic seconds until which the backend may wait for other hosts and for
            the database, the answer included.
        :param goes_on: whether the request is to be answered, given :attr:`View.http_tokens`. A
            backend in another process then sends the answer along with the view.
        :raises BackendError: when the lookup fails. The request must not go on.
        """
        ...

    def remark(self, status: int) -> str:
        """Return a sentence for the operator if an answer with *status* shows a fault of the host
        or the backend.

        It names the things to check; the guest gets the answer unchanged. Empty without such a
        fault.
        """
        ...
