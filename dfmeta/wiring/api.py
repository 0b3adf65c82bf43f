"""From the configuration to the store's admin API, on the admin listener."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from eventlet import tpool
from oslo_config import cfg

from dfmeta.admin.browsers import own_names, stranger
from dfmeta.conf import auth as auth_options
from dfmeta.store.api.admin import AdminApi, Gate, later
from dfmeta.store.auth.caller import Authorizer
from dfmeta.store.db.repository import Repository
from dfmeta.wiring import auth, database

_AUTH: Final = tuple(option.dest for option in auth_options.OPTS)


class StoreApi:
    """The API, there from the listener's first moment: until the store is open it says "not now".

    :raises ConfigError: when other hosts could reach it and no token is asked for, or when a token
        file cannot be used.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._authorizer = _authorizer(conf)
        self._repository: Repository | None = None
        self._api: AdminApi | None = None

    @property
    def repository(self) -> Repository | None:
        """The store, once it is open."""
        return self._repository

    def open(self, repository: Repository) -> None:
        """Let it answer from a store, and from the one that the configuration names beside it.

        :raises ConfigError: when what asks another store cannot be built.
        """
        self._repository = repository
        self._api = _api(self._conf, self._authorizer, repository)

    def prepare(self, conf: cfg.ConfigOpts) -> Callable[[], None]:
        """Make ready what another configuration says; gives what has it take effect, and open.

        Who asks for tokens stays where its options do: it knows the keys of its issuer.

        :raises DfmetaError: as the start does; nothing has changed then.
        """
        same = all(conf.store[name] == self._conf.store[name] for name in _AUTH)
        authorizer = self._authorizer if same else _authorizer(conf)
        repository = self._repository or database.repository(conf.store.connection)
        api = _api(conf, authorizer, repository)

        def replace() -> None:
            self._conf, self._authorizer = conf, authorizer
            self._repository, self._api = repository, api

        return replace

    def handles(self, path: str) -> bool:
        """See :class:`dfmeta.admin.listener.Api`."""
        return AdminApi.handles(path)

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request (PEP 3333)."""
        return (self._api or later)(environ, start_response)


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
        aside=tpool.execute,
        # A client that shows a token is no web page of another site.
        gate=None if authorizer is not None else _gate(conf.df_metadata.admin_listen),
    )


def _gate(listen: str) -> Gate:
    """Return the reason to refuse a web page of another site, by its request."""
    names = own_names(listen)
    return lambda environ: stranger(environ, names)
