"""From the configuration to who may use the store's admin API."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from oslo_config import cfg

from dfmeta.exceptions import ConfigError, TokenFileError
from dfmeta.store.auth.caller import Authorizer, BearerAuthorizer, Verifier
from dfmeta.store.auth.tokens import TokenFile

LOG = logging.getLogger(__name__)

Resolve = Callable[[str], Iterable[str]]


def build(conf: cfg.ConfigOpts) -> Authorizer | None:
    """Build what decides on requests; None when no token is asked for, see :func:`check_open`.

    :raises ConfigError: for a token file that cannot be used.
    """
    group = conf.store
    verifiers: list[Verifier] = []
    if group.token_file:
        try:
            verifiers.append(TokenFile(Path(group.token_file)))
        except TokenFileError as error:
            raise ConfigError(
                option="[store] token_file",
                value=group.token_file,
                cause=error.cause,
                remedy=error.remedy,
            ) from error
    if group.oidc_issuer:
        verifiers.append(_oidc(group))
    return BearerAuthorizer(*verifiers) if verifiers else None


def check_open(listen: str, *, resolve: Resolve | None = None) -> None:
    """Check that an API which asks for no token can be reached from this host alone.

    :param listen: HOST:PORT that it listens on; the operator's.
    :param resolve: a host's addresses; the system's way by default. Raises OSError.
    :raises ConfigError: when another host could reach it, or nobody can say.
    """
    host = listen.rpartition(":")[0].strip("[]")
    try:
        # An empty host is every address, and getaddrinfo would say loopback.
        found = list((resolve or _resolve)(host)) if host else []
    except (OSError, UnicodeError):
        found = []
    if found and all(_is_loopback(one) for one in found):
        return
    raise ConfigError(
        option="[df_metadata] admin_listen",
        value=listen,
        cause="other hosts could reach the store's admin API, and no token is asked for",
        remedy="Set [store] token_file (dfmeta token create) or [store] oidc_issuer, or listen on "
        "127.0.0.1",
    )


def _oidc(group: Any) -> Verifier:
    # PyJWT and cryptography take a while to import: not where there is no issuer.
    from dfmeta.store.auth.keys import KeyCache
    from dfmeta.store.auth.oidc import OidcSettings, OidcVerifier, issuer_keys

    settings = OidcSettings(
        issuer=group.oidc_issuer,
        audience=group.oidc_audience,
        jwks_url=group.oidc_jwks_url or "",
        roles_claim=group.oidc_roles_claim or "",
    )
    if not (settings.jwks_url or settings.issuer).lower().startswith("https:"):
        LOG.warning("the keys of the issuer of tokens come over http: whoever is between can forge")
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
