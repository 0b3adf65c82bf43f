"""Rate limits of a guest's requests, group ``[metadata_rate_limiting]``.

The options are Neutron's, and dfmeta adds delay_max and tolerated_queries.
"""

from __future__ import annotations

from typing import Final

from oslo_config import cfg, types

from dfmeta.conf.kinds import Several

GROUP: Final = cfg.OptGroup(
    name="metadata_rate_limiting",
    title="Rates of requests",
    help="Limits of the number of requests of a guest's port, which do not depend on the addresses "
    "that it uses. The names and defaults are Neutron's. dfmeta delays requests over the rates, "
    "and refuses them (429) only when they continue.",
)
_LARGEST: Final = 1_000_000_000
"""Larger than any useful value, and still exact as a float."""

OPTS: Final = [
    cfg.BoolOpt(
        "rate_limit_enabled",
        default=False,
        mutable=True,
        help="Limit guests' requests to the rates below.",
    ),
    cfg.Opt(
        "ip_versions",
        type=Several(types.Integer(choices=[(4, "IPv4"), (6, "IPv6")])),
        default=[4, 6],
        mutable=True,
        help="IP versions of the requests that are counted and limited: 4, 6, or both with a comma "
        "between them. With both, a port's requests over IPv4 and IPv6 are counted together. "
        "Neutron's default is 4; with it, a guest avoids the limits over IPv6.",
    ),
    cfg.IntOpt(
        "base_window_duration",
        default=10,
        min=1,
        max=_LARGEST,
        mutable=True,
        help="Length of the base window in seconds.",
    ),
    cfg.IntOpt(
        "base_query_rate_limit",
        default=10,
        min=1,
        max=_LARGEST,
        mutable=True,
        help="Number of requests that a port may send in the base window.",
    ),
    cfg.IntOpt(
        "burst_window_duration",
        default=10,
        min=1,
        max=_LARGEST,
        mutable=True,
        help="Length of the burst window in seconds. A request has to be within both windows.",
    ),
    cfg.IntOpt(
        "burst_query_rate_limit",
        default=10,
        min=1,
        max=_LARGEST,
        mutable=True,
        help="Number of requests that a port may send in the burst window.",
    ),
    cfg.FloatOpt(
        "delay_max",
        default=2.0,
        min=0,
        max=8,
        mutable=True,
        help="Largest delay of a request over the rates in seconds; the delay is shorter when the "
        "rates allow the request earlier. 0: no request is delayed. cloud-init gives up after 10 "
        "seconds, which include hold_timeout.",
    ),
    cfg.IntOpt(
        "tolerated_queries",
        default=32,
        min=0,
        max=_LARGEST,
        mutable=True,
        help="Number of requests above the rates that a port may send, each delayed, before the "
        "next is refused with 429. 0: the first request that a delay of delay_max does not bring "
        "within the rates is refused. cloud-init sends 28 requests and does not repeat those that "
        "are refused.",
    ),
]
