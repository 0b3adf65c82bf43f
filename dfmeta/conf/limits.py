"""The options that bound what a guest may take of the proxy."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup(
    name="guest_limits",
    title="What a guest may take of the proxy",
    help="Bounds on requests and connections. A guest that reaches one is refused, waits or loses "
    "its connection, and no other guest notices; dfmeta_limits_hit_total counts how often.",
)

OPTS: Final = [
    cfg.IntOpt(
        "request_line_max",
        default=2048,
        min=256,
        max=65536,
        help="Bytes of a request line. A longer one is answered with 414.",
    ),
    cfg.IntOpt(
        "header_max",
        default=8192,
        min=512,
        max=65536,
        help="Bytes of a request's header. A longer one is answered with 431.",
    ),
    cfg.IntOpt(
        "header_lines_max",
        default=64,
        min=8,
        max=1024,
        help="Lines of a request's header. More of them are answered with 431.",
    ),
    cfg.FloatOpt(
        "header_timeout",
        default=10,
        min=0.1,
        max=300,
        help="Seconds within which a request's line and header have to come whole. After that the "
        "connection is closed, with a 408 if something of the request had come.",
    ),
    cfg.IntOpt(
        "body_max",
        default=4096,
        min=1020,
        max=1048576,
        help="Bytes of a guest's POST. A longer one is answered with 413, and so is one of more "
        "than 64 chunks, or of more than one for each 64 of these bytes. Nova takes 1,020 for a "
        "password.",
    ),
    cfg.FloatOpt(
        "body_timeout",
        default=10,
        min=0.1,
        max=300,
        help="Seconds within which a body has to come whole; else the answer is 408.",
    ),
    cfg.FloatOpt(
        "keepalive_timeout",
        default=15,
        min=0,
        max=3600,
        help="Seconds that a connection is kept for its guest's next request. 0 closes each one "
        "after its answer.",
    ),
    cfg.FloatOpt(
        "send_timeout",
        default=30,
        min=0.1,
        max=3600,
        help="Seconds within which a guest has to have read an answer. After that the connection "
        "is reset.",
    ),
    cfg.IntOpt(
        "connections_per_port",
        default=16,
        min=1,
        max=65536,
        help="Connections of one port that are served at a time. cloud-init has one. When there "
        "are more, the port's longest idle one is closed, or the new one waits.",
    ),
    cfg.IntOpt(
        "waiting_per_port",
        default=48,
        min=0,
        max=65536,
        help="Connections of one port that may wait until one of those above has ended. Further "
        "ones are reset. 0: none may wait.",
    ),
    cfg.IntOpt(
        "connections",
        default=4096,
        min=16,
        max=1048576,
        help="Connections of all guests together, those that wait included, in the daemon or in "
        "each of its workers. When there are more, the longest idle one is closed; when none is "
        "idle, the port with the most that wait loses one of those.",
    ),
    cfg.IntOpt(
        "requests_per_port",
        default=8,
        min=1,
        max=65536,
        help="Requests of one port that are with the backend, or whose answer is still being "
        "read, at a time. Further ones wait, within hold_timeout. A guest that does not read "
        "its answers has that many of them kept in memory.",
    ),
]
