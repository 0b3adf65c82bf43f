"""A cache of values that were read from a database, with a limit on memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

BYTES: Final = 32 * 1024 * 1024
"""Default limit of the cache, in bytes."""
ENTRY: Final = 2048
"""Approximate bytes of memory that an entry needs beside its content."""

T = TypeVar("T")


class Cache(Generic[T]):
    """Values by name, each with the version at which it was read.

    The least recently used values are removed first.

    :param limit: bytes that all entries may take together.
    """

    def __init__(self, limit: int = BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[str, tuple[object, T, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> tuple[object, T] | None:
        """Return the version at which a value was read, and the value; None if it is not cached."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        self._entries.move_to_end(name)
        return entry[:2]

    def put(self, name: str, under: object, value: T, *, size: int) -> None:
        """Cache a value, unless it alone takes more than a quarter of the limit.

        :param under: the version at which it was read.
        :param size: bytes of its content.
        """
        self.drop(name)
        size += ENTRY
        if size > self._limit // 4:
            return
        self._entries[name] = under, value, size
        self._size += size
        while self._size > self._limit:
            _name, (_under, _value, freed) = self._entries.popitem(last=False)
            self._size -= freed

    def drop(self, name: str) -> None:
        """Remove a value; do nothing if it is not cached."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._size -= entry[2]

    def clear(self) -> None:
        """Remove all values."""
        self._entries.clear()
        self._size = 0
