"""The options of the store's admin API."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

from dfmeta.conf import store

GROUP: Final = store.GROUP
MAX_BODY_LIMITS: Final = (1024, 64 << 20)
"""Bytes. A document does not fit into less; more would keep the daemon busy for seconds."""

OPTS: Final = [
    cfg.IntOpt(
        "max_body",
        default=1048576,
        min=MAX_BODY_LIMITS[0],
        max=MAX_BODY_LIMITS[1],
        help="Largest size of the body of a request to the admin API in bytes: a document or "
        "user-data with its envelope. A larger body is answered with 413 and not kept in memory.",
    ),
]
