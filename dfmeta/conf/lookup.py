"""Options of the group ``[store]`` for lookups at an upstream store."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from oslo_config import cfg

from dfmeta.conf.kinds import HTTP_URL, Several, Text, absolute_path, http_url
from dfmeta.conf.store import GROUP, wrong
from dfmeta.errors import ConfigError

__all__ = ["GROUP", "OPTS", "check"]

_WORD: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""A scope (RFC 6749, 3.3)."""


def _is_url(text: str) -> bool:
    parts = urlsplit(text)
    sound = bool(parts.hostname) and parts.port != 0 and text.isascii()
    return sound and bool(HTTP_URL.fullmatch(text))


_URL: Final = http_url(_is_url, example="https://store.example.org:9697", optional=True)
_PRINTABLE: Final = Text(
    "text of printable ASCII alone",
    lambda text: text.isascii() and text.isprintable(),
    example="the issuer's own",
    optional=True,
)
"""Client id and secret (RFC 6749, appendix A)."""

OPTS: Final = [
    cfg.Opt(
        "lookup_base_url",
        type=_URL,
        mutable=True,
        help="Upstream store, which is queried for records that this store does not have, such as "
        "https://store.example.org:9697: a dfmeta-store, or another server that answers GET "
        "/device-metadata and /device-userdata under this URL, by instance id and by ip_address. "
        "Its certificate is checked against the system's authorities. Unset: no lookups.",
    ),
    cfg.FloatOpt(
        "lookup_timeout",
        default=2,
        min=0.1,
        max=60,
        mutable=True,
        help="Seconds that each try of a lookup may take, including the connection and the token.",
    ),
    cfg.IntOpt(
        "lookup_retries",
        default=2,
        min=0,
        max=10,
        mutable=True,
        help="Number of retries after a first try that failed. Together with lookup_timeout it "
        "limits how long a guest waits, which should be less than hold_timeout. The lookup of an "
        "expired record is not retried.",
    ),
    cfg.FloatOpt(
        "lookup_negative_ttl",
        default=10,
        min=0,
        max=86400,
        mutable=True,
        help="Seconds to cache 'not found' answers from the upstream store. 0: they are not "
        "cached, and each request leads to a lookup.",
    ),
    cfg.FloatOpt(
        "lookup_expiry",
        default=0,
        min=0,
        max=31536000,
        mutable=True,
        help="Seconds after which a fetched record expires and is looked up again. While the "
        "upstream store is unavailable, expired records are still served. Pushed records do not "
        "expire. 0: fetched records do not expire either.",
    ),
    cfg.Opt(
        "lookup_token_file",
        type=absolute_path(example="/etc/dfmeta/lookup.token", optional=True),
        mutable=True,
        help="Absolute path of the file with the token for the upstream store, as dfmeta token "
        "create prints it. Other users must not be able to read the file. It is read for each "
        "lookup. Unset, without lookup_issuer: requests carry no token.",
    ),
    cfg.Opt(
        "lookup_issuer",
        type=_URL,
        mutable=True,
        help="OpenID Connect issuer of tokens for the upstream store (OAuth 2.0 client "
        "credentials), such as https://login.example.org/realms/cloud. Its token endpoint is read "
        "from /.well-known/openid-configuration under this URL.",
    ),
    cfg.Opt(
        "lookup_client_id",
        type=_PRINTABLE,
        mutable=True,
        help="Client id of this store at lookup_issuer. Required with lookup_issuer.",
    ),
    cfg.Opt(
        "lookup_client_secret",
        type=_PRINTABLE,
        secret=True,
        mutable=True,
        help="Client secret of lookup_client_id. Required with lookup_issuer.",
    ),
    cfg.Opt(
        "lookup_audience",
        type=_PRINTABLE,
        mutable=True,
        help="Audience of the tokens that are requested. Unset: lookup_issuer's default.",
    ),
    cfg.Opt(
        "lookup_scopes",
        type=Several(Text("a scope", _WORD.fullmatch, example="read"), least=0),
        default=[],
        mutable=True,
        help="Scopes of the tokens that are requested, with commas between them. A dfmeta-store "
        "requires read, or metadata:read:metadata and metadata:read:userdata.",
    ),
]
_OF_TOKENS: Final = ("lookup_client_id", "lookup_client_secret", "lookup_audience", "lookup_scopes")


def check(conf: cfg.ConfigOpts) -> None:
    """Check the rules between options for lookups.

    :raises ConfigError: naming the option.
    """
    group = conf[GROUP.name]
    if group.lookup_token_file:
        if not group.lookup_base_url:
            raise _needless("lookup_base_url", "lookup_token_file")
        if group.lookup_issuer:
            raise wrong(
                "lookup_token_file",
                "lookup_issuer is set too, and gives tokens already",
                value=group.lookup_token_file,
                remedy="Set only one of the two options",
            )
    if group.lookup_issuer:
        if not group.lookup_base_url:
            raise _needless("lookup_base_url", "lookup_issuer")
        for option in ("lookup_client_id", "lookup_client_secret"):
            if not group[option]:
                cause = "lookup_issuer gives no token without it"
                raise wrong(option, cause, remedy="Set it to the value that the issuer has for it")
        return
    for option in _OF_TOKENS:
        if group[option]:
            raise _needless("lookup_issuer", option)


def _needless(option: str, other: str) -> ConfigError:
    cause = f"{other} is set and has no effect without it"
    return wrong(option, cause, remedy=f"Set {option}, or remove {other}")
