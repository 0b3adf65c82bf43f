"""A cache with a limit, for values that were read from a database or from another server."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

BYTES: Final = 32 * 1024 * 1024
"""Limit of a cache of records or answers, in bytes."""
ENTRY: Final = 2048
"""Approximate bytes of memory that such an entry needs beside its content."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key; the least recently used are removed first. Safe to use from several threads.

    :param limit: size that all entries may have together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._size = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return a value; None if it is not cached."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, *, size: int = 1) -> None:
        """Cache a value, unless it alone takes more than a quarter of the limit."""
        with self._lock:
            self._remove(key)
            if size <= max(self._limit // 4, 1):
                self._entries[key] = value, size
                self._size += size
            while self._size > self._limit:
                self._remove(next(iter(self._entries)))

    def drop(self, key: K) -> None:
        """Remove a value; do nothing if it is not cached."""
        with self._lock:
            self._remove(key)

    def _remove(self, key: K) -> None:
        if entry := self._entries.pop(key, None):
            self._size -= entry[1]
