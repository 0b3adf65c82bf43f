"""From the configuration to the store's admin API, on the admin listener."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from eventlet import tpool
from oslo_config import cfg

from dfmeta.cmd import auth
from dfmeta.conf import store as store_options
from dfmeta.store.admin import AdminApi, Refresh, later
from dfmeta.store.repository import Repository


class StoreApi:
    """The API, there from the listener's first moment: until the store is open it says "not now".

    :raises ConfigError: when other hosts could reach it and no token is asked for, or when a token
        file cannot be used.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._authorizer = auth.build(conf)
        if self._authorizer is None:
            auth.check_open(conf.df_metadata.admin_listen)
        self._api: AdminApi | None = None

    def open(self, repository: Repository, *, refresh: Refresh | None = None) -> None:
        """Let it answer from a store.

        :param refresh: see :class:`dfmeta.store.admin.AdminApi`.
        """
        group = self._conf.store
        self._api = AdminApi(
            repository,
            authorizer=self._authorizer,
            templates={name: group[name] for name in store_options.TEMPLATES},
            max_body=group.max_body,
            refresh=refresh,
            aside=tpool.execute,
        )

    def handles(self, path: str) -> bool:
        """See :class:`dfmeta.proxy.admin.Api`."""
        return AdminApi.handles(path)

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request (PEP 3333)."""
        return (self._api or later)(environ, start_response)
