"""The options of the store's admin API."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

from dfmeta.conf import store

GROUP: Final = store.GROUP
MAX_BODY_LIMITS: Final = (1024, 64 << 20)
"""Bytes. Less would not hold a document; more would keep the daemon busy for seconds."""

OPTS: Final = [
    cfg.IntOpt(
        "max_body",
        default=1048576,
        min=MAX_BODY_LIMITS[0],
        max=MAX_BODY_LIMITS[1],
        help="Bytes that a request to the admin API may bring, a document or user-data with all "
        "that is around it. A larger one is answered 413, and nothing of it is kept in memory.",
    ),
]
