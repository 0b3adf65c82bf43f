"""The admin listener: health, metrics, version, the status page, and what commands ask for.

It has no authentication and tells who the guests are: it belongs on loopback, and never on
tap-metadata.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol

import eventlet
import webob
import webob.exc
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder

from dfmeta.admin.browsers import own_names, stranger
from dfmeta.admin.server import AdminServer
from dfmeta.exceptions import StartError
from dfmeta.health import Health
from dfmeta.proxy.environ import SAME_HOST
from dfmeta.proxy.limits import SEND_BUFFER
from dfmeta.proxy.sockets import keep_room

Listing = Callable[[], Any]
Page = Callable[[webob.Request], webob.Response]

_PAGE = "/"
_OF_THIS_HOST = frozenset({"/options"})
"""Those that are answered to no other host: a digest lets who has it try secrets on its own."""
_FORMATS = frozenset({"0.0.1", "0.0.4", "1.0.0"})
"""Versions of Prometheus' formats and of OpenMetrics that a client may ask for."""
_VERSION = re.compile(r";\s*version=([^;]*)")


class _Collected(CollectorRegistry):
    """What is to be written, as the library wants it."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        super().__init__()
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


class Api(Protocol):
    """Further routes, with rules of their own: :class:`dfmeta.store.api.admin.AdminApi`."""

    def handles(self, path: str) -> bool:
        """Whether a path is one of these, or would be one of these if there was such a thing."""

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request (PEP 3333)."""


class AdminApplication:
    """Routes of the admin listener.

    :param metrics: gives every metric.
    :param listings: path → value that it answers with, as JSON.
    :param api: the store's, where there is a store; may be replaced at any time.
    :param page: answers ``/``; see :class:`dfmeta.admin.page.StatusPage`.
    :param listen: admin_listen; its host's name is ours.
    """

    def __init__(
        self,
        health: Health,
        metrics: Callable[[], Iterable[Metric]],
        listings: Mapping[str, Listing],
        *,
        api: Api | None = None,
        page: Page | None = None,
        listen: str = "",
    ) -> None:
        self._health = health
        self._metrics = metrics
        self.api = api
        self._names = own_names(listen)
        self._routes: dict[str, Page] = {
            "/healthz": self._live,
            "/healthz/liveness": self._live,
            "/healthz/readiness": self._ready,
            "/metrics": self._counted,
            "/version": lambda _request: _json({"version": version("dfmeta")}),
            **{path: partial(self._listed, listing) for path, listing in listings.items()},
            **({} if page is None else {_PAGE: page}),
        }

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request (PEP 3333)."""
        path = environ.get("PATH_INFO", "")
        if self.api is not None and self.api.handles(path):
            return self.api(environ, start_response)
        request, page = webob.Request(environ), self._routes.get(path)
        if page is None:
            # In the words of hollow-metadataservice, as the API has it below its own paths.
            response = _json({"message": "invalid request - route not found"}, status=404)
        elif request.method not in ("GET", "HEAD"):
            response = webob.exc.HTTPMethodNotAllowed(headers={"Allow": "GET, HEAD"})
        else:
            response = page(request)
        sent: Iterable[bytes] = response(environ, start_response)
        return sent

    def _live(self, _request: webob.Request) -> webob.Response:
        return _json({"status": "UP"})

    def _ready(self, _request: webob.Request) -> webob.Response:
        missing = self._health.missing()
        if missing:
            return _json({"status": "DOWN", "missing": missing}, status=503)
        return _json({"status": "UP"})

    def _listed(self, listing: Listing, request: webob.Request) -> webob.Response:
        strange = stranger(request.environ, self._names)
        if strange:
            return _json({"message": strange}, status=403)
        if request.environ["PATH_INFO"] in _OF_THIS_HOST and not request.environ.get(SAME_HOST):
            return _json({"message": "this host alone may ask"}, status=403)
        return _json(listing())

    def _counted(self, request: webob.Request) -> webob.Response:
        """The metrics in Prometheus' text format 0.0.4, or in another one that a client accepts."""
        accept = request.environ.get("HTTP_ACCEPT", "")
        # The library repeats any version that it is given, or fails over it.
        known = [one for one in accept.split(",") if _FORMATS.issuperset(_VERSION.findall(one))]
        encode, kind = choose_encoder(",".join(known))
        response = webob.Response(body=encode(_Collected(self._metrics)))
        response.headers["Content-Type"] = kind
        return response


def serve(address: str, application: AdminApplication, *, sock: Any = None) -> AdminServer:
    """Listen on *address* (HOST:PORT) and serve in a thread of its own.

    :param sock: a listener that somebody else has opened there; None: open one.
    :raises StartError: when it cannot be listened on.
    """
    listener = _listen(address) if sock is None else sock
    # A pushed document comes from far away, perhaps: more than a guest's few bytes.
    keep_room(listener, receive=SEND_BUFFER)
    server = AdminServer(listener, application)
    server.start()
    return server


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
