"""Construction of the authorization of the store's admin API from the configuration."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from oslo_config import cfg

from dfmeta.errors import ConfigError, TokenFileError
from dfmeta.store.auth.caller import Authorizer, Verifier
from dfmeta.store.auth.tokens import TokenFile

LOG = logging.getLogger(__name__)

Resolve = Callable[[str], Iterable[str]]


def build(conf: cfg.ConfigOpts) -> Authorizer | None:
    """Build the authorizer of requests; None when no token is required, see :func:`check_open`.

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
    return Authorizer(*verifiers) if verifiers else None


def check_open(listen: str, *, resolve: Resolve | None = None) -> None:
    """Check that an API that requires no token can be reached from this host only.

    :param listen: HOST:PORT of its listener, set by the operator.
    :param resolve: returns the addresses of a host name or raises OSError; None: getaddrinfo.
    :raises ConfigError: when another host could reach it, or its addresses are unknown.
    """
    host = listen.rpartition(":")[0].strip("[]")
    try:
        # An empty host means every address, but getaddrinfo would return loopback.
        found = list((resolve or _resolve)(host)) if host else []
    except (OSError, UnicodeError):
        found = []
    if found and all(_is_loopback(one) for one in found):
        return
    raise ConfigError(
        option="[df_metadata] admin_listen",
        value=listen,
        cause="other hosts could reach the store's admin API, and it requires no token",
        remedy="Set [store] token_file (dfmeta token create) or [store] oidc_issuer, or listen on "
        "127.0.0.1",
    )


def _oidc(group: Any) -> Verifier:
    # Imported only with an issuer, since the import of PyJWT and cryptography takes time.
    from dfmeta.store.auth.keys import KeyCache
    from dfmeta.store.auth.oidc import OidcSettings, OidcVerifier, issuer_keys

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
