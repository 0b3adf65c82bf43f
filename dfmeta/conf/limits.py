"""Options that limit a guest's use of the proxy: ``[guest_limits]``, ``[metadata_rate_limiting]``.

The options of the latter are Neutron's, and dfmeta adds delay_max and tolerated_queries.
"""

from typing import Final

from oslo_config import cfg, types

from dfmeta.conf.kinds import Several, reloaded

_LARGEST: Final = 1_000_000_000
"""Larger than any useful value, and still exact as a float."""
GROUP: Final = cfg.OptGroup(
    name="guest_limits",
    title="Limits of a guest's use of the proxy",
    help="Limits of requests and connections. A guest that reaches a limit is refused, waits or "
    "loses its connection; other guests are not affected. dfmeta_limits_hit_total counts how "
    "often limits are reached.",
)

OPTS: Final = reloaded(
    cfg.IntOpt(
        "request_line_max",
        default=2048,
        min=256,
        max=65536,
        help="Largest size of a request line in bytes. A longer one is answered with 414.",
    ),
    cfg.IntOpt(
        "header_max",
        default=8192,
        min=512,
        max=65536,
        help="Largest size of a request's header in bytes. A longer one is answered with 431.",
    ),
    cfg.IntOpt(
        "header_lines_max",
        default=64,
        min=8,
        max=1024,
        help="Largest number of lines of a request's header. A header with more lines is answered "
        "with 431.",
    ),
    cfg.FloatOpt(
        "header_timeout",
        default=10,
        min=0.1,
        max=300,
        help="Seconds within which a request's line and header have to be complete. After that the "
        "connection is closed, with a 408 if a part of the request was received.",
    ),
    cfg.IntOpt(
        "body_max",
        default=4096,
        min=1020,
        max=1048576,
        help="Largest size of the body of a guest's POST in bytes. A longer body is answered with "
        "413, and so is a body of more than 64 chunks, or of more than one chunk for each 64 of "
        "these bytes. Nova accepts passwords of up to 1,020 bytes.",
    ),
    cfg.FloatOpt(
        "body_timeout",
        default=10,
        min=0.1,
        max=300,
        help="Seconds within which a body has to be complete; otherwise the answer is 408.",
    ),
    cfg.FloatOpt(
        "keepalive_timeout",
        default=15,
        min=0,
        max=3600,
        help="Seconds that a connection is kept open for the next request. 0: each connection is "
        "closed after its answer.",
    ),
    cfg.FloatOpt(
        "send_timeout",
        default=30,
        min=0.1,
        max=3600,
        help="Seconds that a guest may read nothing of an answer, and that it has in addition to "
        "a second for each 1024 bytes. After that the connection is reset.",
    ),
    cfg.IntOpt(
        "connections_per_port",
        default=16,
        min=1,
        max=65536,
        help="Number of connections of one port that are served at a time. cloud-init uses one. "
        "When there are more, the port's longest idle connection is closed; if none is idle, the "
        "new one waits.",
    ),
    cfg.IntOpt(
        "waiting_per_port",
        default=48,
        min=0,
        max=65536,
        help="Number of connections of one port that may wait until one of connections_per_port "
        "has ended. Further connections are reset. 0: no connection may wait.",
    ),
    cfg.IntOpt(
        "connections",
        default=4096,
        min=16,
        max=1048576,
        help="Number of connections of all guests together, including those that wait, in the "
        "daemon or in each of its workers. When there are more, the longest idle connection is "
        "closed; if none is idle, the port with the most waiting connections loses one of them.",
    ),
    cfg.IntOpt(
        "requests_per_port",
        default=8,
        min=1,
        max=65536,
        help="Number of requests of one port, at a time, that the backend is working on or for "
        "which the guest is still reading the answer. Further requests wait, within hold_timeout. "
        "Up to this many answers are kept in memory for a guest that does not read them.",
    ),
)

RATE_GROUP: Final = cfg.OptGroup(
    name="metadata_rate_limiting",
    title="Rates of requests",
    help="Limits of the number of requests of a guest's port, which do not depend on the addresses "
    "that it uses. The names and defaults are Neutron's. dfmeta delays requests over the rates, "
    "and refuses them (429) only when they continue.",
)

RATE_OPTS: Final = reloaded(
    cfg.BoolOpt(
        "rate_limit_enabled",
        default=False,
        help="Limit guests' requests to the rates below.",
    ),
    cfg.Opt(
        "ip_versions",
        type=Several(types.Integer(choices=[(4, "IPv4"), (6, "IPv6")])),
        default=[4, 6],
        help="IP versions of the requests that are counted and limited: 4, 6, or both with a comma "
        "between them. With both, a port's requests over IPv4 and IPv6 are counted together. "
        "Neutron's default is 4; with it, a guest avoids the limits over IPv6.",
    ),
    cfg.IntOpt(
        "base_window_duration",
        default=10,
        min=1,
        max=_LARGEST,
        help="Length of the base window in seconds.",
    ),
    cfg.IntOpt(
        "base_query_rate_limit",
        default=10,
        min=1,
        max=_LARGEST,
        help="Number of requests that a port may send in the base window.",
    ),
    cfg.IntOpt(
        "burst_window_duration",
        default=10,
        min=1,
        max=_LARGEST,
        help="Length of the burst window in seconds. A request has to be within both windows.",
    ),
    cfg.IntOpt(
        "burst_query_rate_limit",
        default=10,
        min=1,
        max=_LARGEST,
        help="Number of requests that a port may send in the burst window.",
    ),
    cfg.FloatOpt(
        "delay_max",
        default=2.0,
        min=0,
        max=8,
        help="Largest delay of a request over the rates in seconds; the delay is shorter when the "
        "rates allow the request earlier. 0: no request is delayed. cloud-init gives up after 10 "
        "seconds, which include hold_timeout.",
    ),
    cfg.IntOpt(
        "tolerated_queries",
        default=32,
        min=0,
        max=_LARGEST,
        help="Number of requests above the rates that a port may send, each delayed, before the "
        "next is refused with 429. 0: the first request that a delay of delay_max does not bring "
        "within the rates is refused. cloud-init sends 28 requests and does not repeat those that "
        "are refused.",
    ),
)
