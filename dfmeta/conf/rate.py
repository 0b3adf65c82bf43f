"""How fast a guest may ask: Neutron's own options, group ``[metadata_rate_limiting]``, and two."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg, types

from dfmeta.conf.kinds import Several

GROUP: Final = cfg.OptGroup(
    name="metadata_rate_limiting",
    title="Rates of requests",
    help="How many requests a guest's port may make, whatever addresses it uses. The names and "
    "defaults are Neutron's; what is over the rates is delayed here, and refused (429) only when "
    "it goes on.",
)
_LARGEST: Final = 1_000_000_000
"""More than anybody means, and still exact as a float."""

OPTS: Final = [
    cfg.BoolOpt(
        "rate_limit_enabled",
        default=False,
        help="Hold guests to the rates below.",
    ),
    cfg.Opt(
        "ip_versions",
        type=Several(types.Integer(choices=[(4, "IPv4"), (6, "IPv6")])),
        default=[4],
        help="IP versions whose requests are counted and limited: 4, 6, or both with a comma "
        "between them. With both, a port's requests over either count together.",
    ),
    cfg.IntOpt(
        "base_window_duration",
        default=10,
        min=1,
        max=_LARGEST,
        help="Seconds of the base window.",
    ),
    cfg.IntOpt(
        "base_query_rate_limit",
        default=10,
        min=1,
        max=_LARGEST,
        help="Requests that a port may make in the base window.",
    ),
    cfg.IntOpt(
        "burst_window_duration",
        default=10,
        min=1,
        max=_LARGEST,
        help="Seconds of the burst window. A request has to be within both windows.",
    ),
    cfg.IntOpt(
        "burst_query_rate_limit",
        default=10,
        min=1,
        max=_LARGEST,
        help="Requests that a port may make in the burst window.",
    ),
    cfg.FloatOpt(
        "delay_max",
        default=2.0,
        min=0,
        max=8,
        help="Seconds that a request over the rates is delayed at most; it is delayed for less "
        "when the rates allow it earlier. 0: none is delayed. cloud-init gives up after 10 "
        "seconds, hold_timeout included.",
    ),
    cfg.IntOpt(
        "tolerated_queries",
        default=32,
        min=0,
        max=_LARGEST,
        help="How many requests above the rates a port may have taken, each delayed, before the "
        "next is refused with 429. 0: the first that delay_max does not bring within the rates is. "
        "cloud-init makes 28 requests and does without what is refused.",
    ),
]
