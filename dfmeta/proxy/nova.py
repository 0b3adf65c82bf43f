"""Nova's metadata API as a backend.

The upstream header set is built from scratch: of the guest's headers only ``Accept`` and, for a
password, the body's type go on, so that no spelling of an X- header of a guest's can reach Nova
(``X-Metadata-Provider`` would switch it to another way of authenticating).
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import http.client
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import eventlet
import httplib2

from dfmeta.exceptions import BackendError, BackendTimeoutError, BackendUnreachableError
from dfmeta.model import Answer, GuestRequest, HttpHost, Identity

LOG = logging.getLogger(__name__)

REST = 10.0
"""Seconds that a host which failed is left alone while there are others."""
RETRY_PAUSE = 0.2
POOL_SIZE = 32
"""Kept connections for each host."""
IDEMPOTENT = frozenset({"GET", "HEAD"})
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""RFC 9110, 7.6.1: these end here."""
_OURS = frozenset(
    {"content-type", "content-length", "date", "server", "status", "content-location"}
)
_AWAY = (OSError, UnicodeError, httplib2.HttpLib2Error, http.client.HTTPException)
"""What a host that is away, or speaks nonsense, shows as; a name that IDNA refuses among it."""
LEAST_PATIENCE = 0.05
"""Seconds below which another try could not succeed, and would hide why the last one failed."""


@dataclass(frozen=True, slots=True)
class NovaSettings:
    """How Nova is reached."""

    hosts: Sequence[HttpHost]
    secret: bytes
    protocol: str = "http"
    insecure: bool = False
    ca_cert: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


class _OnceConnection(httplib2.HTTPConnectionWithTimeout):  # type: ignore[misc]  # untyped
    """A connection that is made once: httplib2 would send a password again on a new one."""

    def connect(self) -> None:
        if getattr(self, "_connected", False):
            raise ConnectionResetError(errno.ECONNRESET, "closed before an answer")
        super().connect()
        self._connected = True


class _OnceTlsConnection(httplib2.HTTPSConnectionWithTimeout):  # type: ignore[misc]  # untyped
    """The same over TLS."""

    def connect(self) -> None:
        if getattr(self, "_connected", False):
            raise ConnectionResetError(errno.ECONNRESET, "closed before an answer")
        super().connect()
        self._connected = True


