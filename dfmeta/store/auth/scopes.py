"""The scopes of the admin API, as hollow-metadataservice names them.

Whoever has one that an operation accepts may do it: a general one (``write``), the operation's
(``delete``), or the one of an operation on one kind of record (``metadata:delete:userdata``).
"""

from __future__ import annotations

from typing import Final, Literal

Operation = Literal["upsert", "read", "delete"]

PREFIX: Final = "metadata"
"""The service's name in front of the narrow ones."""
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
    """Return the scopes of which any one is enough, in the order of the original.

    :param kind: one of :data:`KINDS`; it is not the client's word.
    :raises KeyError: for another operation.
    """
    narrow = (f"{PREFIX}:{action}:{kind}" for action in _ACTIONS[operation])
    return (*_GENERAL[operation], *narrow)


def accepted_for_any(operation: Operation) -> tuple[str, ...]:
    """Return the scopes of which any one is enough for what is of no kind; see :func:`accepted`."""
    return tuple(dict.fromkeys(name for kind in KINDS for name in accepted(operation, kind)))


def known() -> tuple[str, ...]:
    """Return every scope that some operation accepts, the general ones first."""
    each = (accepted(operation, kind) for operation in OPERATIONS for kind in KINDS)
    names = dict.fromkeys(name for names in each for name in names)
    return tuple(sorted(names, key=lambda name: ":" in name))
