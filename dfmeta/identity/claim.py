"""The claim of a connection: the guest that it was accepted for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from dfmeta.model import Caller, Endpoint, GuestAddress, Identity, PeerAddress


@dataclass(frozen=True, slots=True)
class Claim:
    """The guest that a connection was accepted for.

    Valid while :meth:`~dfmeta.identity.registry.Registry.holds` is true.
    """

    identity: Identity
    caller: Caller
    slot: int
    epoch: int
    address: GuestAddress | PeerAddress

    @property
    def sharer(self) -> Hashable:
        """The virtual machine whose share the connection counts to; without one, the caller."""
        return self.identity.vm or self.caller

    @property
    def endpoint(self) -> Endpoint:
        """Endpoint of the caller.

        :raises TypeError: if the caller is identified by its address only.
        """
        if not isinstance(self.caller, Endpoint):
            raise TypeError(f"{self.caller} is not at a port")
        return self.caller
