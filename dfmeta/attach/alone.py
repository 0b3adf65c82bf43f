"""Lets one caller of each trunk or VM go on at a time, within this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from dfmeta.errors import AttachDriverError


class Alone:
    """A lock for each key that is in use.

    :param others: names in the error what the caller has waited for.
    """

    def __init__(self, others: str) -> None:
        self._others = others
        self._locks: dict[str, tuple[threading.Lock, int]] = {}
        self._mutex = threading.Lock()

    @contextlib.contextmanager
    def by(self, key: str, patience: float) -> Iterator[None]:
        """Exclude other callers with the same key.

        :param patience: seconds to wait for them.
        :raises AttachDriverError: they take longer.
        """
        with self._mutex:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        try:
            if not lock.acquire(timeout=patience):
                raise AttachDriverError(cause=f"{self._others} takes longer than {patience:g} s")
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._mutex:
                lock, users = self._locks.pop(key)
                if users > 1:
                    self._locks[key] = (lock, users - 1)
