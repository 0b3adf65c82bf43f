"""JSON Web Tokens of an OpenID Connect issuer (RFC 7519, RFC 9068; OpenID Connect Discovery 1.0).

A token is valid if one of the issuer's keys has signed it, with an asymmetric algorithm that fits
the key; if issuer and audience are the configured ones; and if it is valid at this time.

Keys change while the service runs: an unknown key id causes a new fetch. Any client can send
unknown key ids, so this happens at most once in :data:`LONGEST_PAUSE` for all clients together. A
request with an unknown key id that arrives during a fetch waits for its result, and does not cause
another one. Fetched keys stay valid while the issuer does not answer.

Trust: a token is not trusted until its signature is verified; before that, only its key id and
algorithm are read, to find a key. The issuer's URL comes from the operator, that of its keys from
the issuer; with http instead of https, any host on the path may answer with its own keys.
The algorithms of a key come from the key and never from a token (RFC 8725, 3.1), and only public
keys of asymmetric algorithms are accepted.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt

from dfmeta.errors import AuthUnavailable, IssuerError, UpstreamError
from dfmeta.http.client import HttpClient, UrlRequest
from dfmeta.runtime import clock, throttle
from dfmeta.store.auth.caller import Client

LOG = logging.getLogger(__name__)

DISCOVERY: Final = "/.well-known/openid-configuration"
LEEWAY: Final = 5.0
"""Seconds that the issuer's clock and ours may differ."""
REQUIRED: Final = ("exp", "iss", "aud")
SUBJECT_SHOWN: Final = 128
SCOPE_CLAIMS: Final = ("scope", "scp")
"""The claim of RFC 8693, 4.2, and its name at some other issuers."""

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

RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}
"""RFC 7518, 3.4; RFC 8037, 3.1."""
ALGORITHMS: Final = frozenset({*RSA_ALGORITHMS, *CURVES.values()})
RSA_BITS: Final = 2048
"""Smallest RSA key that is accepted (RFC 7518, 3.3)."""
KEYS_MAX: Final = 64
"""Maximum number of keys that are read of a set."""

LIFESPAN: Final = 300.0
"""Seconds after which the keys are fetched again, and a withdrawn key is no longer accepted."""

UNAVAILABLE: Final = "authentication is not available at the moment"
_PUBLIC: Final = frozenset({"kty", "kid", "alg", "crv", "n", "e", "x", "y"})
"""Members that are read; the secret ones of a private key, published by mistake, are not."""


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

    def _key_of(self, token: str) -> IssuerKey | None:
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
    claim = claims.get("sub")
    text = claim if isinstance(claim, str) else ""
    escaped = text.encode("unicode_escape").decode("ascii").replace(" ", r"\x20")
    return escaped[:SUBJECT_SHOWN] or "-"


def granted(claims: Mapping[str, Any], roles_claim: str) -> frozenset[str]:
    """Return the scopes in verified claims: in ``scope``, in ``scp`` and in the roles claim.

    :param roles_claim: a claim's name, which may contain dots, or names of members joined by dots.
    """
    values = [claims.get(name) for name in SCOPE_CLAIMS]
    if roles_claim in claims:
        values.append(claims[roles_claim])
    elif roles_claim:
        values.append(_follow(claims, roles_claim.split(".")))
    return frozenset(scope for value in values for scope in _words(value))


def issuer_keys(settings: OidcSettings) -> Sequence[IssuerKey]:
    """Fetch the issuer's keys that can verify a signature.

    :raises IssuerError: the keys cannot be fetched, or none of them can verify a token.
    """
    url = settings.jwks_url or discover(settings.issuer)
    document = fetch_json(url)
    members = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(members, list):
        raise IssuerError(url=url, cause="there is no list of keys in it")
    keys = [_read_key(member) for member in members[:KEYS_MAX] if isinstance(member, dict)]
    usable = tuple(key for key in keys if key is not None)
    if not usable:
        raise IssuerError(url=url, cause="there is no key in it that can verify a token")
    return usable


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
    uri = document.get("jwks_uri")
    schemes = ("https://",) if issuer.lower().startswith("https:") else ("https://", "http://")
    if not isinstance(uri, str) or not uri.lower().startswith(schemes):
        raise IssuerError(url=url, cause=f"its jwks_uri does not begin with {' or '.join(schemes)}")
    return uri


def fetch_json(url: str, *, timeout: float = clock.ANSWER_TIMEOUT) -> Any:
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
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else ()


