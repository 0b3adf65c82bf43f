"""Construction of the limits of a guest's use of the proxy from the configuration."""

from __future__ import annotations

from dataclasses import replace

from oslo_config import cfg

from dfmeta.conf import limits as limit_options
from dfmeta.conf import rate as rate_options
from dfmeta.http.http1 import HeadLimits
from dfmeta.http.limits import Limits
from dfmeta.proxy.rate import RateSettings, Window


def limits(conf: cfg.ConfigOpts) -> Limits:
    """Read ``[guest_limits]``."""
    group = conf[limit_options.GROUP.name]
    return Limits(
        head=HeadLimits(
            request_line=group.request_line_max,
            header=group.header_max,
            lines=group.header_lines_max,
        ),
        header_timeout=group.header_timeout,
        body=group.body_max,
        body_timeout=group.body_timeout,
        keepalive_timeout=group.keepalive_timeout,
        send_timeout=group.send_timeout,
        connections_per_port=group.connections_per_port,
        waiting_per_port=group.waiting_per_port,
        connections=group.connections,
        requests_per_port=group.requests_per_port,
    )


def rates(conf: cfg.ConfigOpts) -> RateSettings:
    """Read ``[metadata_rate_limiting]``."""
    group = conf[rate_options.GROUP.name]
    return RateSettings(
        enabled=group.rate_limit_enabled,
        ip_versions=frozenset(group.ip_versions),
        base=Window(group.base_query_rate_limit, group.base_window_duration),
        burst=Window(group.burst_query_rate_limit, group.burst_window_duration),
        delay_max=group.delay_max,
        tolerated=group.tolerated_queries,
    )


def share(limits: Limits, workers: int) -> Limits:
    """Return the limits of one of *workers* workers.

    The kernel distributes connections, and may give all connections of a port to one worker. So a
    worker serves only its share of them at a time, but accepts as many to wait or to be served as
    the daemon alone would.
    """
    served = -(-limits.connections_per_port // max(workers, 1))
    return replace(
        limits,
        connections_per_port=served,
        waiting_per_port=limits.waiting_per_port + limits.connections_per_port - served,
        requests_per_port=-(-limits.requests_per_port // max(workers, 1)),
    )
