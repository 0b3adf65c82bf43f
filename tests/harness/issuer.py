"""An OpenID Connect issuer of the tests' own: a real HTTP server, real keys, and a count."""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.harness.certificates import Pair
from tests.harness.netns import Namespace

AUDIENCE = "dfmeta"
DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/keys"
HOUR = 3600

Answer = Callable[[BaseHTTPRequestHandler], None]


@functools.cache
def rsa_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    """A key by a name, made once in a run: it takes a while."""
    del name
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@functools.cache
def ec_key(name: str) -> ec.EllipticCurvePrivateKey:
    """A key on P-256, by a name."""
    del name
    return ec.generate_private_key(ec.SECP256R1())


@functools.cache
def ed_key(name: str) -> ed25519.Ed25519PrivateKey:
    """An Ed25519 key, by a name."""
    del name
    return ed25519.Ed25519PrivateKey.generate()


def jwk(key: Any, **members: str) -> dict[str, Any]:
    """The public key of a private one as the issuer publishes it."""
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


class Issuer:
    """Listens from ``start`` to ``stop``, always on the same port; on loopback by default.

    ``answers`` has answers by path in the place of a document; ``fetches`` counts.
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
        self._server: ThreadingHTTPServer | None = None
        self._thread = threading.Thread()
        self.start()

    @property
    def url(self) -> str:
        """The issuer as tokens name it."""
        host = "localhost" if self._tls else self._address
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}"

    def start(self) -> None:
        """Listen."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetches[self.path] += 1
                # Who asks may have lost its patience.
                with contextlib.suppress(OSError):
                    issuer.answers.get(self.path, issuer.answer)(self)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = _Server((self._address, self._port), Handler, bind_and_activate=False)
        if self._namespace is not None:
            self._server.socket.close()
            self._server.socket = self._namespace.open_socket()
        self._server.server_bind()
        self._server.server_activate()
        self._port = self._server.server_address[1]
        if self._tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._tls.certificate, self._tls.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer as an issuer does."""
        if handler.path == DISCOVERY:
            send(handler, {"issuer": self.url, "jwks_uri": self.url + KEYS})
        elif handler.path == KEYS:
            send(handler, {"keys": self.keys})
        else:
            send(handler, {}, status=404)

    def claims(self, **claims: Any) -> dict[str, Any]:
        """Claims of a good token for an hour, with changes; None leaves one out."""
        now = int(time.time())
        good = {"iss": self.url, "aud": AUDIENCE, "sub": "robot", "iat": now, "exp": now + HOUR}
        return {name: value for name, value in (good | claims).items() if value is not None}

    def token(
        self, key: Any, kid: str | None = "rsa", algorithm: str = "RS256", **claims: Any
    ) -> str:
        """A token with such claims, signed with *key*, whoever has it."""
        headers = None if kid is None else {"kid": kid}
        return jwt.encode(self.claims(**claims), key, algorithm=algorithm, headers=headers)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind, and look no name up."""
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that trusts another authority is some tests' point."""


def send(handler: BaseHTTPRequestHandler, document: Mapping[str, Any], status: int = 200) -> None:
    """Answer with JSON."""
    send_bytes(handler, json.dumps(document).encode(), status=status)


def send_bytes(
    handler: BaseHTTPRequestHandler, body: bytes, *, status: int = 200, **headers: str
) -> None:
    """Answer with a body, whatever it is."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@contextlib.contextmanager
def silent_listener() -> Iterator[str]:
    """Address of a listener that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
