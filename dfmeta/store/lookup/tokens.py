"""Tokens that authenticate this store at the upstream store: from a file, or from an issuer.

The file is read for each query, so that a new token needs no restart. An issuer gives tokens for
OAuth 2.0 client credentials (RFC 6749, 4.4): its token endpoint is read once (OpenID Connect
Discovery 1.0, 4), and a token is used until shortly before it expires.

Trust: the issuer is the operator's. Only the issuer gets the client's secret: no log, error or
``repr`` contains the secret or a token.
"""

import base64
import re
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

from dfmeta.errors import LookupAnswerError, LookupAwayError
from dfmeta.http.client import TOKEN_MAX, HttpClient, UrlRequest
from dfmeta.runtime import clock
from dfmeta.store.lookup.upstream import fetch
from dfmeta.store.strictjson import loads_object

TOKEN: Final = re.compile(r"[\x21-\x7e]+")
"""Characters that a header can hold unchanged, without spaces (RFC 6750, 2.1)."""
DISCOVERY: Final = "/.well-known/openid-configuration"
LIFE: Final = 300.0
"""Lifetime of a token in seconds if the issuer does not give one."""
_ERRORS: Final = frozenset(
    {
        *("invalid_request", "invalid_client", "invalid_grant", "invalid_scope"),
        *("unauthorized_client", "unsupported_grant_type"),
    }
)
"""Error codes of RFC 6749, 5.2."""


class FileToken:
    """A token in a file that contains nothing else, as ``dfmeta token create`` prints it.

    :param path: the file; only its owner and its group may have permissions for it.
    :param upstream: name of the upstream store, for errors.
    """

    def __init__(self, path: Path, upstream: str) -> None:
        self._path = path
        self._upstream = upstream

    def get(self, *, deadline: float, refused: str = "") -> str:
        """See :meth:`.TokenSource.get`."""
        try:
            return read_token(self._path)
        except (OSError, ValueError) as error:
            cause = f"the token cannot be read from {self._path}: {reason(error)}"
            raise LookupAwayError(upstream=self._upstream, cause=cause, whole=True) from error


def read_token(path: Path) -> str:
    """Return the token in a file.

    :raises OSError: the file cannot be read.
    :raises ValueError: other users may read or change the file, or it does not contain exactly one
        token. The error does not quote its content.
    """
    with path.open("rb") as file:
        if stat.S_IMODE(path.stat().st_mode) & stat.S_IRWXO:
            raise ValueError("other users may read or change it")
        text = file.read(TOKEN_MAX + 1).decode("ascii", "replace").strip()
    if len(text) > TOKEN_MAX or not TOKEN.fullmatch(text):
        raise ValueError("it must contain one token and nothing else")
    return text


def reason(error: Exception) -> str:
    """Return the cause in an error of :func:`read_token`."""
    return error.strerror or "" if isinstance(error, OSError) else str(error)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The client's credentials at an issuer of tokens."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    audience: str = ""
    """The audience of the tokens; empty: the issuer's default."""
    scopes: tuple[str, ...] = ()


class IssuerToken:
    """The token that an issuer gives for credentials.

    Safe to use from several threads: one of them fetches for all.
    """

    def __init__(self, credentials: Credentials, client: HttpClient) -> None:
        self._credentials = credentials
        self._client = client
        self._lock = threading.Lock()
        self._endpoint: tuple[str, bool] | None = None
        self._token = ""
        self._until = 0.0

    def get(self, *, deadline: float, refused: str = "") -> str:
        """See :meth:`.TokenSource.get`."""
        if not self._lock.acquire(timeout=max(0.0, deadline - clock.now())):
            raise self._away("the issuer did not provide one in time")
        try:
            if refused and self._token == refused:
                self._token = ""
            if not self._token or clock.now() >= self._until:
                self._fetch(deadline)
            return self._token
        finally:
            self._lock.release()

    def _fetch(self, deadline: float) -> None:
        self._endpoint = self._endpoint or self._discover(deadline)
        url, basic = self._endpoint
        credentials, headers = self._credentials, {}
        client = {"client_id": credentials.client_id, "client_secret": credentials.client_secret}
        if basic:
            # Id and secret are form-encoded before base64 (RFC 6749, 2.3.1).
            pair = ":".join(map(quote_plus, client.values()))
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        form = {
            "grant_type": "client_credentials",
            "audience": credentials.audience,
            "scope": " ".join(credentials.scopes),
            **({} if basic else client),
        }
        body = urlencode({name: text for name, text in form.items() if text})
        begun = clock.now()
        status, answer = self._ask(url, deadline, headers, body.encode())
        if status != 200:
            # The endpoint may have moved: the next fetch runs discovery again.
            self._endpoint = None
            code = answer.get("error")
            code = f"{code}: " if isinstance(code, str) and code in _ERRORS else ""
            raise self._away(f"{code}the token endpoint answers {status}")
        try:
            token, life = answer["access_token"], answer.get("expires_in")
            life = LIFE if life in (None, 0) else float(life)
        except (KeyError, TypeError, ValueError, OverflowError):
            # Not chained to our error, because these errors quote the answer.
            raise self._away("the token endpoint's answer is not a valid token response") from None
        sound = isinstance(token, str) and len(token) < 65536 and TOKEN.fullmatch(token)
        if not sound or str(answer.get("token_type", "bearer")).lower() != "bearer":
            raise self._away("the token endpoint's answer contains no bearer token")
        self._token, self._until = token, begun + life - life / 10

    def _discover(self, deadline: float) -> tuple[str, bool]:
        """Return the token endpoint, and whether it takes the secret in a header."""
        issuer = self._credentials.issuer.rstrip("/")
        status, answer = self._ask(f"{issuer}{DISCOVERY}", deadline, {})
        if status != 200:
            raise self._away(f"it answers {DISCOVERY} with status {status}")
        if str(answer.get("issuer")).rstrip("/") != issuer:
            raise self._away(f"its {DISCOVERY} names another issuer, or none")
        url = answer.get("token_endpoint")
        schemes = ("https://",) if issuer.lower().startswith("https:") else ("https://", "http://")
        if not isinstance(url, str) or not url.lower().startswith(schemes) or not url.isascii():
            raise self._away(f"its token_endpoint does not begin with {' or '.join(schemes)}")
        methods = answer.get("token_endpoint_auth_methods_supported")
        methods = methods if isinstance(methods, list) else []
        return url, "client_secret_basic" in methods or "client_secret_post" not in methods

    def _ask(
        self, url: str, deadline: float, headers: Mapping[str, str], body: bytes | None = None
    ) -> tuple[int, Mapping[str, Any]]:
        """Return the status of an answer, and the JSON object in it; empty if there is none."""
        headers = {"Accept": "application/json", **headers}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            reply = fetch(self._client, UrlRequest(url, headers, body, deadline))
        except LookupAnswerError as error:
            # The invalid answer is the issuer's, not that of the upstream store.
            raise self._away(error.cause) from error
        try:
            return reply.status, loads_object(reply.body)
        except ValueError:
            return reply.status, {}

    def _away(self, cause: str) -> LookupAwayError:
        return LookupAwayError(
            upstream=self._credentials.issuer, cause=f"there is no token: {cause}", whole=True
        )
