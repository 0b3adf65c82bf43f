"""Whether and how the store asks another one: options of the group ``[store]``."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from oslo_config import cfg

from dfmeta.conf.kinds import HTTP_URL, Several, Text, absolute_path, http_url
from dfmeta.conf.store import GROUP, wrong
from dfmeta.exceptions import ConfigError

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
        help="Another store that is asked for what this one does not have, such as "
        "https://store.example.org:9697: a dfmeta-store, or anything that answers GET "
        "/device-metadata and /device-userdata under this URL, by instance id and by ip_address. "
        "Its certificate is checked against the system's authorities. Unset: nobody is asked.",
    ),
    cfg.FloatOpt(
        "lookup_timeout",
        default=2,
        min=0.1,
        max=60,
        help="Seconds that each try may take, connection and token included.",
    ),
    cfg.IntOpt(
        "lookup_retries",
        default=2,
        min=0,
        max=10,
        help="Tries after a first one that failed. With lookup_timeout it says how long a guest "
        "may have to wait: less than hold_timeout is best. What has expired is asked for once.",
    ),
    cfg.FloatOpt(
        "lookup_negative_ttl",
        default=10,
        min=0,
        max=86400,
        help="Seconds in which what the other store does not have is not asked for again. 0: it "
        "is asked each time.",
    ),
    cfg.FloatOpt(
        "lookup_expiry",
        default=0,
        min=0,
        max=31536000,
        help="Seconds after which what was fetched is asked for again. While the other store is "
        "away, what is known is served. What was pushed does not expire. 0: nothing does.",
    ),
    cfg.Opt(
        "lookup_token_file",
        type=absolute_path(example="/etc/dfmeta/lookup.token", optional=True),
        help="File with the token that the other store is shown, as dfmeta token create prints it, "
        "an absolute path. Other users may not read it. It is read for each question. Unset, and "
        "no lookup_issuer: requests carry no token.",
    ),
    cfg.Opt(
        "lookup_issuer",
        type=_URL,
        help="OpenID Connect issuer that gives tokens for the other store (OAuth 2.0 client "
        "credentials), such as https://login.example.org/realms/cloud. It is asked where, at "
        "/.well-known/openid-configuration under this URL.",
    ),
    cfg.Opt(
        "lookup_client_id",
        type=_PRINTABLE,
        help="Who this store is to lookup_issuer. Required with it.",
    ),
    cfg.Opt(
        "lookup_client_secret",
        type=_PRINTABLE,
        secret=True,
        help="What shows lookup_issuer that it is. Required with it.",
    ),
    cfg.Opt(
        "lookup_audience",
        type=_PRINTABLE,
        help="Audience that tokens are asked for. Unset: what lookup_issuer gives by itself.",
    ),
    cfg.Opt(
        "lookup_scopes",
        type=Several(Text("a scope", _WORD.fullmatch, example="read"), least=0),
        default=[],
        help="Scopes that tokens are asked for, with commas between them. A dfmeta-store wants "
        "read, or metadata:read:metadata and metadata:read:userdata.",
    ),
]
_OF_TOKENS: Final = ("lookup_client_id", "lookup_client_secret", "lookup_audience", "lookup_scopes")


def check(conf: cfg.ConfigOpts) -> None:
    """Check what no single option can say.

    :raises ConfigError: naming the option.
    """
    group = conf[GROUP.name]
    if group.lookup_token_file:
        if not group.lookup_base_url:
            raise _needless("lookup_base_url", "lookup_token_file")
        if group.lookup_issuer:
            raise wrong(
                "lookup_token_file",
                "lookup_issuer gives tokens already",
                value=group.lookup_token_file,
                remedy="Give one of the two",
            )
    if group.lookup_issuer:
        if not group.lookup_base_url:
            raise _needless("lookup_base_url", "lookup_issuer")
        for option in ("lookup_client_id", "lookup_client_secret"):
            if not group[option]:
                cause = "lookup_issuer gives no token without it"
                raise wrong(option, cause, remedy="Write it as the issuer does")
        return
    for option in _OF_TOKENS:
        if group[option]:
            raise _needless("lookup_issuer", option)


def _needless(option: str, other: str) -> ConfigError:
    cause = f"{other} is given and says nothing without it"
    return wrong(option, cause, remedy=f"Give {option}, or leave {other} out")
