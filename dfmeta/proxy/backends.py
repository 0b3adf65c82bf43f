"""What the proxy needs of a backend."""

from __future__ import annotations

from typing import Protocol

from dfmeta.model import Answer, GuestRequest, Identity


class Backend(Protocol):
    """Answers guests' requests."""

    name: str
    """For metrics and logs."""

    def answer(self, request: GuestRequest, identity: Identity, *, deadline: float) -> Answer:
        """Answer *request* as *identity*'s.

        :param deadline: monotonic seconds until which it may wait for whoever it asks.
        :raises BackendError: when there is no answer to pass on;
            :class:`~dfmeta.exceptions.BackendTimeoutError` when a request that must not be
            repeated was sent and not answered.
        """
        ...

    def http_tokens(self, identity: Identity, path: str) -> str | None:
        """Say how *identity* has to ask, as far as the backend knows; asked for each request.

        :param path: the request's, origin-form, the guest's words: no more is looked up than it
            takes to answer it.
        :returns: a :class:`~dfmeta.proxy.tokens.TokenMode`'s value; "" where the backend leaves it
            to the configuration; None when it does not know *identity*, or only by a claim that is
            wrong: there is nothing then for a token to open.
        :raises BackendError: when it cannot say. The request is not to go on.
        """
        ...

    def remark(self, answer: Answer) -> str:
        """One sentence of what an operator should look at when *answer*, which passes to the guest
        as it is, tells of something wrong on the host or at the backend; empty otherwise."""
        ...
