"""One guest's connection: requests in, one after the other, and their answers out.

It belongs to the claim that it was accepted under. Each wait has an end, each buffer a bound; both
are the connection's own, so that a guest which sends slowly or does not read keeps nobody waiting
but itself.
"""

from __future__ import annotations

import functools
import io
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from email.utils import formatdate
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

import eventlet
from eventlet.hubs import trampoline

from dfmeta import metrics
from dfmeta.exceptions import BadRequestError
from dfmeta.model import GuestRequest
from dfmeta.proxy import access
from dfmeta.proxy.http1 import Body, Head, find_end, parse_head
from dfmeta.proxy.limits import Limits
from dfmeta.proxy.sockets import abort, quiet, unread
from dfmeta.proxy.wsgi import CLAIM, DEADLINE, REQUEST, TURN, Abandoned
from dfmeta.registry import Claim

LOG = logging.getLogger(__name__)

PIECE = 8192
"""Bytes that are read at once."""
KEYS = 256
"""Names of headers whose key is remembered."""
LINGER = 1.0
LINGER_MAX = 65536
"""Seconds and bytes that are still read, and thrown away, behind an answer that closes: a
connection that is closed with something unread is reset, and the guest loses the answer (RFC 9112,
9.6)."""
WHOLE = 65536
"""Bytes of a body from which on it is sent apart from its head."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Headers = list[tuple[str, str]]


class Slots(Protocol):
    """A port's places for requests, as eventlet's semaphore has them."""

    def acquire(self, blocking: bool = ..., timeout: float | None = ...) -> bool:
        """Take one; False when there was none in time."""
        ...

    def release(self, *args: Any) -> Any:
        """Give one back."""
        ...


class Host(Protocol):
    """What a connection needs of its server."""

    hold_timeout: float
    draining: bool

    @property
    def application(self) -> Callable[..., Iterable[bytes]]:
        """The WSGI application."""
        ...

    @property
    def limits(self) -> Limits:
        """Those in force."""
        ...

    def may_keep(self) -> bool:
        """Whether there is room to keep connections that have been answered."""
        ...

    def slots(self, connection: GuestConnection) -> Slots:
        """The places of its port."""
        ...

    def idle(self, connection: GuestConnection) -> None:
        """Note that it waits for a further request."""
        ...

    def busy(self, connection: GuestConnection) -> None:
        """Note that one has begun to come."""
        ...


class Turn:
    """A request's place among those of its port, until its answer has been taken."""

    def __init__(self, slots: Slots) -> None:
        self._slots: Slots = slots
        self._taken = False

    def __call__(self, deadline: float) -> bool:
        """Take the place, and wait for it until *deadline* (monotonic); False when none came."""
        self._taken = self._slots.acquire(blocking=False)
        if not self._taken:
            metrics.LIMITS.labels("requests_per_port").inc()
            metrics.HELD_REQUESTS.labels("port").inc()
            left = max(deadline - time.monotonic(), 0.001)
            self._taken = self._slots.acquire(timeout=left)
        return self._taken

    def end(self) -> None:
        """Give it back, if it was taken."""
        if self._taken:
            self._slots.release()


class _EndedError(Exception):
    """There will be no further request."""


