"""The scopes of the admin API, as hollow-metadataservice names them.

An operation accepts several scopes, and any one of them is sufficient: a general one (``write``),
the operation's own (``delete``), or the one of the operation on one kind of record
(``metadata:delete:userdata``).
"""

from __future__ import annotations

from typing import Final, Literal

Operation = Literal["upsert", "read", "delete"]

PREFIX: Final = "metadata"
"""Name of the service, the prefix of scopes for one kind of record."""
KINDS: Final = ("metadata", "userdata")
OPERATIONS: Final[tuple[Operation, ...]] = ("upsert", "read", "delete")
_GENERAL: Final[dict[Operation, tuple[str, ...]]] = {
    "upsert": ("write", "create", "update"),
    "read": ("read",),
    "delete": ("write", "delete"),
}
_ACTIONS: Final[dict[Operation, tuple[str, ...]]] = {
    "upsert": ("create", "update"),
    "read": ("read",),
    "delete": ("delete",),
}


def accepted(operation: Operation, kind: str) -> tuple[str, ...]:
    """Return the scopes of which any one is sufficient, in hollow-metadataservice's order.

    :param kind: one of :data:`KINDS`; it does not come from the client.
    :raises KeyError: *operation* is unknown.
    """
    narrow = (f"{PREFIX}:{action}:{kind}" for action in _ACTIONS[operation])
    return (*_GENERAL[operation], *narrow)


def accepted_for_any(operation: Operation) -> tuple[str, ...]:
    """Return the scopes of which any one is sufficient for records of any kind."""
    return tuple(dict.fromkeys(name for kind in KINDS for name in accepted(operation, kind)))


def known() -> tuple[str, ...]:
    """Return every scope that an operation accepts, the general ones first."""
    each = (accepted(operation, kind) for operation in OPERATIONS for kind in KINDS)
    names = dict.fromkeys(name for names in each for name in names)
    return tuple(sorted(names, key=lambda name: ":" in name))
