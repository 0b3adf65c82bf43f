"""Construction of the store's admin API, on the admin listener, from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import webob
from oslo_config import cfg

from dfmeta.admin.browsers import cross_origin_reason, own_names
from dfmeta.conf import auth as auth_options
from dfmeta.runtime.threads import call_in_thread
from dfmeta.store.api.admin import AdminApi, Gate, later
from dfmeta.store.auth.caller import Authorizer
from dfmeta.store.db.repository import Repository
from dfmeta.wiring import auth, database

_AUTH: Final = tuple(option.dest for option in auth_options.OPTS)


class StoreApi:
    """The API, available as soon as the listener is; it answers 503 until the store is open.

    :raises ConfigError: when other hosts could reach it and no token is required, or when a token
        file cannot be used.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._authorizer = _authorizer(conf)
        self.repository: Repository | None = None
        """The store; None until it is open."""
        self._api: AdminApi | None = None

    def open(self, repository: Repository) -> None:
        """Start to answer from a store, and from the upstream store if one is configured.

        :raises ConfigError: when the client of the upstream store cannot be built.
        """
        self.repository = repository
        self._api = _api(self._conf, self._authorizer, repository)

    def prepare(self, conf: cfg.ConfigOpts) -> Callable[[], None]:
        """Prepare the change to another configuration; return the function that makes the change.

        The authorizer is kept if its options are the same, since it caches the issuer's keys.

        :raises DfmetaError: for the errors of a start; nothing has changed then.
        """
        same = all(conf.store[name] == self._conf.store[name] for name in _AUTH)
        authorizer = self._authorizer if same else _authorizer(conf)
        repository = self.repository or database.repository(conf.store.connection)
        api = _api(conf, authorizer, repository)

        def replace() -> None:
            self._conf, self._authorizer = conf, authorizer
            self.repository, self._api = repository, api

        return replace

    def handles(self, path: str) -> bool:
        """See :class:`dfmeta.admin.listener.AdminRoutes`."""
        return AdminApi.handles(path)

    def __call__(self, request: webob.Request) -> webob.Response:
        """Answer one request."""
        return (self._api or later)(request)


def _authorizer(conf: cfg.ConfigOpts) -> Authorizer | None:
    authorizer = auth.build(conf)
    if authorizer is None:
        auth.check_open(conf.df_metadata.admin_listen)
    return authorizer


def _api(conf: cfg.ConfigOpts, authorizer: Authorizer | None, repository: Repository) -> AdminApi:
    group = conf.store
    upstream = database.puller(conf) if group.lookup_base_url else None
    return AdminApi(
        repository,
        authorizer=authorizer,
        max_body=group.max_body,
        refresh=upstream.refresh if upstream is not None else None,
        aside=call_in_thread,
        # Needed only without tokens: a web page of another site cannot send a token.
        gate=None if authorizer is not None else _gate(conf.df_metadata.admin_listen),
    )


def _gate(listen: str) -> Gate:
    """Return a function from a request to the reason to refuse it as another site's web page."""
    names = own_names(listen)
    return lambda request: cross_origin_reason(request.headers, names)
