"""The admin listener: health, metrics, version, the status page, and what commands ask for.

It has no authentication and tells who the guests are: it belongs on loopback, and never on
tap-metadata.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any, Protocol

import eventlet
import webob
import webob.exc
from eventlet import wsgi
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest

from dfmeta.exceptions import StartError
from dfmeta.health import Health
from dfmeta.proxy.admin_http import StrictProtocol
from dfmeta.proxy.browsers import stranger

SILENCE = 60.0
"""Seconds that a client may keep a request, or a connection between two, without a byte."""

Rows = Callable[[], list[dict[str, Any]]]
Page = Callable[[webob.Request], webob.Response]

_PATHS = frozenset({"/healthz", "/healthz/liveness", "/healthz/readiness", "/metrics", "/version"})
"""Those that are always there."""
_PAGE = "/"


class _Collected(CollectorRegistry):
    """What is to be written, as the library wants it."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        super().__init__()
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


class Api(Protocol):
    """Further routes, with rules of their own: :class:`dfmeta.store.admin.AdminApi`."""

    def handles(self, path: str) -> bool:
        """Whether a path is one of these, or would be one of these if there was such a thing."""

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request (PEP 3333)."""


class AdminApplication:
    """Routes of the admin listener.

    :param metrics: gives every metric.
    :param listings: path → rows that it answers with, as a JSON array.
    :param api: the store's, where there is a store; may be replaced at any time.
    :param page: answers ``/``; see :class:`dfmeta.proxy.status_http.StatusPage`.
    :param listen: admin_listen; its host's name is ours.
    """

    def __init__(
        self,
        health: Health,
        metrics: Callable[[], Iterable[Metric]],
        listings: dict[str, Rows],
        *,
        api: Api | None = None,
        page: Page | None = None,
        listen: str = "",
    ) -> None:
        self._health = health
        self._metrics = metrics
        self._listings = listings
        self.api = api
        self._page = page
        self._listen = listen

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request (PEP 3333)."""
        path = environ.get("PATH_INFO", "")
        if self.api is not None and self.api.handles(path):
            return self.api(environ, start_response)
        request = webob.Request(environ)
        if not self._is_there(path):
            # In the words of hollow-metadataservice, as the API has it below its own paths.
            response = _json({"message": "invalid request - route not found"}, status=404)
        elif request.method not in ("GET", "HEAD"):
            response = webob.exc.HTTPMethodNotAllowed(headers={"Allow": "GET, HEAD"})
        else:
            response = self._route(path, request)
        return response(environ, start_response)  # type: ignore[no-any-return]  # webob is untyped

    def _is_there(self, path: str) -> bool:
        return (
            path in _PATHS or path in self._listings or (path == _PAGE and self._page is not None)
        )

    def _route(self, path: str, request: webob.Request) -> webob.Response:
        if path == _PAGE and self._page is not None:
            return self._page(request)
        if path in ("/healthz", "/healthz/liveness"):
            return _json({"status": "UP"})
        if path == "/healthz/readiness":
            missing = self._health.missing()
            if missing:
                return _json({"status": "DOWN", "missing": missing}, status=503)
            return _json({"status": "UP"})
        if path == "/metrics":
            body = generate_latest(_Collected(self._metrics))
            return webob.Response(
                status=200, headerlist=[("Content-Type", CONTENT_TYPE_LATEST)], app_iter=[body]
            )
        if path == "/version":
            return _json({"version": version("dfmeta")})
        strange = stranger(request.environ, self._listen)
        if strange:
            return _json({"message": strange}, status=403)
        return _json(self._listings[path]())


def serve(address: str, application: AdminApplication, *, sock: Any = None) -> Any:
    """Listen on *address* (HOST:PORT) and serve in a thread of its own.

    :param sock: a listener that somebody else has opened there; None: open one.
    :raises StartError: when it cannot be listened on.
    """
    return eventlet.spawn(
        wsgi.server,
        _listen(address) if sock is None else sock,
        application,
        protocol=StrictProtocol,
        socket_timeout=SILENCE,
        keepalive=SILENCE,
        log_output=False,
        debug=False,
    )


def _listen(address: str) -> Any:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Not shared: eventlet would let a second daemon have the same address.
        return eventlet.listen((host, int(port)), family=family, reuse_port=False)
    except OSError as error:
        raise StartError(
            cause=f"[df_metadata] admin_listen = {address} cannot be listened on: {error.strerror}",
            remedy="Stop what uses it, or give another HOST:PORT of this host",
        ) from error


def _json(value: Any, *, status: int = 200) -> webob.Response:
    return webob.Response(
        status=status, content_type="application/json", charset="UTF-8", text=json.dumps(value)
    )
