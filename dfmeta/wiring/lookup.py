"""Construction of the client of the upstream store from the configuration."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from oslo_config import cfg

from dfmeta.errors import ConfigError

if TYPE_CHECKING:
    from dfmeta.http.client import Resolve
    from dfmeta.store.db.repository import Repository
    from dfmeta.store.lookup.puller import Puller
    from dfmeta.store.lookup.tokens import TokenSource
    from dfmeta.store.lookup.upstream import Upstream

LOG = logging.getLogger(__name__)


def build(
    conf: cfg.ConfigOpts, repository: Repository, *, resolve: Resolve | None = None
) -> Puller | None:
    """Build the puller, which reads *repository* and looks up missing records upstream.

    :param resolve: see :func:`connect`.
    :returns: None without an upstream store.
    :raises ConfigError: for a token file that cannot be used.
    """
    group = conf.store
    upstream = connect(conf, resolve=resolve)
    if upstream is None:
        return None
    from dfmeta.store.lookup.puller import Lifetimes, Puller

    if group.lookup_token_file or group.lookup_issuer:
        for option in ("lookup_base_url", "lookup_issuer"):
            if (group[option] or "https:").lower().startswith("http:"):
                LOG.warning(
                    "[store] %s is an http URL, so an attacker on the network path can read "
                    "tokens and secrets. Use https",
                    option,
                )
    lifetimes = Lifetimes(negative=group.lookup_negative_ttl, expiry=group.lookup_expiry)
    return Puller(repository, upstream, lifetimes=lifetimes)


def connect(conf: cfg.ConfigOpts, *, resolve: Resolve | None = None) -> Upstream | None:
    """Build the client of the upstream store; send nothing yet.

    The environment's HTTP proxies are not used, since a metadata store is in the same network.

    :param resolve: returns a name's addresses within a time limit; None: the C library, without a
        time limit.
    :returns: None without an upstream store.
    :raises ConfigError: for a token file that cannot be used.
    """
    group = conf.store
    if not group.lookup_base_url:
        return None
    from dfmeta.http import client as http_client
    from dfmeta.store.lookup.tokens import Credentials, IssuerToken
    from dfmeta.store.lookup.upstream import Patience, Upstream

    urls = (group.lookup_base_url, group.lookup_issuer or "")
    tls = any(url.lower().startswith("https:") for url in urls)
    client = http_client.HttpClient(tls=tls, resolve=resolve or http_client.resolve)
    tokens: TokenSource | None = _file_token(group.lookup_token_file, group.lookup_base_url)
    if group.lookup_issuer:
        credentials = Credentials(
            issuer=group.lookup_issuer,
            client_id=group.lookup_client_id,
            client_secret=group.lookup_client_secret,
            audience=group.lookup_audience or "",
            scopes=tuple(group.lookup_scopes),
        )
        tokens = IssuerToken(credentials, client)
    return Upstream(
        group.lookup_base_url,
        client=client,
        tokens=tokens,
        patience=Patience(timeout=group.lookup_timeout, retries=group.lookup_retries),
    )


def _file_token(path: str | None, upstream: str) -> TokenSource | None:
    if not path:
        return None
    from dfmeta.store.lookup.tokens import FileToken, read_token, reason

    try:
        read_token(Path(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            option="[store] lookup_token_file",
            value=path,
            cause=reason(error),
            remedy="Write the token that dfmeta token create prints into it, with mode 0600",
        ) from error
    return FileToken(Path(path), upstream)
