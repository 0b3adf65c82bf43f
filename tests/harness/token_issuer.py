"""An issuer in a namespace that issues tokens for a client secret (RFC 6749, 4.4)."""

from __future__ import annotations

import base64
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs

from tests.harness.issuer import DISCOVERY, HOUR, KEYS, Issuer, ec_key, jwk, send
from tests.harness.netns import Namespace

CLIENT_ID, CLIENT_SECRET = "an-agent", "known to no other client"
_KID, _TOKENS = "site", "/t"


class TokenIssuer(Issuer):
    """Discovery, keys and a token endpoint; a context manager that closes it."""

    def __init__(self, namespace: Namespace, address: str, port: int) -> None:
        super().__init__(namespace=namespace, address=address, port=port)
        self.given: list[str] = []
        """Scopes of the issued tokens."""
        self.keys = [jwk(ec_key(_KID), kid=_KID, alg="ES256", use="sig")]
        places = {"jwks_uri": self.url + KEYS, "token_endpoint": self.url + _TOKENS}
        self.answers[DISCOVERY] = lambda handler: send(handler, {"issuer": self.url, **places})
        self.answers[_TOKENS] = self._give

    def access_token(self, scope: str) -> str:
        """Return a token for an hour."""
        return self.token(ec_key(_KID), _KID, "ES256", scope=scope)

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
