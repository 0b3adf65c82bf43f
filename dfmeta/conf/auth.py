"""Who may use the store's admin API: options of the group ``[store]``."""

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
        help="File with the hashes of the static tokens that the store's admin API takes, and "
        "their scopes. dfmeta token create, list and revoke look after it. Nobody but its owner "
        "may read or write it (mode 0600). A change is noticed without a restart. Unset: no "
        "static tokens.",
    ),
    cfg.Opt(
        "oidc_issuer",
        type=http_url(
            HTTP_URL.fullmatch,
            example="https://login.example.org/realms/cloud",
            optional=True,
        ),
        help="OpenID Connect issuer whose tokens (JWT, signed with an asymmetric algorithm) the "
        "store's admin API takes, as the claim iss has it to the letter, such as "
        "https://login.example.org/realms/cloud. With http instead of https, whoever is between "
        "can make tokens. Unset: none. Without it and without token_file the API asks for no "
        "token, and listens on loopback alone.",
    ),
    cfg.StrOpt(
        "oidc_audience",
        help="What a token's claim aud has to have. Required with oidc_issuer: a token that was "
        "made for another service is not to be good for this one.",
    ),
    cfg.Opt(
        "oidc_jwks_url",
        type=Text(
            "an http or https URL without a user and a fragment",
            _JWKS_URL.fullmatch,
            example="https://login.example.org/realms/cloud/keys",
            optional=True,
        ),
        help="Where the issuer's keys are (a JWK set). Unset: where the issuer says, at "
        "/.well-known/openid-configuration under oidc_issuer. Its certificate is checked against "
        "the system's authorities.",
    ),
    cfg.Opt(
        "oidc_roles_claim",
        type=Text(
            "the name of a claim",
            lambda text: text.split() == [text] and text.strip("."),
            example="roles or realm_access.roles",
            optional=True,
        ),
        help="Claim of a token that has its scopes, as a list or as words, besides scope and scp, "
        "which are always read. Dots lead into it: realm_access.roles. Unset: none.",
    ),
]


def check(conf: cfg.ConfigOpts) -> None:
    """Check what no single option can say.

    :raises ConfigError: naming the option.
    """
    group = conf[GROUP.name]
    if group.oidc_issuer:
        if not group.oidc_audience:
            raise wrong(
                "oidc_audience",
                "oidc_issuer needs it: tokens that the issuer made for others would be taken",
                remedy="Give the audience that the issuer puts into tokens for this service",
            )
        return
    for option in ("oidc_audience", "oidc_jwks_url", "oidc_roles_claim"):
        if group[option]:
            raise wrong(
                "oidc_issuer",
                f"{option} is given and says nothing without it",
                remedy=f"Give the issuer, or leave {option} out",
            )
