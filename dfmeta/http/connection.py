"""One connection of a server: read requests one after the other and send their answers.

A connection belongs to the claim that it was accepted for. Each wait has a time limit and each
buffer a size limit. Both apply to one connection, so that a client that sends slowly or does not
read delays only itself.
"""

import functools
import logging
import socket
from contextlib import suppress
from email.utils import formatdate
from enum import Enum, auto
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, Generic

from dfmeta import errors, model
from dfmeta.http.exchange import Abandoned, Ends, Exchange, K, RequestSlot
from dfmeta.http.http1 import Body, Head, find_end, parse_head, phrase
from dfmeta.http.service import HttpService
from dfmeta.http.sockets import abort, limit_hops, quiet, unread, unsent
from dfmeta.runtime import clock, threads

LOG = logging.getLogger(__name__)

PIECE = 8192
"""Bytes of one read."""
LINGER = 1.0
LINGER_MAX = 65536
"""Seconds and bytes for which input is read and discarded after the last answer: the kernel resets
a connection that is closed with unread bytes, and the guest loses the answer (RFC 9112, 9.6)."""
OVER: Final = 2
"""Bytes of a body above its limit that are read and discarded as well, per byte of the limit."""
PROTECTED = 1.0
"""Seconds after the first request that has limited the hops in which the connection is not closed
in favour of another one: it was for a token, and the request that needs it follows."""
WHOLE = 65536
"""A body of at least this many bytes is sent separately from its head."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

BODILESS: Final = frozenset({204, 304})
"""Statuses of answers without a body and Content-Length (RFC 9110, 8.6)."""
FLOOR: Final = 1024.0
"""Bytes per second that a client reads at least, on average."""

Headers = list[tuple[str, str]]


class ConnectionPhase(Enum):
    """State of a connection."""

    BUSY = auto()
    """It reads or answers a request."""
    KEPT = auto()
    """It waits for another request and has received no byte of it."""
    LAST = auto()
    """It ends after the present request."""


class EndedError(Exception):
    """The connection carries no further request."""


class ServerConnection(Generic[K]):
    """A connection that has been accepted.

    :param sock: a non-blocking socket; the caller closes it.
    :param began: monotonic seconds at which hold_timeout of its first request began: when it was
        accepted, or earlier by the wait of its SYN.
    :param source_port: TCP port that the client sends from; 0: unknown.
    """

    def __init__(
        self, sock: Any, claim: K, service: HttpService[K], *, began: float, source_port: int = 0
    ) -> None:
        self.sock = sock
        self.claim = claim
        self._service = service
        self._began = began
        self._source_port = source_port
        self._first = True
        """Whether no request has been read yet."""
        self._ip = claim.ip
        self._buffer = bytearray()
        self._body_read = True
        """Whether the body of the present request is read, so that the next request follows."""
        self._body_limit = 0
        """Limit in bytes of the application's read of a body."""
        self._phase = ConnectionPhase.BUSY
        self._protected_until = 0.0
        """Monotonic seconds."""
        self._hops = 0
        """Hop limit of the connection; 0: the system's."""
        self._aborted = False
        """Whether the server has aborted, and counted, the connection."""

    def run(self) -> None:
        """Serve the connection until it ends. Errors of the guest or the socket are not raised."""
        try:
            while self._phase is not ConnectionPhase.LAST:
                self._serve_request()
        except EndedError:
            pass
        except errors.BadRequestError as error:
            self._refuse(error)
        except Abandoned as abandoned:
            if not self._aborted:
                self._service.observer.closed(abandoned.reason)
        except OSError as error:
            LOG.debug("%s: a connection ended: %s", self.claim.name, error)

    # For the server

    @property
    def between(self) -> bool:
        """Whether the connection waits for another request and has received no byte of it."""
        return self._phase is ConnectionPhase.KEPT and quiet(self.sock)

    @property
    def evictable(self) -> bool:
        """Whether the idle connection may be closed in favour of a new one."""
        return self.between and not self.protected

    @property
    def protected(self) -> bool:
        """Whether the next request of the connection has to come on it."""
        return clock.now() < self._protected_until

    def cut(self) -> None:
        """Shut the connection down; pending reads and writes return."""
        self._phase = ConnectionPhase.LAST
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        """Reset the connection; unsent data is discarded."""
        self._phase, self._aborted = ConnectionPhase.LAST, True
        abort(self.sock)

    # One request

    def _serve_request(self) -> None:
        if self._buffer:
            # Otherwise a guest that pipelines requests would occupy the hub for all of them.
            self._acquire()
        head = self._read_head()
        now = clock.now()
        waited = now - self._began if self._first else 0.0
        self._first, self._protected_until = False, 0.0
        self._body_read, self._body_limit = not (head.length or head.chunked), 0
        slot = RequestSlot(self._service.slots(self.claim))
        exchange = Exchange(
            claim=self.claim,
            request=model.GuestRequest(
                head.method,
                head.path,
                query=head.query,
                headers=head.headers,
                guest_ip=self._ip,
            ),
            deadline=now + max(self._service.hold_timeout - waited, 0.0),
            acquire=slot,
            read=_no_body if self._body_read else partial(self._take_body, head),
            limit_hops=self._limit_hops,
            source_port=self._source_port,
            ends=self._ends,
        )
        try:
            answer = self._service.application(exchange)
            self._give(head, *message_of(answer, bodiless=head.method == "HEAD"))
        finally:
            slot.end()

    def _read_head(self) -> Head:
        limits = self._service.limits
        first, now = self._first, clock.now()
        kept = not first and not self._buffer
        if first:
            # Nothing was read while the connection waited for others of its port.
            until = now + limits.header_timeout
        elif kept:
            self._phase = ConnectionPhase.KEPT
            self._service.limiter.idle(self.claim.caller, self)
            until = now + limits.keepalive_timeout
        else:
            until = now + limits.header_timeout
        if kept:
            # Under load the next request arrives meanwhile, and the read need not wait for it.
            self._acquire()
        # The server begins with a connection at its turn.
        has_turn = kept or first
        looked, blank = 0, True
        while True:
            if blank and self._buffer:
                # One empty line before a request is skipped (RFC 9112, 2.2).
                blank = self._buffer == b"\r"
                if self._buffer.startswith(b"\r\n"):
                    del self._buffer[:2]
            end = -1 if blank else find_end(self._buffer, limits.head, looked)
            if end >= 0:
                break
            looked = 0 if blank else len(self._buffer)
            try:
                self._receive(until, has_turn=has_turn)
            except TimeoutError:
                if not looked and not first:
                    raise EndedError from None
                raise errors.BadRequestError(
                    status=408, reason="header_timeout", cause="the request did not come in time"
                ) from None
            has_turn = False
            if kept:
                kept = False
                if self._phase is ConnectionPhase.KEPT:
                    self._phase = ConnectionPhase.BUSY
                self._service.limiter.busy(self.claim.caller, self)
                until = clock.now() + limits.header_timeout
        head = parse_head(bytes(self._buffer[:end]), limits.head)
        del self._buffer[:end]
        return head

    def _take_body(self, head: Head, most: int = 0) -> bytes:
        """Return the body; empty once it has been read. See :meth:`_read_body`.

        A body that the application does not take is not received at all: its connection is closed
        after the answer.
        """
        if self._body_read:
            return b""
        self._body_limit = max(most, 0)
        content = self._read_body(head, self._body_limit)
        self._body_read = True
        return content

    def _read_body(self, head: Head, most: int) -> bytes:
        """Read the body that *head* announces.

        :param most: its largest size in bytes; 0: that of the limits.
        :raises BadRequestError: when the body is malformed, too long or not complete in time.
        """
        limits = self._service.limits
        body = Body(head.body_length, most or limits.body, limits=limits.head)
        until = clock.now() + limits.body_timeout
        if head.expects_continue and not self._buffer:
            self._send(CONTINUE)
        try:
            while True:
                until = self._take_piece(until)
                body.feed(bytes(self._buffer))
                self._buffer.clear()
                if body.done:
                    break
                self._receive(until)
        except TimeoutError:
            raise errors.BadRequestError(
                status=408, reason="body_timeout", cause="the body did not come in time"
            ) from None
        self._buffer += body.rest
        return body.content

    def _take_piece(self, until: float) -> float:
        """Account for a piece of a body in the buffer; return the deadline of the next one.

        :param until: monotonic seconds; deadline of this one.
        """
        return until

    def _receive(self, until: float, *, has_turn: bool = False) -> None:
        data = self._arrived()
        if data is not None and not has_turn:
            self._acquire()
        while data is None:
            left = until - clock.now()
            if left <= 0:
                raise TimeoutError
            threads.wait_for_io(self.sock, read=True, timeout=left, timeout_exc=TimeoutError)
            # Before the read: it costs time in the kernel as well.
            self._acquire()
            data = self._arrived()
        if not data:
            raise EndedError
        self._buffer += data

    def _acquire(self) -> None:
        """Wait for the turn of the connection's virtual machine on the hub."""
        self._service.scheduler.acquire(self.claim.sharer)

    def _ends(self) -> Ends:
        with suppress(OSError):
            both = (self.sock.getpeername(), self.sock.getsockname())
            return tuple((ip_address(host), port) for host, port, *_scope in both)
        return ()

    def _arrived(self) -> bytes | None:
        """Return bytes that have arrived; empty at the end of the input, None if there are none."""
        try:
            return self.sock.recv(PIECE)  # type: ignore[no-any-return]  # eventlet has no types
        except BlockingIOError:
            return None

    def _limit_hops(self, hops: int) -> None:
        if hops != self._hops:
            limit_hops(self.sock, hops)
            self._hops, self._protected_until = hops, clock.now() + PROTECTED

    def _give(self, head: Head, status: str, headers: Headers, body: bytes) -> None:
        """Send an answer, and end the connection if no further request may follow."""
        if not self._keeps(head):
            self._phase = ConnectionPhase.LAST
        last = self._phase is ConnectionPhase.LAST
        rendered = self._render(status, headers, minor=head.minor, keep=not last)
        if len(body) < WHOLE:
            self._send(rendered + body)
        else:
            # Separately: the concatenation would be a copy in memory until the guest has read it.
            self._send(rendered)
            self._send(body)
        if self._phase is ConnectionPhase.LAST and self._more_to_come():
            self._linger()

    def _more_to_come(self) -> bool:
        """Whether there is, or may still come, input that is not read as a request."""
        return not self._body_read or bool(self._buffer) or unread(self.sock)

    def _keeps(self, head: Head) -> bool:
        """Whether another request may follow this one."""
        ready = self._body_read and head.keep_alive and not self._service.draining
        return ready and self._service.may_keep(self.claim, protected=self.protected)

    def _refuse(self, error: errors.BadRequestError) -> None:
        self._phase = ConnectionPhase.LAST
        status, reason = error.status, error.reason
        if reason == "header_timeout" and not self._buffer:
            self._service.observer.silent(self.claim)
            return
        self._service.observer.refused(self.claim, status, reason)
        try:
            line = f"{status} {phrase(status)}"
            kind, body = self._refusal(line, error.cause)
            headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
            self._send(self._render(line, headers, minor=1, keep=False) + body)
            self._linger()
        except OSError as gone:
            LOG.debug("%s: a connection ended: %s", self.claim.name, gone)

    def _render(self, status: str, headers: Headers, *, minor: int, keep: bool) -> bytes:
        """Return the status line and headers of an answer; see :func:`render`."""
        return render(status, headers, minor=minor, keep=keep)

    def _refusal(self, status: str, cause: str) -> tuple[str, bytes]:
        """Return the content type and the body of the answer to an unacceptable request."""
        return "text/plain; charset=UTF-8", f"{status}: {cause}\n".encode()

    # Bytes

    def _send(self, data: bytes) -> None:
        try:
            # The send buffer nearly always has room for all of it.
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._send_on(memoryview(data)[sent:])

    def _send_on(self, rest: memoryview) -> None:
        whole = len(rest)
        progress = SendProgress(now=clock.now(), patience=self._service.limits.send_timeout)
        while rest:
            # The socket takes more only when the guest has read much: see what it has read.
            taken = whole - len(rest) - unsent(self.sock)
            left = progress.left(taken, now=clock.now())
            if left <= 0:
                self._service.observer.limited("send_timeout")
                abort(self.sock)
                raise Abandoned("not_read")
            try:
                # A guest may read too slowly for the socket to be writable.
                wait = min(left, clock.CHECK_INTERVAL)
                threads.wait_for_io(self.sock, write=True, timeout=wait, timeout_exc=TimeoutError)
                rest = rest[self.sock.send(rest) :]
            except BlockingIOError:
                continue
            except TimeoutError as error:
                # eventlet's frame keeps the raised error, whose traceback keeps the frames up to
                # here: the answer would stay in memory until the garbage collector runs, perhaps
                # for minutes.
                error.__traceback__ = None

    def _linger(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)
        # A client that sends too much of a body should still read the refusal.
        until, left = clock.now() + LINGER, LINGER_MAX + OVER * self._body_limit
        with suppress(OSError, EndedError):
            while left > 0:
                self._buffer.clear()
                threads.sleep(0)
                self._receive(until)
                left -= len(self._buffer)
        self._service.throttle(self.claim.sharer)


