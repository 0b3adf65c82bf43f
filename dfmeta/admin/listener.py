"""The admin listener: health, metrics, version, the status page, and the data for commands.

It has no authentication and names the guests: it belongs on loopback, and never on tap-metadata.

Each user of the host may ask for the listings, in a loop as well, and they are made in the guests'
process. So one request at a time makes a listing, which is reused, and takes a bounded share of the
process' time.
"""

import json
import platform
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Protocol

import webob
from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from dfmeta.admin.browsers import cross_origin_reason, own_names
from dfmeta.admin.server import SAME_HOST, AdminServer
from dfmeta.errors import StartError
from dfmeta.http import limits, sockets
from dfmeta.runtime import clock, hub, threads

Listing = Callable[[], Any]
Page = Callable[[webob.Request], webob.Response]

_PAGE = "/"
_OF_THIS_HOST = frozenset({"/options"})
"""Paths that only this host may request: with a digest, a client could guess secrets offline."""
_FRESH = frozenset({"/probe"})
"""Paths of listings that each request makes anew: they try something."""
_FORMATS = frozenset({"0.0.1", "0.0.4", "1.0.0"})
"""Versions of Prometheus' formats and of OpenMetrics that a client may ask for."""
_VERSION = re.compile(r";\s*version=([^;]*)")


SHARE: Final = 10
"""A text is reused for so many times as long as it took to make it: a small one is always new."""


class ListingCache:
    """The text of a listing.

    :param make: returns the value; may let other greenthreads run.
    :param apart: calls a function in another thread, while the hub serves guests.
    """

    def __init__(
        self, make: Callable[[], Any], *, apart: Callable[..., Any] = threads.call_in_thread
    ) -> None:
        self._make, self._apart = make, apart
        self._lock = threads.Semaphore(1)
        self._text = b""
        self._until = float("-inf")

    def text(self) -> bytes:
        """Return the listing as JSON."""
        with self._lock:
            begun = clock.now()
            if begun >= self._until:
                self._text = self._apart(encode, self._make())
                made = clock.now()
                self._until = made + min(SHARE * (made - begun), clock.CHECK_INTERVAL)
            return self._text

    def forget(self) -> None:
        """Make the text anew for the next request: the caller has changed the value."""
        self._until = float("-inf")


def json_response(value: Any, *, status: int = 200, allow: str = "") -> webob.Response:
    """Return a response with a JSON document.

    :param value: bytes: the document in its encoding.
    :param allow: methods, for a 405.
    """
    body = value if isinstance(value, bytes) else encode(value)
    response = webob.Response(
        status=status, content_type="application/json", charset="UTF-8", body=body
    )
    if allow:
        response.headers["Allow"] = allow
    return response


def encode(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value).encode()


