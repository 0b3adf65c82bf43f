"""The process' stores and their admin API, from the configuration.

There is one store for each database, which all callers share.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import webob
from oslo_config import cfg

from dfmeta.admin.browsers import cross_origin_reason, own_names
from dfmeta.conf import store as store_options
from dfmeta.errors import ConfigError, StoreError, TokenFileError
from dfmeta.runtime import hub, names, threads
from dfmeta.store.api.admin import AdminApi, Gate, not_open
from dfmeta.store.auth import caller, tokens
from dfmeta.store.db.repository import Repository
from dfmeta.wiring.services import make_puller

if TYPE_CHECKING:
    from dfmeta.store.lookup.puller import Puller

LOG = logging.getLogger(__name__)

Resolve = Callable[[str], Iterable[str]]

PATIENCE: Final = 1.0
"""Seconds that a readiness request waits for the database; Kubernetes waits as long for it."""
_READERS: Final = {"sqlite": 2, "postgresql": 8}
_WRITERS: Final = {"sqlite": 1, "postgresql": 4}
"""Transactions at once, each with a connection that is kept open. SQLite allows one writer at a
time, and a file on this host answers fast enough for two readers."""

_repositories: dict[str, Repository] = {}
_pullers: dict[object, Puller | None] = {}


def make_threads(url: str) -> hub.Threads:
    """Return the threads for the transactions of a database."""
    kind = url.partition(":")[0].partition("+")[0]
    return hub.Threads(readers=_READERS.get(kind, 1), writers=_WRITERS.get(kind, 1))


def open_repository(url: str) -> Repository:
    """Return the store at *url*, the same for the same URL; its blocking calls run in threads.

    :raises ConfigError: when the URL is invalid.
    :raises StoreError: when it cannot be opened.
    """
    if url not in _repositories:
        _repositories[url] = Repository(url, apart=make_threads(url))
    return _repositories[url]


def open_puller(conf: cfg.ConfigOpts) -> Puller | None:
    """Return the puller, which looks up missing records upstream; None without an upstream store.

    It is the same object for the same configuration, so that callers share a running lookup.

    :raises ConfigError, StoreError: for the errors of :func:`open_repository`.
    """
    group = conf.store
    key = (group.connection, *(str(group[name]) for name in store_options.LOOKUP))
    if key not in _pullers:
        _pullers[key] = make_puller(
            conf, open_repository(group.connection), resolve=names.addresses
        )
    return _pullers[key]


def store_fault(url: str) -> str:
    """Return why the store at *url* does not answer within :data:`PATIENCE`; empty if it does."""
    fault = f"no answer within {PATIENCE:g} s"
    # A thread that is connecting cannot be interrupted, so the time-out ends only this wait.
    with threads.Timeout(PATIENCE, False):
        try:
            open_repository(url).ping(seconds=PATIENCE)
            fault = ""
        except StoreError as error:
            fault = str(error)
    return fault


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
        self._api = _make_api(self._conf, self._authorizer, repository)

    def prepare(self, conf: cfg.ConfigOpts) -> Callable[[], None]:
        """Prepare the change to another configuration; return the function that makes the change.

        The authorizer is kept if its options are the same, since it caches the issuer's keys.

        :raises DfmetaError: for the errors of a start; nothing has changed then.
        """
        same = all(conf.store[name] == self._conf.store[name] for name in store_options.AUTH)
        authorizer = self._authorizer if same else _authorizer(conf)
        repository = self.repository or open_repository(conf.store.connection)
        api = _make_api(conf, authorizer, repository)

        def replace() -> None:
            self._conf, self._authorizer = conf, authorizer
            self.repository, self._api = repository, api

        return replace

    def handles(self, path: str) -> bool:
        """See :class:`dfmeta.admin.listener.AdminRoutes`."""
        return AdminApi.handles(path)

    def __call__(self, request: webob.Request) -> webob.Response:
        """Answer one request."""
        return (self._api or not_open)(request)


def make_authorizer(conf: cfg.ConfigOpts) -> caller.Authorizer | None:
    """Build the authorizer of requests; None when no token is required.

    :raises ConfigError: for a token file that cannot be used.
    """
    group = conf.store
    verifiers: list[caller.Verifier] = []
    if group.token_file:
        try:
            verifiers.append(tokens.TokenFile(Path(group.token_file)))
        except TokenFileError as error:
            raise ConfigError(
                option="[store] token_file",
                value=group.token_file,
                cause=error.cause,
                remedy=error.remedy,
            ) from error
    if group.oidc_issuer:
        verifiers.append(_make_oidc(group))
    return caller.Authorizer(*verifiers) if verifiers else None


def require_loopback(listen: str, *, resolve: Resolve | None = None) -> None:
    """Check that an API that requires no token can be reached from this host only.

    :param listen: HOST:PORT of its listener, set by the operator.
    :param resolve: returns the addresses of a host name or raises OSError; None: getaddrinfo.
    :raises ConfigError: when another host could reach it, or its addresses are unknown.
    """
    host = listen.rpartition(":")[0].strip("[]")
    try:
        # An empty host means every address, but getaddrinfo would return loopback.
        addresses = list((resolve or _resolve)(host)) if host else []
    except (OSError, UnicodeError):
        addresses = []
    if addresses and all(map(_is_loopback, addresses)):
        return
    raise ConfigError(
        option="[df_metadata] admin_listen",
        value=listen,
        cause="other hosts could reach the store's admin API, and it requires no token",
        remedy="Set [store] token_file (dfmeta token create) or [store] oidc_issuer, or listen on "
        "127.0.0.1",
    )


def _authorizer(conf: cfg.ConfigOpts) -> caller.Authorizer | None:
    authorizer = make_authorizer(conf)
    if authorizer is None:
        require_loopback(conf.df_metadata.admin_listen)
    return authorizer


def _make_api(
    conf: cfg.ConfigOpts, authorizer: caller.Authorizer | None, repository: Repository
) -> AdminApi:
    group = conf.store
    upstream = open_puller(conf) if group.lookup_base_url else None
    return AdminApi(
        repository,
        authorizer=authorizer,
        max_body=group.max_body,
        refresh=upstream.refresh if upstream is not None else None,
        aside=threads.call_in_thread,
        # Needed only without tokens: a web page of another site cannot send a token.
        gate=None if authorizer is not None else _make_gate(conf.df_metadata.admin_listen),
    )


def _make_gate(listen: str) -> Gate:
    """Return a function from a request to the reason to refuse it as another site's web page."""
    allowed = own_names(listen)
    return lambda request: cross_origin_reason(request.headers, allowed)


def _make_oidc(group: Any) -> caller.Verifier:
    # Imported only with an issuer, since the import of PyJWT and cryptography takes time.
    from dfmeta.store.auth.oidc import KeyCache, OidcSettings, OidcVerifier, issuer_keys

    settings = OidcSettings(
        issuer=group.oidc_issuer,
        audience=group.oidc_audience,
        jwks_url=group.oidc_jwks_url or "",
        roles_claim=group.oidc_roles_claim or "",
    )
    if not (settings.jwks_url or settings.issuer).lower().startswith("https:"):
        LOG.warning(
            "[store] oidc_issuer: the issuer's keys are fetched over http, so an attacker on the "
            "network path can forge tokens. Use https"
        )
    return OidcVerifier(settings, KeyCache(lambda: issuer_keys(settings)))


def _resolve(host: str) -> list[str]:
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in infos]


def _is_loopback(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
