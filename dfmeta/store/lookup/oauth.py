"""Tokens for the upstream store: OAuth 2.0 client credentials (RFC 6749, 4.4).

The token endpoint is read once from the issuer (OpenID Connect Discovery 1.0, 4). A token is used
until shortly before it expires.

Trust: the issuer is the operator's. Only the issuer gets the client's secret: no log, error or
``repr`` contains the secret or a token.
"""

from __future__ import annotations

import base64
import threading
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote_plus

from oauthlib.oauth2 import BackendApplicationClient, OAuth2Error

from dfmeta.errors import LookupAnswerError, LookupAwayError
from dfmeta.http.bounded import Client, Clock, Exchange
from dfmeta.runtime import clock
from dfmeta.store.lookup.token import TOKEN
from dfmeta.store.strictjson import loads

DISCOVERY: Final = "/.well-known/openid-configuration"
EARLY: Final = 30.0
"""Seconds before its expiry at which a token is no longer used; at most a tenth of its lifetime."""
LIFE: Final = 300.0
"""Lifetime of a token in seconds if the issuer does not give one."""
LIFE_MAX: Final = 86400.0
"""Longest lifetime of a token, in seconds."""
_FORM: Final = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The client's credentials at an issuer of tokens."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    audience: str = ""
    """The audience of the tokens; empty: the issuer's default."""
    scopes: tuple[str, ...] = ()


class Tokens:
    """Returns valid tokens. Safe to use from several threads: one of them fetches for all.

    :param clock: monotonic seconds.
    """

    def __init__(
        self, credentials: Credentials, client: Client, *, clock: Clock = clock.now
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

        :param deadline: monotonic seconds; latest time for the return.
        :param refused: a token that the upstream store has refused, and that is replaced.
        :raises LookupAwayError: the issuer does not provide a token.
        """
        if not self._lock.acquire(timeout=max(0.0, deadline - self._clock())):
            raise self._away("the issuer did not provide one in time")
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
            # The endpoint may have moved: the next fetch runs discovery again.
            self._endpoint = None
            raise self._away(f"{_error_of(answer)}the token endpoint answers {status}")
        try:
            if not isinstance(loads(answer), dict):
                raise TypeError
            found = form.parse_request_body_response(answer.decode())
            token = found["access_token"]
            life = float(found.get("expires_in") or LIFE)
        except (OAuth2Error, ValueError, TypeError, ArithmeticError, Warning):
            # Not chained to our error, because these errors quote the answer.
            raise self._away("the token endpoint's answer is not a valid token response") from None
        if not _is_token(token) or str(found.get("token_type", "bearer")).lower() != "bearer":
            raise self._away("the token endpoint's answer contains no bearer token")
        life = min(life, LIFE_MAX)
        self._token, self._until = token, asked + life - min(EARLY, life / 10)

    def _discover(self, deadline: float) -> tuple[str, bool]:
        """Return the token endpoint, and whether it takes the secret in a header."""
        issuer = self._credentials.issuer.rstrip("/")
        headers = {"Accept": "application/json", **_COMMON}
        exchange = Exchange(f"{issuer}{DISCOVERY}", headers, deadline=deadline)
        status, answer = self._exchange(exchange)
        if status != 200:
            raise self._away(f"it answers {DISCOVERY} with status {status}")
        try:
            found = loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("issuer"), str):
            raise self._away(f"its {DISCOVERY} is invalid")
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
            # The invalid answer is the issuer's, not that of the upstream store.
            raise self._away(str(error.fields["cause"])) from error
        return reply.status, reply.body

    def _away(self, cause: str) -> LookupAwayError:
        said = f"there is no token: {cause}"
        return LookupAwayError(upstream=self._credentials.issuer, cause=said, whole=True)


_COMMON: Final = {"User-Agent": "dfmeta", "Accept-Encoding": "identity"}


def _basic(credentials: Credentials) -> str:
    """Return the header's value (RFC 6749, 2.3.1): id and secret are form-encoded before base64."""
    pair = f"{quote_plus(credentials.client_id)}:{quote_plus(credentials.client_secret)}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _is_token(token: object) -> bool:
    """Return whether *token* can be sent in a header unchanged (RFC 6750, 2.1)."""
    return isinstance(token, str) and len(token) < 65536 and bool(TOKEN.fullmatch(token))


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
"""Error codes of RFC 6749, 5.2."""


def _error_of(answer: bytes) -> str:
    """Return the error code of an answer as a prefix; empty if it is not a known code."""
    try:
        found = loads(answer)
    except ValueError:
        return ""
    said = found.get("error") if isinstance(found, dict) else None
    return f"{said}: " if isinstance(said, str) and said in _ERRORS else ""