class SendProgress:
    """The time that a client has for an answer. No I/O, no clock.

    A client behind a slow link reads a large answer slowly, and gets all of it. One that stops
    reading, or reads slowly on purpose, holds the answer's memory for a limited time only.

    :param now: monotonic seconds.
    :param patience: seconds without progress after which the guest has no time left, and seconds
        that it has in addition to those of :data:`FLOOR`.
    """

    def __init__(self, *, now: float, patience: float) -> None:
        self._begun = self._last = now
        self._patience = patience
        self._taken = 0

    def left(self, taken: int, *, now: float) -> float:
        """Return the seconds that are left until the next progress; 0 or less: none.

        :param taken: bytes of the answer that the guest's host has acknowledged.
        """
        if taken > self._taken:
            self._taken, self._last = taken, now
        slowest = self._begun + self._taken / FLOOR
        return min(self._last, slowest) + self._patience - now


@functools.lru_cache(maxsize=1)
def _date(second: int) -> str:
    """Return the Date header (RFC 9110, 6.6.1), made once a second."""
    return formatdate(second, usegmt=True)


def _no_body(_most: int = 0) -> bytes:
    """Read the body of a request without one."""
    return b""


def message_of(answer: model.Answer, *, bodiless: bool) -> tuple[str, Headers, bytes]:
    """Return status, headers and body of an answer.

    :param bodiless: it answers a HEAD, whose length only the backend knows (RFC 9110, 9.3.2).
    """
    headers = [(name.title() if name.islower() else name, value) for name, value in answer.headers]
    if answer.content_type:
        headers.insert(0, ("Content-Type", answer.content_type))
    status, body = f"{answer.status} {phrase(answer.status)}", answer.body
    if answer.status in BODILESS:
        return status, headers, b""
    counted = any(name == "Content-Length" for name, _value in headers)
    if not counted and (body or not bodiless):
        headers.append(("Content-Length", str(len(body))))
    return status, headers, b"" if bodiless else body


def render(status: str, headers: Headers, *, minor: int, keep: bool) -> bytes:
    """Return the status line and headers of an answer (RFC 9112, 4 to 6).

    :param status: code and phrase.
    :param headers: with Content-Length, if the answer has one.
    :param minor: minor version of the guest's HTTP/1.x.
    :param keep: whether another request may follow.
    """
    lines = [f"HTTP/1.1 {status}", f"Date: {_date(int(clock.wall()))}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if not keep:
        lines.append("Connection: close")
    elif not minor:
        lines.append("Connection: keep-alive")
    lines += ["", ""]
    return "\r\n".join(lines).encode("latin-1")
