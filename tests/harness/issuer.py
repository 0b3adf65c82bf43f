"""An OpenID Connect issuer for the tests: a real HTTP server, real keys, and request counts."""

import base64
import functools
import time
from collections import Counter
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.harness.netns import Namespace
from tests.harness.other_store import NOT_FOUND, Asked, OtherStore, reply

AUDIENCE = "dfmeta"
DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/keys"
HOUR = 3600
CLIENT_ID, CLIENT_SECRET = "an-agent", "known to no other client"
_SITE, _TOKENS = "site", "/t"


@functools.cache
def rsa_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    """Return an RSA key by a name; it is made once in a run, because this is slow."""
    del name
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@functools.cache
def ec_key(name: str) -> ec.EllipticCurvePrivateKey:
    """Return a key on P-256 by a name."""
    del name
    return ec.generate_private_key(ec.SECP256R1())


@functools.cache
def ed_key(name: str) -> ed25519.Ed25519PrivateKey:
    """Return an Ed25519 key by a name."""
    del name
    return ed25519.Ed25519PrivateKey.generate()


def jwk(key: Any, **members: str) -> dict[str, Any]:
    """Return the public key of *key* as the issuer publishes it."""
    public = key.public_key()
    match key:
        case rsa.RSAPrivateKey():
            result = RSAAlgorithm.to_jwk(public, as_dict=True)
        case ec.EllipticCurvePrivateKey():
            result = ECAlgorithm.to_jwk(public, as_dict=True)
        case _:
            result = OKPAlgorithm.to_jwk(public, as_dict=True)
    result.pop("key_ops", None)
    return {**result, **members}


class Issuer(OtherStore):
    """An issuer. ``answers`` replaces documents by path; ``keys`` are published."""

    def __init__(self, **place: Any) -> None:
        super().__init__(self.say, **place)
        self.keys: list[dict[str, Any]] = []

    @property
    def fetches(self) -> Counter[str]:
        """Return the number of requests by path."""
        return Counter(self.targets())

    def say(self, asked: Asked) -> bytes:
        """Return the discovery document or the keys, else 404."""
        known = {
            DISCOVERY: reply({"issuer": self.url, "jwks_uri": self.url + KEYS}),
            KEYS: reply({"keys": self.keys}),
        }
        return (known | self.answers).get(asked.target, NOT_FOUND)

    def claims(self, **claims: Any) -> dict[str, Any]:
        """Return the claims of a valid token for an hour, with changes; None omits a claim."""
        now = int(time.time())
        good = {"iss": self.url, "aud": AUDIENCE, "sub": "robot", "iat": now, "exp": now + HOUR}
        return {name: value for name, value in (good | claims).items() if value is not None}

    def token(
        self, key: Any, kid: str | None = "rsa", algorithm: str = "RS256", **claims: Any
    ) -> str:
        """Return a token with these claims, signed with *key*, which need not be published."""
        headers = None if kid is None else {"kid": kid}
        return jwt.encode(self.claims(**claims), key, algorithm=algorithm, headers=headers)


class TokenIssuer(Issuer):
    """An issuer that also issues tokens for a client secret (RFC 6749, 4.4)."""

    def __init__(self, namespace: Namespace, address: str, port: int) -> None:
        super().__init__(namespace=namespace, address=address, port=port)
        self.given: list[str] = []
        """Scopes of the issued tokens."""
        self.keys = [jwk(ec_key(_SITE), kid=_SITE, alg="ES256", use="sig")]
        places = {"jwks_uri": self.url + KEYS, "token_endpoint": self.url + _TOKENS}
        self.answers[DISCOVERY] = reply({"issuer": self.url, **places})

    def access_token(self, scope: str) -> str:
        """Return a token for an hour."""
        return self.token(ec_key(_SITE), _SITE, "ES256", scope=scope)

    def say(self, asked: Asked) -> bytes:
        """Return a token for the client's secret, and all that another issuer says."""
        if asked.target != _TOKENS:
            return super().say(asked)
        basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET.replace(' ', '+')}".encode()).decode()
        if asked.headers.get("authorization") != f"Basic {basic}":
            return reply({"error": "invalid_client"}, status=401)
        (scope,) = parse_qs(asked.body)["scope"]
        self.given.append(scope)
        token = {"access_token": self.access_token(scope), "token_type": "Bearer"}
        return reply({**token, "expires_in": HOUR})
