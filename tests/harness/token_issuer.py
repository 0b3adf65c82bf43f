"""An issuer in a namespace that gives tokens to whoever has the client's secret (RFC 6749, 4.4)."""

from __future__ import annotations

import base64
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs

import jwt

from tests.harness import issuer
from tests.harness.netns import Namespace

CLIENT_ID, CLIENT_SECRET = "an-agent", "what nobody else has"
_KID = "site"


class TokenIssuer:
    """Discovery, keys and a token endpoint; a context manager that closes it."""

    def __init__(self, namespace: Namespace, address: str, port: int) -> None:
        self.url = f"http://{address}:{port}"
        self.given: list[str] = []
        """Scopes of the tokens that were given."""
        self._key = issuer.ec_key(_KID)
        self._server = _Server((address, port), self._handler(), bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = namespace.open_socket()
        self._server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._server.socket.bind((address, port))
        self._server.server_activate()
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def token(self, scope: str) -> str:
        """A token for an hour."""
        claims = issuer.Issuer.claims(self, scope=scope)  # type: ignore[arg-type]  # of its url
        return jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": _KID})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        site = self
        basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET.replace(' ', '+')}".encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == issuer.KEYS:
                    keys = [issuer.jwk(site._key, kid=_KID, alg="ES256", use="sig")]
                    issuer.send(self, {"keys": keys})
                else:
                    places = {"jwks_uri": site.url + issuer.KEYS, "token_endpoint": site.url + "/t"}
                    issuer.send(self, {"issuer": site.url, **places})

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                if self.headers.get("Authorization") != f"Basic {basic}":
                    issuer.send(self, {"error": "invalid_client"}, status=401)
                    return
                scope = form["scope"][0]
                site.given.append(scope)
                token = {"access_token": site.token(scope), "token_type": "Bearer"}
                issuer.send(self, {**token, "expires_in": issuer.HOUR})

            def log_message(self, *_: object) -> None:
                """Nothing."""

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
