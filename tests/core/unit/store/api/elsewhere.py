"""The admin API on a port of loopback, in a thread of this process, for tests of its client."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import webob

from dfmeta.admin.listener import AdminApplication
from dfmeta.health import Health
from dfmeta.store.auth.caller import Authorizer, Client
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.api.support import make_api


class Api(ThreadingMixIn, WSGIServer):
    """Answers from a repository as the admin listener does.

    :param token: the one that is known; at first it may do everything.
    """

    daemon_threads = True

    def __init__(self, repository: Repository, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = token
        self.allowed = frozenset({"read", "write"})
        """The scopes of that token."""
        self.requests: list[str] = []
        self.failing = 0
        """A status that everything is answered with; 0: what is right."""
        self.message = "it fails"
        """What goes with it."""
        api = make_api(repository, authorizer=Authorizer(self))
        self._application = AdminApplication(Health(), list, {}, api=api)
        self.set_app(self._answer)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def client(self, token: str) -> Client | None:
        """See :class:`dfmeta.store.auth.caller.Verifier`."""
        return Client("token known", self.allowed) if token == self.token else None

    def _answer(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        query = f"?{environ['QUERY_STRING']}" if environ["QUERY_STRING"] else ""
        self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}{query}")
        if not self.failing:
            return self._application(environ, start_response)
        response = webob.Response(status=self.failing, json={"message": self.message})
        return response(environ, start_response)  # type: ignore[no-any-return]  # webob is untyped


class _Handler(WSGIRequestHandler):
    def log_message(self, *_args: Any) -> None:
        """Say nothing."""
