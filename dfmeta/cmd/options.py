"""Serves the option values that the daemon runs with: ``GET /options``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from oslo_config import cfg

from dfmeta.conf import values
from dfmeta.runtime.threads import Semaphore, call_in_thread

Apart = Callable[..., Any]
"""Calls a function with its arguments outside the hub, so that no guest waits for it."""


class Options:
    """The daemon's option values in the form of :func:`dfmeta.conf.values.document`.

    Digests are computed at the first request after a start or a reload, and then kept: each takes a
    tenth of a second of CPU time.

    :param conf: returns the configuration in force; after a reload it returns another one.
    """

    def __init__(
        self, conf: Callable[[], cfg.ConfigOpts], *, apart: Apart = call_in_thread
    ) -> None:
        self._conf = conf
        self._apart = apart
        self._digest = values.Digest()
        self._lock = Semaphore()
        self._told_of: cfg.ConfigOpts | None = None
        self._told: dict[str, Any] = {}

    def document(self) -> dict[str, Any]:
        """Return the values; a second request waits for the digests of the first."""
        with self._lock:
            conf = self._conf()
            if conf is not self._told_of:
                make = partial(self._apart, self._digest.of)
                self._told = values.document(conf, self._digest, make=make)
                self._told_of = conf
            return self._told
