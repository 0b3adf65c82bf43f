"""Options of the group ``[store]`` for authentication at the store's admin API."""

from __future__ import annotations

import re
from typing import Final

from oslo_config import cfg

from dfmeta.conf.kinds import HTTP_URL, Text, absolute_path, http_url
from dfmeta.conf.store import GROUP, wrong

__all__ = ["GROUP", "OPTS", "check"]

_JWKS_URL: Final = re.compile(r"https?://[^\s/?#@]+([/?][^\s#]*)?", re.IGNORECASE)

OPTS: Final = [
    cfg.Opt(
        "token_file",
        type=absolute_path(example="/etc/dfmeta/tokens", optional=True),
        mutable=True,
        help="File with the hashes and scopes of the static tokens that the store's admin API "
        "accepts. dfmeta token create, list and revoke manage it. Only its owner may read or write "
        "it (mode 0600). Changes take effect without a restart. Unset: no static tokens.",
    ),
    cfg.Opt(
        "oidc_issuer",
        type=http_url(
            HTTP_URL.fullmatch,
            example="https://login.example.org/realms/cloud",
            optional=True,
        ),
        mutable=True,
        help="OpenID Connect issuer of tokens (JWT, signed with an asymmetric algorithm) that the "
        "store's admin API accepts, such as https://login.example.org/realms/cloud. It must equal "
        "the claim iss exactly. With http instead of https, an attacker on the network path can "
        "forge tokens. Unset: no tokens of an issuer. Without oidc_issuer and token_file the API "
        "requires no token, and is allowed on loopback only.",
    ),
    cfg.StrOpt(
        "oidc_audience",
        mutable=True,
        help="Audience that a token's claim aud must contain. Required with oidc_issuer, so that "
        "tokens for other services are not accepted here.",
    ),
    cfg.Opt(
        "oidc_jwks_url",
        type=Text(
            "an http or https URL without a user and a fragment",
            _JWKS_URL.fullmatch,
            example="https://login.example.org/realms/cloud/keys",
            optional=True,
        ),
        mutable=True,
        help="URL of the issuer's keys (a JWK set). Unset: the URL is read from "
        "/.well-known/openid-configuration under oidc_issuer. The server's certificate is checked "
        "against the system's authorities.",
    ),
    cfg.Opt(
        "oidc_roles_claim",
        type=Text(
            "the name of a claim",
            lambda text: text.split() == [text] and text.strip("."),
            example="roles or realm_access.roles",
            optional=True,
        ),
        mutable=True,
        help="Claim of a token that contains its scopes, as a list or as words, in addition to "
        "scope and scp, which are always read. Dots lead to a claim inside another: "
        "realm_access.roles. Unset: only scope and scp are read.",
    ),
]


def check(conf: cfg.ConfigOpts) -> None:
    """Check the rules between the options of an issuer.

    :raises ConfigError: naming the option.
    """
    group = conf[GROUP.name]
    if group.oidc_issuer:
        if not group.oidc_audience:
            raise wrong(
                "oidc_audience",
                "oidc_issuer needs it: tokens for other services would be accepted without it",
                remedy="Set it to the audience that the issuer puts into tokens for this service",
            )
        return
    for option in ("oidc_audience", "oidc_jwks_url", "oidc_roles_claim"):
        if group[option]:
            raise wrong(
                "oidc_issuer",
                f"{option} is set and has no effect without it",
                remedy=f"Set it to the issuer's URL, or remove {option}",
            )
