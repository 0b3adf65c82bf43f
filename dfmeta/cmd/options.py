"""What the daemon tells of the values that it runs with: ``GET /options``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from eventlet import tpool
from eventlet.semaphore import Semaphore
from oslo_config import cfg

from dfmeta.conf import values

Apart = Callable[..., Any]
"""Calls a function with its arguments where it keeps no guest waiting."""


class Options:
    """The daemon's values, as :func:`dfmeta.conf.values.document` tells them.

    Digests are made when they are first asked for after a start or a reload, and then kept: they
    take a tenth of a second of a processor each.

    :param conf: gives the configuration that is in force; a reload has it give another one.
    """

    def __init__(self, conf: Callable[[], cfg.ConfigOpts], *, apart: Apart = tpool.execute) -> None:
        self._conf = conf
        self._apart = apart
        self._digest = values.Digest()
        self._lock = Semaphore()
        self._told_of: cfg.ConfigOpts | None = None
        self._told: dict[str, Any] = {}

    def document(self) -> dict[str, Any]:
        """Tell the values; a second request waits for the digests of the first."""
        with self._lock:
            conf = self._conf()
            if conf is not self._told_of:
                make = partial(self._apart, self._digest.of)
                self._told = values.document(conf, self._digest, make=make)
                self._told_of = conf
            return self._told