class GuestConnection:
    """A connection that has been accepted.

    :param sock: a socket that does not block; closed by whoever made the object.
    :param accepted: monotonic seconds.
    :param waited: seconds of the hold budget that its SYN has used up.
    """

    def __init__(
        self, sock: Any, claim: Claim, host: Host, *, accepted: float, waited: float
    ) -> None:
        self.sock = sock
        self.claim = claim
        self._host = host
        self._accepted = accepted
        self._waited = waited
        self._buffer = bytearray()
        self._last = False
        self._first = True
        self._between = False
        """Whether it has been answered and nothing of a further request has come."""
        self._aborted = False
        """Whether somebody else has ended it, who has counted that."""

    def run(self) -> None:
        """Serve it to its end. No error of the guest's or of its connection's leaves."""
        try:
            while not self._last:
                self._turn()
        except _EndedError:
            pass
        except BadRequestError as error:
            self._refuse(error)
        except Abandoned as abandoned:
            if not self._aborted:
                metrics.CLOSED.labels(abandoned.reason).inc()
        except OSError as error:
            LOG.debug("%s: a connection ended: %s", self.claim.identity.port_name, error)

    # Whoever else has the server may ask

    @property
    def between(self) -> bool:
        """Whether it is kept for a further request, of which nothing has come."""
        return self._between and quiet(self.sock)

    def cut(self) -> None:
        """Close it; whoever reads from or writes to it wakes up."""
        self._last = True
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        """Close it at once; what it still had to say is thrown away."""
        self._last = self._aborted = True
        abort(self.sock)

    # One request

    def _turn(self) -> None:
        if not self._first:
            # Whoever has sent many requests already would keep the hub for all of them.
            eventlet.sleep(0)
        head = self._read_head()
        content = self._read_body(head)
        now = time.monotonic()
        waited = now - self._accepted + self._waited if self._first else 0.0
        environ = _environ(self.claim, head, content)
        environ[DEADLINE] = now + max(self._host.hold_timeout - waited, 0.0)
        self._first = False
        turn = environ[TURN] = Turn(self._host.slots(self))
        try:
            self._answer(head, environ)
        finally:
            turn.end()

    def _read_head(self) -> Head:
        limits = self._host.limits
        first, now = self._first, time.monotonic()
        if first:
            # Whoever waited for others of its port was not read from meanwhile.
            until = now + limits.header_timeout
        elif not self._buffer:
            self._between = True
            self._host.idle(self)
            until = now + limits.keepalive_timeout
        else:
            until = now + limits.header_timeout
        looked = 0
        while (end := find_end(self._buffer, limits.head, looked)) < 0:
            looked = len(self._buffer)
            try:
                self._receive(until)
            except TimeoutError:
                if not looked and not first:
                    raise _EndedError from None
                raise BadRequestError(
                    status=408, reason="header_timeout", cause="the request did not come in time"
                ) from None
            if self._between:
                self._between = False
                self._host.busy(self)
                until = time.monotonic() + limits.header_timeout
        head = parse_head(bytes(self._buffer[:end]), limits.head)
        del self._buffer[:end]
        return head

    def _read_body(self, head: Head) -> bytes:
        if not head.length and not head.chunked:
            return b""
        limits = self._host.limits
        body = Body(head, limits.body, limits=limits.head)
        body.feed(bytes(self._buffer))
        self._buffer.clear()
        until = time.monotonic() + limits.body_timeout
        if head.expects_continue and not body.done:
            self._send(CONTINUE)
        while not body.done:
            try:
                self._receive(until)
            except TimeoutError:
                raise BadRequestError(
                    status=408, reason="body_timeout", cause="the body did not come in time"
                ) from None
            body.feed(bytes(self._buffer))
            self._buffer.clear()
        self._buffer += body.rest
        return body.content

    def _receive(self, until: float) -> None:
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            try:
                data = self.sock.recv(PIECE)
                break
            except BlockingIOError:
                trampoline(self.sock, read=True, timeout=left, timeout_exc=TimeoutError)
        if not data:
            raise _EndedError
        self._buffer += data

    def _answer(self, head: Head, environ: dict[str, Any]) -> None:
        given: list[tuple[str, Headers]] = []

        def start_response(status: str, headers: Headers, _error: Any = None) -> None:
            given[:] = [(status, headers)]

        result = self._host.application(environ, start_response)
        try:
            body = b"".join(result)
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                close()
        if self._host.draining or not head.keep_alive or not self._host.may_keep():
            self._last = True
        ((status, headers),) = given
        rendered = render(status, headers, minor=head.minor, keep=not self._last)
        if len(body) < WHOLE:
            self._send(rendered + body)
        else:
            # Not in one piece: for as long as a guest does not read it, it would be there twice.
            self._send(rendered)
            self._send(body)
        if self._last and (self._buffer or unread(self.sock)):
            self._linger()

    def _refuse(self, error: BadRequestError) -> None:
        self._last = True
        status, reason = int(str(error.status)), str(error.reason)
        if reason == "header_timeout" and not self._buffer:
            access.silent(self.claim)
            return
        access.refused(self.claim, status, reason)
        try:
            phrase = access.phrase(status)
            body = f"{status} {phrase}: {error.cause}\n".encode()
            headers = [
                ("Content-Type", "text/plain; charset=UTF-8"),
                ("Content-Length", str(len(body))),
            ]
            self._send(render(f"{status} {phrase}", headers, minor=1, keep=False) + body)
            self._linger()
        except OSError as gone:
            LOG.debug("%s: a connection ended: %s", self.claim.identity.port_name, gone)

    def _send(self, data: bytes) -> None:
        sent = 0
        with suppress(BlockingIOError):
            # Nearly always there is room for all of it.
            sent = self.sock.send(data)
        if sent < len(data):
            self._send_on(memoryview(data)[sent:])

    def _send_on(self, rest: memoryview) -> None:
        until = time.monotonic() + self._host.limits.send_timeout
        while rest:
            left = until - time.monotonic()
            try:
                if left <= 0:
                    raise TimeoutError
                trampoline(self.sock, write=True, timeout=left, timeout_exc=TimeoutError)
                rest = rest[self.sock.send(rest) :]
            except BlockingIOError:
                continue
            except TimeoutError as error:
                # eventlet's frame keeps the error that it has raised, which keeps the frames up to
                # here: the answer would be in memory until the collector runs, minutes perhaps.
                error.__traceback__ = None
                metrics.LIMITS.labels("send_timeout").inc()
                abort(self.sock)
                raise Abandoned("not_read") from None

    def _linger(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)
        until, left = time.monotonic() + LINGER, LINGER_MAX
        with suppress(OSError, _EndedError):
            while left > 0:
                self._buffer.clear()
                self._receive(until)
                left -= len(self._buffer)


