"""Tokens for upstream: OAuth 2.0 client credentials (RFC 6749, 4.4).

Where tokens are given is asked of the issuer (OpenID Connect Discovery 1.0, 4), once. A token is
used until shortly before it expires.

Trust: the issuer is the operator's. It gets the client's secret, and nobody else does: neither a
log nor an error nor a ``repr`` has it, or a token.
"""

from __future__ import annotations

import base64
import threading
import time
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote_plus

from oauthlib.oauth2 import BackendApplicationClient, OAuth2Error

from dfmeta.exceptions import LookupAnswerError, LookupAwayError
from dfmeta.store.http import Client, Clock, Exchange
from dfmeta.store.strictjson import loads

DISCOVERY: Final = "/.well-known/openid-configuration"
EARLY: Final = 30.0
"""Seconds before its end in which a token is not used any more, but a tenth of its life at most."""
LIFE: Final = 300.0
"""Seconds that a token is used for when nobody says how long it is good."""
LIFE_MAX: Final = 86400.0
_FORM: Final = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are, for whom, and who vouches for it."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    audience: str = ""
    """Empty: the issuer's default."""
    scopes: tuple[str, ...] = ()


class Tokens:
    """Gives a token that is good for now. Safe to use from several threads: one asks for all.

    :param clock: monotonic seconds.
    """

    def __init__(
        self, credentials: Credentials, client: Client, *, clock: Clock = time.monotonic
    ) -> None:
        self._credentials = credentials
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._endpoint: tuple[str, bool] | None = None
        self._token = ""
        self._until = 0.0

    def get(self, *, deadline: float, refused: str = "") -> str:
        """Return a token.

        :param deadline: monotonic seconds by which it has to be here.
        :param refused: one that upstream does not take; another one is fetched in its place.
        :raises LookupAwayError: the issuer gives none.
        """
        if not self._lock.acquire(timeout=max(0.0, deadline - self._clock())):
            raise self._away("no token in time")
        try:
            if refused and self._token == refused:
                self._token = ""
            if not self._token or self._clock() >= self._until:
                self._fetch(deadline)
            return self._token
        finally:
            self._lock.release()

    def _fetch(self, deadline: float) -> None:
        if self._endpoint is None:
            self._endpoint = self._discover(deadline)
        url, basic = self._endpoint
        mine = self._credentials
        form = BackendApplicationClient(mine.client_id)
        extra = {"audience": mine.audience}
        headers = {"Content-Type": _FORM, "Accept": "application/json", **_COMMON}
        if basic:
            headers["Authorization"] = _basic(mine)
        else:
            extra["client_secret"] = mine.client_secret
        body = form.prepare_request_body(
            scope=list(mine.scopes) or None, include_client_id=not basic, **extra
        )
        asked = self._clock()
        status, answer = self._exchange(Exchange(url, headers, body.encode(), deadline))
        if status != 200:
            # It may have moved: the next one asks where to.
            self._endpoint = None
            raise self._away(f"{_error_of(answer)}the token endpoint answers {status}")
        try:
            if not isinstance(loads(answer), dict):
                raise TypeError
            found = form.parse_request_body_response(answer.decode())
            token = found["access_token"]
            life = float(found.get("expires_in") or LIFE)
        except (OAuth2Error, ValueError, TypeError, ArithmeticError, Warning):
            # None of them is to be the cause of ours: they quote what came.
            raise self._away("the token endpoint gives nothing that is a token") from None
        if not _is_token(token) or str(found.get("token_type", "bearer")).lower() != "bearer":
            raise self._away("the token endpoint gives no bearer token")
        life = min(life, LIFE_MAX)
        self._token, self._until = token, asked + life - min(EARLY, life / 10)

    def _discover(self, deadline: float) -> tuple[str, bool]:
        """Return where tokens are given, and whether the secret goes into a header there."""
        issuer = self._credentials.issuer.rstrip("/")
        headers = {"Accept": "application/json", **_COMMON}
        exchange = Exchange(f"{issuer}{DISCOVERY}", headers, deadline=deadline)
        status, answer = self._exchange(exchange)
        if status != 200:
            raise self._away(f"its {DISCOVERY} is answered with {status}")
        try:
            found = loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("issuer"), str):
            raise self._away(f"its {DISCOVERY} is none")
        if found["issuer"].rstrip("/") != issuer:
            raise self._away(f"its {DISCOVERY} names another issuer")
        url = found.get("token_endpoint")
        schemes = ("https://",) if issuer.lower().startswith("https:") else ("https://", "http://")
        if not isinstance(url, str) or not url.lower().startswith(schemes) or not url.isascii():
            raise self._away(f"its token_endpoint does not begin with {' or '.join(schemes)}")
        ways = found.get("token_endpoint_auth_methods_supported")
        ways = ways if isinstance(ways, list) else []
        return url, "client_secret_basic" in ways or "client_secret_post" not in ways

    def _exchange(self, exchange: Exchange) -> tuple[int, bytes]:
        try:
            reply = self._client.exchange(exchange)
        except LookupAnswerError as error:
            # It is not upstream that answers nonsense: it was not asked.
            raise self._away(str(error.fields["cause"])) from error
        return reply.status, reply.body

    def _away(self, cause: str) -> LookupAwayError:
        said = f"there is no token: {cause}"
        return LookupAwayError(upstream=self._credentials.issuer, cause=said, whole=True)


_COMMON: Final = {"User-Agent": "dfmeta", "Accept-Encoding": "identity"}


def _basic(credentials: Credentials) -> str:
    """The header's value (RFC 6749, 2.3.1): both are a form's before they are base64."""
    pair = f"{quote_plus(credentials.client_id)}:{quote_plus(credentials.client_secret)}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _is_token(token: object) -> bool:
    """Whether it can stand in a header as it is (RFC 6750, 2.1)."""
    return (
        isinstance(token, str)
        and 0 < len(token) < 65536
        and token.isascii()
        and token.isprintable()
        and " " not in token
    )


_ERRORS: Final = frozenset(
    {
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
    }
)
"""RFC 6749, 5.2."""


def _error_of(answer: bytes) -> str:
    """What an error is called, if it is one of those that may be."""
    try:
        found = loads(answer)
    except ValueError:
        return ""
    said = found.get("error") if isinstance(found, dict) else None
    return f"{said}: " if isinstance(said, str) and said in _ERRORS else ""
