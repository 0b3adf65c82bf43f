"""The embedded store as a backend of the proxy."""

from __future__ import annotations

from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.store.backend import StoreBackend


class LocalStore:
    """Answers from this host's store, and from the one that it asks for the rest."""

    name = "store"

    def __init__(self, store: StoreBackend) -> None:
        self._store = store

    def answer(self, request: GuestRequest, identity: Identity, *, deadline: float) -> Answer:
        """Answer *request*; see :class:`~dfmeta.proxy.backends.Backend`."""
        del deadline
        return self._store.answer(request, identity)

    def http_tokens(self, identity: Identity, path: str) -> str | None:
        """What its record says of tokens; see :class:`~dfmeta.proxy.backends.Backend`."""
        return self._store.http_tokens(identity, path)

    def remark(self, answer: Answer) -> str:
        """Nothing: what this host's store answers is no sign of a fault."""
        del answer
        return ""
