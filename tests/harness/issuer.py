"""An OpenID Connect issuer for the tests: a real HTTP server, real keys, and request counts."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.harness.certificates import Pair
from tests.harness.closing import Closing, serving
from tests.harness.netns import Namespace

AUDIENCE = "dfmeta"
DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/keys"
HOUR = 3600
CLIENT_ID, CLIENT_SECRET = "an-agent", "known to no other client"
_SITE, _TOKENS = "site", "/t"

Answer = Callable[[BaseHTTPRequestHandler], None]


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
            found = RSAAlgorithm.to_jwk(public, as_dict=True)
        case ec.EllipticCurvePrivateKey():
            found = ECAlgorithm.to_jwk(public, as_dict=True)
        case _:
            found = OKPAlgorithm.to_jwk(public, as_dict=True)
    found.pop("key_ops", None)
    return {**found, **members}


class Issuer(Closing):
    """An issuer that listens from ``start`` to ``stop``, always on the same port.

    It listens on loopback by default. ``answers`` replaces documents by path; ``fetches`` counts
    requests by path.
    """

    def __init__(
        self,
        *,
        tls: Pair | None = None,
        namespace: Namespace | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.keys: list[dict[str, Any]] = []
        self.fetches: Counter[str] = Counter()
        self.answers: dict[str, Answer] = {}
        self._tls = tls
        self._namespace, self._address, self._port = namespace, address, port
        self._serving = contextlib.ExitStack()
        self.start()

    @property
    def url(self) -> str:
        """Return the issuer's URL, as tokens name it."""
        host = "localhost" if self._tls else self._address
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}"

    def start(self) -> None:
        """Start to listen."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetches[self.path] += 1
                # The client may have given up.
                with contextlib.suppress(OSError):
                    issuer.answers.get(self.path, issuer.answer)(self)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        server = _Server((self._address, self._port), Handler, bind_and_activate=False)
        if self._namespace is not None:
            server.socket.close()
            server.socket = self._namespace.open_socket()
        server.server_bind()
        server.server_activate()
        self._port = server.server_address[1]
        if self._tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._tls.certificate, self._tls.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        self._serving.enter_context(serving(server))

    def stop(self) -> None:
        """Stop to listen, so that connections are refused."""
        self._serving.close()

    def close(self) -> None:
        """End the issuer."""
        self.stop()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Send the discovery document or the keys, else 404."""
        if handler.path == DISCOVERY:
            send(handler, {"issuer": self.url, "jwks_uri": self.url + KEYS})
        elif handler.path == KEYS:
            send(handler, {"keys": self.keys})
        else:
            send(handler, {}, status=404)

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
        self.answers[DISCOVERY] = lambda handler: send(handler, {"issuer": self.url, **places})
        self.answers[_TOKENS] = self._give

    def access_token(self, scope: str) -> str:
        """Return a token for an hour."""
        return self.token(ec_key(_SITE), _SITE, "ES256", scope=scope)

    def _give(self, handler: BaseHTTPRequestHandler) -> None:
        form = parse_qs(handler.rfile.read(int(handler.headers["Content-Length"])).decode())
        basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET.replace(' ', '+')}".encode()).decode()
        if handler.headers.get("Authorization") != f"Basic {basic}":
            send(handler, {"error": "invalid_client"}, status=401)
            return
        scope = form["scope"][0]
        self.given.append(scope)
        token = {"access_token": self.access_token(scope), "token_type": "Bearer"}
        send(handler, {**token, "expires_in": HOUR})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without a lookup of the host name."""
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: in some tests the client trusts another authority."""


def send(handler: BaseHTTPRequestHandler, document: Mapping[str, Any], status: int = 200) -> None:
    """Send an answer with JSON."""
    send_bytes(handler, json.dumps(document).encode(), status=status)


def send_bytes(
    handler: BaseHTTPRequestHandler, body: bytes, *, status: int = 200, **headers: str
) -> None:
    """Send an answer with any body."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@contextlib.contextmanager
def silent_listener() -> Iterator[str]:
    """Yield the URL of a listener that accepts connections and never sends an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