class _Collected(CollectorRegistry):
    """Adapter that gives metrics to the library's encoders."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        super().__init__()
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


class ProcessMetrics(ProcessCollector):
    """``process_*`` of this process, a daemon's main one, and ``dfmeta_build_info``.

    They are in no registry, because the samples of workers are added to those of the registry.
    """

    def _boot_time(self) -> float:
        # Not from /proc/stat, which the unit of dfmeta-store hides (ProcSubset=pid).
        return clock.booted()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        yield from super().collect()
        labels = {"version": version("dfmeta"), "python": platform.python_version()}
        build = GaugeMetricFamily(
            "dfmeta_build_info", "1, with the versions of dfmeta and of Python", labels=list(labels)
        )
        build.add_metric(list(labels.values()), 1)
        yield build


class AdminRoutes(Protocol):
    """Further routes with their own rules.

    :class:`dfmeta.store.api.admin.AdminApi`, :class:`dfmeta.admin.attachments.AttachmentsApi`.
    """

    def handles(self, path: str) -> bool:
        """Return whether *path* belongs to these routes, even if its object does not exist."""

    def __call__(self, request: webob.Request) -> webob.Response:
        """Answer one request."""


class AdminApplication:
    """Routes of the admin listener.

    :param metrics: returns all metrics but those of the process.
    :param listings: path → function that returns the value to send as JSON.
    :param api: the store's API, if there is a store; may be replaced at any time.
    :param more: APIs that stay.
    :param page: answers ``/``; see :class:`dfmeta.admin.status.StatusPage`.
    :param listen: admin_listen; its host's name is accepted in Host.
    """

    def __init__(
        self,
        health: hub.Health,
        metrics: Callable[[], Iterable[Metric]],
        listings: Mapping[str, Listing],
        *,
        api: AdminRoutes | None = None,
        more: Sequence[AdminRoutes] = (),
        page: Page | None = None,
        listen: str = "",
    ) -> None:
        self._health = health
        self._metrics, self._process = metrics, ProcessMetrics(registry=None)
        self.api, self._more = api, more
        self._names = own_names(listen)
        self._routes: dict[str, Page] = {
            "/healthz": self._live,
            "/healthz/liveness": self._live,
            "/healthz/readiness": self._ready,
            "/metrics": self._counted,
            "/version": lambda _request: json_response({"version": version("dfmeta")}),
            **{
                path: partial(
                    self._listed, _fresh(make) if path in _FRESH else ListingCache(make).text
                )
                for path, make in listings.items()
            },
            **({} if page is None else {_PAGE: page}),
        }

    def __call__(self, request: webob.Request) -> webob.Response:
        """Answer one request."""
        # Not request.path_info, which is an error for bytes that are not UTF-8.
        path = request.environ["PATH_INFO"]
        for api in (self.api, *self._more):
            if api is not None and api.handles(path):
                return api(request)
        page = self._routes.get(path)
        if page is None:
            # The message of hollow-metadataservice, as in the API's own paths.
            return json_response({"message": "invalid request - route not found"}, status=404)
        if request.method not in ("GET", "HEAD"):
            return json_response({"message": "method not allowed"}, status=405, allow="GET, HEAD")
        return page(request)

    def _live(self, _request: webob.Request) -> webob.Response:
        return json_response({"status": "UP"})

    def _ready(self, _request: webob.Request) -> webob.Response:
        missing = self._health.missing()
        if missing:
            return json_response({"status": "DOWN", "missing": missing}, status=503)
        return json_response({"status": "UP"})

    def _listed(self, text: Callable[[], bytes], request: webob.Request) -> webob.Response:
        strange = cross_origin_reason(request.headers, self._names)
        if strange:
            return json_response({"message": strange}, status=403)
        if request.environ["PATH_INFO"] in _OF_THIS_HOST and not request.environ.get(SAME_HOST):
            return json_response({"message": "this host alone may ask"}, status=403)
        return json_response(text())

    def _counted(self, request: webob.Request) -> webob.Response:
        """Answer with the metrics in Prometheus' text format 0.0.4, or in another accepted one.

        The body is compressed if the client accepts gzip (RFC 9110, 12.5.3).
        """
        accept = request.headers.get("Accept", "").split(",")
        # The library repeats any version from the header, or fails on it.
        kinds = [kind for kind in accept if _FORMATS.issuperset(_VERSION.findall(kind))]
        encode, kind = choose_encoder(",".join(kinds))
        # In a thread: listing the files of 4,096 connections takes some 8 ms.
        process = threads.call_in_thread(list, self._process.collect())
        response = webob.Response(body=encode(_Collected(lambda: [*self._metrics(), *process])))
        response.headers["Content-Type"] = kind
        response.vary = ("Accept", "Accept-Encoding")
        codings = request.accept_encoding
        # False without the header: such a client accepts every coding, and may not know gzip.
        if codings and codings.acceptable_offers(["gzip"]):
            response.encode_content("gzip")
        return response


def serve(address: str, application: AdminApplication, *, sock: Any = None) -> AdminServer:
    """Listen on *address* (HOST:PORT) and serve in a separate thread.

    :param sock: an open listener at that address, such as systemd's; None: open one.
    :raises StartError: if dfmeta cannot listen on the address.
    """
    listener = _listen(address) if sock is None else sock
    # A pushed document is larger than a guest's request, and may come over a slow network.
    sockets.keep_room(listener, receive=limits.SEND_BUFFER)
    server = AdminServer(listener, application)
    server.start()
    return server


def _listen(address: str) -> Any:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # No reuse_port: with eventlet's default, a second daemon could listen on the same address.
        return threads.listen((host, int(port)), family=family, reuse_port=False)
    except OSError as error:
        raise StartError(
            cause=f"cannot listen on [df_metadata] admin_listen = {address}: {error.strerror}",
            remedy="Stop the program that uses it, or set another HOST:PORT of this host",
        ) from error


def _fresh(listing: Listing) -> Callable[[], bytes]:
    return lambda: encode(listing())
