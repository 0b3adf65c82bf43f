"""Who may use the store's admin API: options of the group ``[store]``."""

from __future__ import annotations

import re
from typing import Final

from oslo_config import cfg

from dfmeta.conf.store import GROUP
from dfmeta.exceptions import ConfigError

__all__ = ["GROUP", "OPTS", "check"]

_URL: Final = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?", re.IGNORECASE)
"""Without a user and password, which would come into logs."""
_JWKS_URL: Final = re.compile(r"https?://[^\s/?#@]+([/?][^\s#]*)?", re.IGNORECASE)
_BLANK: Final = re.compile(r"\s")

OPTS: Final = [
    cfg.StrOpt(
        "token_file",
        help="File with the hashes of the static tokens that the store's admin API takes, and "
        "their scopes. dfmeta token create, list and revoke look after it. Nobody but its owner "
        "may read or write it (mode 0600). A change is noticed without a restart. Unset: no "
        "static tokens.",
    ),
    cfg.StrOpt(
        "oidc_issuer",
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
    cfg.StrOpt(
        "oidc_jwks_url",
        help="Where the issuer's keys are (a JWK set). Unset: where the issuer says, at "
        "/.well-known/openid-configuration under oidc_issuer. Its certificate is checked against "
        "the system's authorities.",
    ),
    cfg.StrOpt(
        "oidc_roles_claim",
        help="Claim of a token that has its scopes, as a list or as words, besides scope and scp, "
        "which are always read. Dots lead into it: realm_access.roles. Unset: none.",
    ),
]


def check(conf: cfg.ConfigOpts) -> None:
    """Check what no single option can say.

    :raises ConfigError: naming the option.
    """
    group = conf[GROUP.name]
    if group.token_file and not group.token_file.startswith("/"):
        raise _wrong(
            "token_file",
            group.token_file,
            "it is not an absolute path",
            remedy="Give a file's path from / on, such as /etc/dfmeta/tokens",
        )
    _check_url("oidc_issuer", group.oidc_issuer, _URL)
    _check_url("oidc_jwks_url", group.oidc_jwks_url, _JWKS_URL)
    claim = group.oidc_roles_claim
    if claim and (_BLANK.search(claim) or not claim.strip(".")):
        raise _wrong(
            "oidc_roles_claim",
            claim,
            "it is not the name of a claim",
            remedy="Give one such as roles or realm_access.roles",
        )
    _check_together(group)


def _check_url(option: str, value: str | None, pattern: re.Pattern[str]) -> None:
    if value and not pattern.fullmatch(value):
        raise _wrong(
            option,
            value,
            "it is not an http or https URL of a host and a path alone",
            remedy="Give one such as https://login.example.org/realms/cloud",
        )


def _check_together(group: cfg.ConfigOpts.GroupAttr) -> None:
    if group.oidc_issuer:
        if not group.oidc_audience:
            raise _wrong(
                "oidc_audience",
                "",
                "oidc_issuer needs it: tokens that the issuer made for others would be taken",
                remedy="Give the audience that the issuer puts into tokens for this service",
            )
        return
    for option in ("oidc_audience", "oidc_jwks_url", "oidc_roles_claim"):
        if group[option]:
            raise _wrong(
                "oidc_issuer",
                "",
                f"{option} is given and says nothing without it",
                remedy=f"Give the issuer, or leave {option} out",
            )


def _wrong(option: str, value: str, cause: str, *, remedy: str) -> ConfigError:
    return ConfigError(option=f"[{GROUP.name}] {option}", value=value, cause=cause, remedy=remedy)