class _Date:
    """The Date header (RFC 9110, 6.6.1), made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = ""

    def __call__(self) -> str:
        now = int(time.time())
        if now != self._second:
            self._second, self._text = now, formatdate(now, usegmt=True)
        return self._text


_date = _Date()


def render(status: str, headers: Headers, *, minor: int, keep: bool) -> bytes:
    """What comes before an answer's body (RFC 9112, 4 to 6).

    :param status: code and phrase.
    :param headers: with Content-Length, where there is one.
    :param minor: of the guest's HTTP/1.x.
    :param keep: whether a further request may follow.
    """
    lines = [f"HTTP/1.1 {status}", f"Date: {_date()}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if not keep:
        lines.append("Connection: close")
    elif not minor:
        lines.append("Connection: keep-alive")
    lines += ["", ""]
    return "\r\n".join(lines).encode("latin-1")


@functools.lru_cache(KEYS)
def _key(name: str) -> str:
    """The key of a header in the environment, or none (RFC 3875, 4.1.18)."""
    # Of two spellings that a key cannot tell apart, only the one with hyphens counts.
    if "_" in name or name in ("content-type", "content-length"):
        return ""
    return "HTTP_" + name.upper().replace("-", "_")


def _environ(claim: Claim, head: Head, content: bytes) -> dict[str, Any]:
    request = GuestRequest(
        head.method,
        head.path,
        query=head.query,
        headers=head.headers,
        body=content,
        guest_ip=str(claim.address.ip),
    )
    environ: dict[str, Any] = {
        "REQUEST_METHOD": head.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(head.path).decode("latin-1")
        if "%" in head.path
        else head.path,
        "QUERY_STRING": head.query,
        "SERVER_NAME": "169.254.169.254",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": f"HTTP/1.{head.minor}",
        "REMOTE_ADDR": request.guest_ip,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(content),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        CLAIM: claim,
        REQUEST: request,
    }
    if content:
        environ["CONTENT_LENGTH"] = str(len(content))
    for name, value in head.headers.items():
        key = _key(name)
        if key:
            environ[key] = value
    if "content-type" in head.headers:
        environ["CONTENT_TYPE"] = head.headers["content-type"]
    return environ
