"""A cache of the issuer's public keys (JWK, RFC 7517).

Keys change while the service runs: an unknown key id causes a new fetch. Any client can send
unknown key ids, so this happens at most once in :data:`SEARCH_PAUSE` for all clients together. A
request with an unknown key id that arrives during a fetch waits for its result, and does not cause
another one. Fetched keys stay valid while the issuer does not answer.

Trust: the keys come from the issuer. The algorithms of a key come from the key and never from a
token (RFC 8725, 3.1), and only public keys of asymmetric algorithms are accepted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt

from dfmeta.errors import AuthUnavailable, IssuerError
from dfmeta.runtime import clock

LOG = logging.getLogger(__name__)

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
SEARCH_PAUSE: Final = 5.0
"""Seconds between two fetches for unknown key ids."""
RETRY_PAUSE: Final = 2.0
"""Seconds from a failed fetch to the next one, while there are no keys."""
AWAY_PAUSE: Final = 30.0
"""Seconds from a failed fetch to the next one, while there are keys."""

UNAVAILABLE: Final = "authentication is not available at the moment"
_PUBLIC: Final = frozenset({"kty", "kid", "alg", "crv", "n", "e", "x", "y"})
"""Members that are read; the secret ones of a private key, published by mistake, are not."""


@dataclass(frozen=True)
class Key:
    """A public key and the algorithms of signatures that it may verify."""

    kid: str | None
    algorithms: tuple[str, ...]
    public: Any
    """The key as an object of the cryptography library."""


def read_keys(document: object) -> Iterator[Key]:
    """Yield the keys of a JWK set that can verify a signature; other keys are skipped.

    :raises IssuerError: *document* is not a set; the caller has to fill in ``url``.
    """
    members = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(members, list):
        raise IssuerError(url="JWK set", cause="there is no list of keys in it")
    for member in members[:KEYS_MAX]:
        key = _read_key(member) if isinstance(member, dict) else None
        if key is not None:
            yield key


class KeyCache:
    """Holds the keys of the last successful fetch.

    :param fetch: returns the keys, or raises :class:`IssuerError`. Blocks only the caller's thread.
    :param clock: monotonic seconds.
    """

    def __init__(
        self, fetch: Callable[[], Sequence[Key]], *, clock: Callable[[], float] = clock.now
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: tuple[Key, ...] = ()
        self._due = self._search_due = clock()
        self._failure = ""

    def find(self, kid: str | None, algorithm: str) -> Key | None:
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
        if self._clock() < self._due:
            return
        # While there are keys, no thread waits for the fetch of another thread.
        if self._lock.acquire(blocking=not self._keys):
            try:
                if self._clock() >= self._due:
                    self._load()
            finally:
                self._lock.release()

    def _search(self) -> None:
        """Fetch again, unless another thread has just done so, also while this thread waited."""
        with self._lock:
            now = self._clock()
            if self._keys and now >= self._search_due:
                self._search_due = now + SEARCH_PAUSE
                self._load()

    def _load(self) -> None:
        first = not self._keys
        try:
            self._keys = tuple(self._fetch())
        except IssuerError as error:
            if not self._failure:
                LOG.warning("no keys from the issuer of tokens: %s", error)
            self._failure = str(error)
            self._due = self._clock() + (AWAY_PAUSE if self._keys else RETRY_PAUSE)
        else:
            LOG.log(
                logging.INFO if self._failure or first else logging.DEBUG,
                "the issuer of tokens has %d keys",
                len(self._keys),
            )
            self._failure = ""
            self._due = self._clock() + LIFESPAN


def _pick(keys: Sequence[Key], kid: str | None, algorithm: str) -> Key | None:
    fitting = [
        key for key in keys if algorithm in key.algorithms and (kid is None or key.kid == kid)
    ]
    # A token without a key id names a key only where there is one (RFC 7515, 4.1.4).
    return fitting[0] if fitting and (kid is not None or len(fitting) == 1) else None


def _read_key(member: dict[str, Any]) -> Key | None:
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
    return Key(kid, algorithms, public)


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
