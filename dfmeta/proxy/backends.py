"""What the proxy needs of a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dfmeta import metrics
from dfmeta.model import Answer, GuestRequest, Identity, View


class Backend(Protocol):
    """Answers guests' requests."""

    name: metrics.Backend
    """For metrics and logs."""

    def open(
        self,
        request: GuestRequest,
        identity: Identity,
        *,
        deadline: float,
        goes_on: Callable[[str | None], bool],
    ) -> View:
        """Look up what is known of *identity*, once for *request*, and no more than that takes.

        :param request: the guest's words.
        :param deadline: monotonic seconds until which it may wait for other hosts and for the
            database, the answer included.
        :param goes_on: whether the request is to be answered where :attr:`View.http_tokens` is
            that. A backend that is far away answers at once then.
        :raises BackendError: when it cannot say. The request is not to go on.
        """
        ...

    def remark(self, answer: Answer) -> str:
        """One sentence of what an operator should look at when *answer*, which passes to the guest
        as it is, tells of something wrong on the host or at the backend; empty otherwise."""
        ...
