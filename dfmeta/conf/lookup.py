"""Whether and how the store asks another one: options of the group ``[store]``."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from oslo_config import cfg

from dfmeta.conf.store import GROUP
from dfmeta.exceptions import ConfigError

__all__ = ["GROUP", "OPTS", "check"]

_URL: Final = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?", re.IGNORECASE)
"""Without a user and password, which would come into logs."""
_WORD: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""A scope (RFC 6749, 3.3)."""
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]+")
"""Client id and secret (RFC 6749, appendix A)."""
_EXAMPLE: Final = "https://store.example.org:9697"

OPTS: Final = [
    cfg.StrOpt(
        "lookup_base_url",
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
    cfg.StrOpt(
        "lookup_token_file",
        help="File with the token that the other store is shown, as dfmeta token create prints it, "
        "an absolute path. Other users may not read it. It is read for each question. Unset, and "
        "no lookup_issuer: requests carry no token.",
    ),
    cfg.StrOpt(
        "lookup_issuer",
        help="OpenID Connect issuer that gives tokens for the other store (OAuth 2.0 client "
        "credentials), such as https://login.example.org/realms/cloud. It is asked where, at "
        "/.well-known/openid-configuration under this URL.",
    ),
    cfg.StrOpt(
        "lookup_client_id",
        help="Who this store is to lookup_issuer. Required with it.",
    ),
    cfg.StrOpt(
        "lookup_client_secret",
        secret=True,
        help="What shows lookup_issuer that it is. Required with it.",
    ),
    cfg.StrOpt(
        "lookup_audience",
        help="Audience that tokens are asked for. Unset: what lookup_issuer gives by itself.",
    ),
    cfg.ListOpt(
        "lookup_scopes",
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
    for option in ("lookup_base_url", "lookup_issuer"):
        _check_url(option, group[option])
    for option in ("lookup_client_id", "lookup_client_secret", "lookup_audience"):
        if group[option] and not _PRINTABLE.fullmatch(group[option]):
            shown = "(secret)" if option == "lookup_client_secret" else group[option]
            raise _wrong(option, shown, "it has other than ASCII's printable characters in it")
    for scope in group.lookup_scopes:
        if not _WORD.fullmatch(scope):
            raise _wrong("lookup_scopes", scope, "it is not a scope", remedy="Write read, say")
    _check_together(group)


def _check_url(option: str, value: str | None) -> None:
    if not value:
        return
    try:
        parts = urlsplit(value)
        sound = bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or not value.isascii() or not _URL.fullmatch(value):
        raise _wrong(
            option,
            _without_word(value),
            "it is not an http or https URL of a host and a path alone",
            remedy=f"Give one such as {_EXAMPLE}",
        )


def _without_word(url: str) -> str:
    """A URL as a message may repeat it."""
    before, slashes, rest = url.partition("//")
    _word, at, host = rest.rpartition("@")
    return f"{before}{slashes}(hidden)@{host}" if at else url


def _check_together(group: cfg.ConfigOpts.GroupAttr) -> None:
    if group.lookup_token_file:
        if not group.lookup_token_file.startswith("/"):
            raise _wrong(
                "lookup_token_file",
                group.lookup_token_file,
                "it is not an absolute path",
                remedy="Give a file's path from / on, such as /etc/dfmeta/lookup.token",
            )
        if not group.lookup_base_url:
            raise _needless("lookup_base_url", "lookup_token_file")
        if group.lookup_issuer:
            raise _wrong(
                "lookup_token_file",
                group.lookup_token_file,
                "lookup_issuer gives tokens already",
                remedy="Give one of the two",
            )
    if group.lookup_issuer:
        if not group.lookup_base_url:
            raise _needless("lookup_base_url", "lookup_issuer")
        for option in ("lookup_client_id", "lookup_client_secret"):
            if not group[option]:
                raise _wrong(option, "", "lookup_issuer gives no token without it")
        return
    for option in _OF_TOKENS:
        if group[option]:
            raise _needless("lookup_issuer", option)


def _needless(option: str, other: str) -> ConfigError:
    cause = f"{other} is given and says nothing without it"
    return _wrong(option, "", cause, remedy=f"Give {option}, or leave {other} out")


def _wrong(
    option: str, value: str, cause: str, *, remedy: str = "Write it as the issuer does"
) -> ConfigError:
    return ConfigError(option=f"[{GROUP.name}] {option}", value=value, cause=cause, remedy=remedy)
