"""JSON Web Tokens of an OpenID Connect issuer (RFC 7519, RFC 9068; OpenID Connect Discovery 1.0).

A token is valid if one of the issuer's keys has signed it, with an asymmetric algorithm that fits
the key; if issuer and audience are the configured ones; and if it is valid at this time.

Trust: a token is not trusted until its signature is verified; before that, only its key id and
algorithm are read, to find a key. The issuer's URL comes from the operator, that of its keys from
the issuer; with http instead of https, any host on the path may answer with its own keys.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt

from dfmeta.errors import IssuerError, UpstreamError
from dfmeta.http.client import HttpClient, UrlRequest
from dfmeta.runtime import clock
from dfmeta.store.auth.caller import Client
from dfmeta.store.auth.keys import ALGORITHMS, Key, KeyCache, read_keys

LOG = logging.getLogger(__name__)

DISCOVERY: Final = "/.well-known/openid-configuration"
LEEWAY: Final = 5.0
"""Seconds that the issuer's clock and ours may differ."""
REQUIRED: Final = ("exp", "iss", "aud")
SUBJECT_SHOWN: Final = 128
SCOPE_CLAIMS: Final = ("scope", "scp")
"""The claim of RFC 8693, 4.2, and its name at some other issuers."""

TIMEOUT: Final = 5.0
"""Seconds for a connection to the issuer and its whole answer."""
ANSWER_MAX: Final = 256 << 10
"""Bytes of an answer's body. A set of keys has some thousands."""

# Errors that a hostile token can cause in JSON and in the libraries that read it.
_UNSOUND: Final = (
    jwt.PyJWTError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)


@dataclass(frozen=True)
class OidcSettings:
    """Issuer and audience of accepted tokens, and the sources of their keys and scopes."""

    issuer: str
    """Exactly the value of the claim ``iss``."""
    audience: str
    jwks_url: str = ""
    """Empty: found by discovery."""
    roles_claim: str = ""
    """A claim with scopes, or the path to one such as ``realm_access.roles``; empty: none."""


class OidcVerifier:
    """Verifies the tokens of one issuer.

    :param keys: keys of the issuer, see :func:`issuer_keys`.
    """

    def __init__(self, settings: OidcSettings, keys: KeyCache) -> None:
        self._settings = settings
        self._keys = keys

    def client(self, token: str) -> Client | None:
        """See :class:`~dfmeta.store.auth.caller.Verifier`. PyJWT uses the system's clock."""
        if token.count(".") != 2:
            return None
        key = self._key_of(token)
        if key is None:
            return None
        try:
            claims = jwt.decode(
                token,
                key.public,
                algorithms=list(key.algorithms),
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=LEEWAY,
                options={"require": list(REQUIRED)},
            )
        except _UNSOUND as error:
            LOG.debug("a token of the issuer is refused: %s", type(error).__name__)
            return None
        scopes = granted(claims, self._settings.roles_claim)
        return Client(f"subject {subject(claims)}", scopes)

    def _key_of(self, token: str) -> Key | None:
        """Return the key that a token names as the key of its signature.

        A token that no key could verify is refused here, so that it does not cause a fetch.
        """
        try:
            head = jwt.get_unverified_header(token)
        except _UNSOUND:
            return None
        algorithm, kid = head.get("alg"), head.get("kid")
        # Critical extensions are not supported (RFC 7515, 4.1.11); PyJWT 2.8 ignores them.
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS or "crit" in head:
            return None
        if not isinstance(kid, str | None):
            return None
        return self._keys.find(kid, algorithm)


def subject(claims: Mapping[str, Any]) -> str:
    """Return the subject in verified claims (RFC 7519, 4.1.2) in a form for logs.

    :returns: :data:`SUBJECT_SHOWN` printable ASCII characters at most; others are escaped, spaces
        included. "-" if there is no subject.
    """
    found = claims.get("sub")
    text = found if isinstance(found, str) else ""
    escaped = text.encode("unicode_escape").decode("ascii").replace(" ", r"\x20")
    return escaped[:SUBJECT_SHOWN] or "-"


def granted(claims: Mapping[str, Any], roles_claim: str) -> frozenset[str]:
    """Return the scopes in verified claims: in ``scope``, in ``scp`` and in the roles claim.

    :param roles_claim: a claim's name, which may contain dots, or names of members joined by dots.
    """
    found: set[str] = set()
    for name in SCOPE_CLAIMS:
        found.update(_words(claims.get(name)))
    if roles_claim in claims:
        found.update(_words(claims[roles_claim]))
    elif roles_claim:
        found.update(_words(_follow(claims, roles_claim.split("."))))
    return frozenset(found)


def issuer_keys(settings: OidcSettings) -> Sequence[Key]:
    """Fetch the issuer's keys.

    :raises IssuerError: the keys cannot be fetched, or none of them can verify a token.
    """
    url = settings.jwks_url or discover(settings.issuer)
    try:
        keys = tuple(read_keys(fetch_json(url)))
    except IssuerError as error:
        raise IssuerError(url=url, cause=error.cause) from error
    if not keys:
        raise IssuerError(url=url, cause="there is no key in it that can verify a token")
    return keys


def discover(issuer: str) -> str:
    """Return the URL of the issuer's keys (OpenID Connect Discovery 1.0, 4).

    :raises IssuerError: the issuer's document has no valid URL, or is of another issuer (4.3).
    """
    url = issuer.rstrip("/") + DISCOVERY
    document = fetch_json(url)
    if not isinstance(document, dict):
        raise IssuerError(url=url, cause="it is not a JSON object")
    if document.get("issuer") != issuer:
        raise IssuerError(url=url, cause="it names another issuer than [store] oidc_issuer")
    found = document.get("jwks_uri")
    schemes = ("https://",) if issuer.lower().startswith("https:") else ("https://", "http://")
    if not isinstance(found, str) or not found.lower().startswith(schemes):
        raise IssuerError(url=url, cause=f"its jwks_uri does not begin with {' or '.join(schemes)}")
    return found


def fetch_json(url: str, *, timeout: float = TIMEOUT) -> Any:
    """Return the JSON document at *url*, ``http`` or ``https``. Redirections are not followed.

    :param timeout: seconds to connect and to answer.
    :raises IssuerError: there is no JSON document; the cause does not quote the answer.
    """
    client = HttpClient(body_max=ANSWER_MAX)
    request = UrlRequest(url, {"Accept": "application/json"}, deadline=clock.now() + timeout)
    try:
        reply = client.handle_request(request)
    except UpstreamError as error:
        raise IssuerError(url=url, cause=error.cause) from error
    except ValueError as error:
        raise IssuerError(url=url, cause="the address is invalid") from error
    if reply.status != 200:
        raise IssuerError(url=url, cause=f"it answers {reply.status}")
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        raise IssuerError(url=url, cause="it does not answer with JSON") from error


def _follow(claims: Any, path: Sequence[str]) -> Any:
    for name in path:
        claims = claims.get(name) if isinstance(claims, Mapping) else None
    return claims


def _words(value: Any) -> Sequence[str]:
    """Return the scopes in a claim: words of a string, or strings of a list."""
    if isinstance(value, str):
        return value.split()
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else ()
