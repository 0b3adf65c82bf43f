"""Limits of a VM's requests: one call at a time, and new attachments in a second."""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from dfmeta.errors import AttachDriverError
from dfmeta.runtime.throttle import PORTS


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


class Rate:
    """A bucket of tokens for each VM.

    :param rate: tokens in a second, and the most that a bucket holds; at least 1 fits.
    :param clock: seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._most = rate, max(rate, 1.0)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, parent: str) -> bool:
        """Take a token of a VM; False: it has none at the moment."""
        now = self._clock()
        tokens, since = self._buckets.pop(parent, (self._most, now))
        tokens = min(tokens + max(now - since, 0.0) * self._rate, self._most)
        taken = tokens >= 1
        self._buckets[parent] = (tokens - taken, now)
        if len(self._buckets) > PORTS:
            self._buckets.popitem(last=False)
        return taken
