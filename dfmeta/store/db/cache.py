"""What was read of a database and still holds, within a bound on memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

BYTES: Final = 32 * 1024 * 1024
"""What is kept at most."""
ENTRY: Final = 2048
"""What an entry costs beside its content, bytes, about."""

T = TypeVar("T")


class Cache(Generic[T]):
    """Values by name, each with what it was read under; the least used give way.

    :param limit: bytes that all of them may take together.
    """

    def __init__(self, limit: int = BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[str, tuple[object, T, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> tuple[object, T] | None:
        """Return what a value was read under, and the value; None when it is not here."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        self._entries.move_to_end(name)
        return entry[:2]

    def put(self, name: str, under: object, value: T, *, size: int) -> None:
        """Keep a value, unless it alone is more than a quarter of all.

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
        """Forget a value; one that is not here is no error."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._size -= entry[2]

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
        self._size = 0