@dataclass(frozen=True)
class IssuerKey:
    """A public key and the algorithms of signatures that it may verify."""

    kid: str | None
    algorithms: tuple[str, ...]
    public: Any
    """The key as an object of the cryptography library."""


class KeyCache:
    """Holds the keys of the last successful fetch.

    :param fetch: returns the keys, or raises :class:`IssuerError`. Blocks only the caller's thread.
    """

    def __init__(self, fetch: Callable[[], Sequence[IssuerKey]]) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._keys: tuple[IssuerKey, ...] = ()
        self._due = self._search_due = clock.now()
        self._failure = ""

    def find(self, kid: str | None, algorithm: str) -> IssuerKey | None:
        """Return the key that a token names; None if there is no such key.

        :param kid: key id in the token, not trusted; None stands for the only key of *algorithm*.
        :raises AuthUnavailable: the key is unknown, and the issuer does not answer.
        """
        self._refresh()
        key = _pick(self._keys, kid, algorithm)
        if key is None:
            self._search()
            key = _pick(self._keys, kid, algorithm)
        if key is None and self._failure:
            # The issuer may have a new key with this id.
            raise AuthUnavailable(message=UNAVAILABLE, cause=self._failure)
        return key

    def _refresh(self) -> None:
        if clock.now() < self._due:
            return
        # While there are keys, no thread waits for the fetch of another thread.
        if self._lock.acquire(blocking=not self._keys):
            try:
                if clock.now() >= self._due:
                    self._load()
            finally:
                self._lock.release()

    def _search(self) -> None:
        """Fetch again, unless another thread has just done so, also while this thread waited."""
        with self._lock:
            now = clock.now()
            if self._keys and now >= self._search_due:
                self._search_due = now + throttle.LONGEST_PAUSE
                self._load()

    def _load(self) -> None:
        first = not self._keys
        try:
            self._keys = tuple(self._fetch())
        except IssuerError as error:
            if not self._failure:
                LOG.warning("no keys from the issuer of tokens: %s", error)
            self._failure = str(error)
            # Without keys each request needs the issuer; with keys one request waits for it.
            pause = clock.FULL_CHECK_INTERVAL if self._keys else clock.CHECK_INTERVAL
            self._due = clock.now() + pause
        else:
            LOG.log(
                logging.INFO if self._failure or first else logging.DEBUG,
                "the issuer of tokens has %d keys",
                len(self._keys),
            )
            self._failure = ""
            self._due = clock.now() + LIFESPAN


def _pick(keys: Sequence[IssuerKey], kid: str | None, algorithm: str) -> IssuerKey | None:
    fitting = [
        key for key in keys if algorithm in key.algorithms and (kid is None or key.kid == kid)
    ]
    # A token without a key id names a key only where there is one (RFC 7515, 4.1.4).
    return fitting[0] if fitting and (kid is not None or len(fitting) == 1) else None


def _read_key(member: dict[str, Any]) -> IssuerKey | None:
    algorithms = _algorithms(member)
    kid = member.get("kid")
    if not algorithms or not isinstance(kid, str | None):
        return None
    # DEBUG only: any client can cause a fetch, and each fetch finds the same keys.
    try:
        # The algorithm only determines how the key is read.
        public = jwt.PyJWK(
            {name: value for name, value in member.items() if name in _PUBLIC}, algorithms[0]
        ).key
    except (jwt.PyJWTError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        LOG.debug("a key of the issuer of tokens cannot be read: %s", type(error).__name__)
        return None
    if member["kty"] == "RSA" and public.key_size < RSA_BITS:
        LOG.debug("an RSA key of the issuer of tokens has fewer than %d bits: not used", RSA_BITS)
        return None
    return IssuerKey(kid, algorithms, public)


def _algorithms(member: dict[str, Any]) -> tuple[str, ...]:
    """Return the algorithms of a key; none if it is not for signatures or of an unknown type."""
    if member.get("use", "sig") != "sig":
        return ()
    operations = member.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return ()
    able: tuple[str, ...]
    match member.get("kty"), member.get("crv"):
        case "RSA", _:
            able = RSA_ALGORITHMS
        case ("EC", "P-256" | "P-384" | "P-521" as curve) | ("OKP", "Ed25519" as curve):
            able = (CURVES[curve],)
        case _:
            return ()
    stated = member.get("alg")
    return able if stated is None else tuple(name for name in able if name == stated)