class NovaBackend:
    """Signs requests and forwards them, over kept connections."""

    name = "nova"

    def __init__(self, settings: NovaSettings) -> None:
        self._settings = settings
        self._pools: dict[HttpHost, list[httplib2.Http]] = {host: [] for host in settings.hosts}
        self._resting: dict[HttpHost, float] = {}

    def answer(self, request: GuestRequest, identity: Identity, *, deadline: float) -> Answer:
        """Forward *request*; see :class:`~dfmeta.proxy.backends.Backend`.

        GET and HEAD are sent again, to the next host, until *deadline*. A POST is sent once;
        only when it cannot have been sent at all is it tried elsewhere.
        """
        headers = self._headers(request, identity)
        half = max(0.1, (deadline - time.monotonic()) / 2)
        while True:
            error: BackendError | None = None
            for host in self._order():
                left = deadline - time.monotonic()
                patience = min(left, half) if len(self._pools) > 1 else left
                if left <= 0 or (error is not None and left < LEAST_PATIENCE):
                    break
                try:
                    return self._ask(host, request, headers, patience)
                except BackendUnreachableError as caught:
                    error = caught
                    self._resting[host] = time.monotonic() + REST
                except BackendTimeoutError as caught:
                    if request.method not in IDEMPOTENT:
                        raise
                    error = caught
                    self._resting[host] = time.monotonic() + REST
            if deadline - time.monotonic() <= RETRY_PAUSE + LEAST_PATIENCE:
                raise error or BackendUnreachableError(backend=self.name, cause="no time was left")
            eventlet.sleep(RETRY_PAUSE)

    def http_tokens(self, identity: Identity) -> str | None:
        """Nova has no word for it; see :class:`~dfmeta.proxy.backends.Backend`."""
        del identity
        return ""

    def remark(self, answer: Answer) -> str:
        """Nothing: see :class:`~dfmeta.proxy.backends.Backend`."""
        return ""

    def _order(self) -> list[HttpHost]:
        now = time.monotonic()
        awake = [host for host in self._pools if self._resting.get(host, 0.0) <= now]
        return awake or list(self._pools)

    def _headers(self, request: GuestRequest, identity: Identity) -> dict[str, str]:
        signature = hmac.new(self._settings.secret, identity.instance_id.encode(), hashlib.sha256)
        headers = {
            "X-Instance-ID": identity.instance_id,
            "X-Tenant-ID": identity.project_id,
            "X-Instance-ID-Signature": signature.hexdigest(),
            "X-Forwarded-For": request.guest_ip,
            # httplib2 asks for gzip, and unpacks it, unless told what to ask for.
            "Accept-Encoding": "identity",
            "User-Agent": "dfmeta",
        }
        accept = request.headers.get("accept", "")
        if accept.isprintable() and accept:
            headers["Accept"] = accept
        if request.method == "POST":
            kind = request.headers.get("content-type", "")
            headers["Content-Type"] = kind if kind.isprintable() and kind else "text/plain"
            headers["Content-Length"] = str(len(request.body))
        return headers

    def _ask(
        self, host: HttpHost, request: GuestRequest, headers: dict[str, str], patience: float
    ) -> Answer:
        once = request.method not in IDEMPOTENT
        client = self._client() if once else self._take(host)
        query = f"?{request.query}" if request.query else ""
        url = f"{self._settings.protocol}://{host.authority}{_origin_form(request.path)}{query}"
        kept = False
        try:
            with eventlet.Timeout(patience):
                response, content = client.request(
                    url,
                    request.method,
                    body=request.body if once else None,
                    headers=headers,
                    connection_type=self._once_type() if once else None,
                )
            kept = True
        except eventlet.Timeout as error:
            cause = f"{host.authority} has not answered within {patience:.1f} s"
            raise BackendTimeoutError(backend=self.name, cause=cause) from error
        except _AWAY as error:
            cause = f"{host.authority}: {type(error).__name__}: {error}"
            if once and not _never_sent(error):
                raise BackendTimeoutError(backend=self.name, cause=cause) from error
            raise BackendUnreachableError(backend=self.name, cause=cause) from error
        finally:
            if once or not kept:
                client.close()
            else:
                self._give_back(host, client)
        return _answer(response, content, head=request.method == "HEAD")

    def _once_type(self) -> type:
        return _OnceTlsConnection if self._settings.protocol == "https" else _OnceConnection

    def _take(self, host: HttpHost) -> httplib2.Http:
        pool = self._pools[host]
        return pool.pop() if pool else self._client()

    def _give_back(self, host: HttpHost, client: httplib2.Http) -> None:
        pool = self._pools[host]
        if len(pool) < POOL_SIZE:
            pool.append(client)
        else:
            client.close()

    def _client(self) -> httplib2.Http:
        client = httplib2.Http(
            proxy_info=None,
            ca_certs=self._settings.ca_cert,
            disable_ssl_certificate_validation=self._settings.insecure,
        )
        client.follow_redirects = False
        if self._settings.client_cert:
            client.add_certificate(self._settings.client_key, self._settings.client_cert, "")
        return client


def _origin_form(path: str) -> str:
    # A leading // makes some servers read a host from it.
    return "/" + path.lstrip("/")


def _never_sent(error: Exception) -> bool:
    refused = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL}
    if isinstance(error, httplib2.ServerNotFoundError):
        return True
    return isinstance(error, OSError) and error.errno in refused


def _answer(response: httplib2.Response, content: bytes, *, head: bool) -> Answer:
    named = {name.strip().lower() for name in response.get("connection", "").split(",")}
    drop = HOP_BY_HOP | _OURS | named
    # httplib2 leaves notes to itself there, such as -content-encoding.
    headers = [(n, v) for n, v in response.items() if n not in drop and not n.startswith("-")]
    if head and "content-length" in response:
        headers.append(("content-length", response["content-length"]))
    return Answer(
        response.status,
        content,
        content_type=response.get("content-type", "text/plain; charset=UTF-8"),
        headers=tuple(headers),
    )
