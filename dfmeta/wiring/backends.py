"""The backend, the settings of the application and the limits of guests, from the configuration."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from oslo_config import cfg

from dfmeta.conf import limits as limit_options
from dfmeta.conf import store as store_options
from dfmeta.http.http1 import HeadLimits
from dfmeta.http.limits import Limits
from dfmeta.proxy import rate, tokens
from dfmeta.proxy.application import AppSettings, Backend
from dfmeta.proxy.backends.network_data import Completing, Subports

if TYPE_CHECKING:
    from dfmeta.store.guest import dialects
    from dfmeta.store.guest.backend import Containers


def make_backend(conf: cfg.ConfigOpts, containers: Containers | None = None) -> Backend:
    """Build the backend.

    :param containers: returns the records of containers; None: there are no attachments.
    :raises StoreError: when the store cannot be opened.
    """
    # Each is imported only where it is used: the import of SQLAlchemy takes a third of a second.
    if conf.df_metadata.backend == "nova":
        from dfmeta.proxy.backends.nova import NovaBackend
        from dfmeta.wiring.services import make_nova_settings

        return NovaBackend(make_nova_settings(conf))
    from dfmeta.store.guest.backend import StoreBackend
    from dfmeta.wiring.store import open_puller, open_repository

    return StoreBackend(
        open_repository(conf.store.connection),
        make_answer_settings(conf),
        reader=open_puller(conf),
        host=socket.gethostname() if conf.store.defaults else None,
        containers=containers or (lambda _instance_id: None),
    )


def with_subports(conf: cfg.ConfigOpts, backend: Backend, subports: Subports) -> Backend:
    """Return the backend, or one that completes its network_data.json.

    :param subports: returns the VLANs of a VM.
    """
    return Completing(backend, subports) if conf.df_metadata.network_data_subports else backend


def make_answer_settings(conf: cfg.ConfigOpts) -> dialects.AnswerSettings:
    """Return the settings of the store's answers."""
    from dfmeta.store.guest import dialects

    return dialects.AnswerSettings(
        ec2_tree=conf.store.ec2_tree,
        templates={name: conf.store[name] for name in store_options.TEMPLATES},
    )


def make_app_settings(conf: cfg.ConfigOpts) -> AppSettings:
    """Return the settings of the WSGI application."""
    return AppSettings(
        timeout_answer=conf.df_metadata.timeout_answer,
        needs_project=conf.df_metadata.backend == "nova",
        refuse_forwarded=conf.df_metadata.refuse_forwarded,
        http_tokens=tokens.TokenMode(conf.store.http_tokens),
        http_tokens_of={
            instance: tokens.TokenMode(mode)
            for instance, mode in store_options.http_tokens_of(conf).items()
        },
    )


def make_limits(conf: cfg.ConfigOpts) -> Limits:
    """Return the limits of ``[guest_limits]``."""
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


def worker_share(limits: Limits, workers: int) -> Limits:
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


def make_rates(conf: cfg.ConfigOpts) -> rate.RateSettings:
    """Return the rates of ``[metadata_rate_limiting]``."""
    group = conf[limit_options.RATE_GROUP.name]
    return rate.RateSettings(
        enabled=group.rate_limit_enabled,
        ip_versions=frozenset(group.ip_versions),
        base=rate.Window(group.base_query_rate_limit, group.base_window_duration),
        burst=rate.Window(group.burst_query_rate_limit, group.burst_window_duration),
        delay_max=group.delay_max,
        tolerated=group.tolerated_queries,
    )
