"""Names of hosts, resolved by the C library without blocking the hub.

eventlet's own resolver reads /etc/resolv.conf once, and ignores nsswitch.conf(5). getaddrinfo(3)
reads both again (glibc from 2.26 on), and gives the same results as in ``dfmeta doctor`` and every
other program of the host. But it blocks its thread: 10 seconds for a silent nameserver, 30 for
three. So:

* Each lookup runs in a separate OS thread. Simultaneous callers for one name share a thread.
* While that thread waits, another one repeats the lookup every :data:`AGAIN` seconds, because a
  running lookup keeps the nameservers that were configured when it began. A name has at most
  :data:`THREADS` threads.
* A caller waits for :data:`LIMIT` seconds at most, whatever the threads do. No thread prevents the
  process from ending.
* An answer is valid for :data:`KEEP` seconds, so that a burst of connections causes one lookup. It
  is used for :data:`STALE` seconds while nameservers do not answer (RFC 8767), but not for a name
  that no longer exists.

Trust: names come from the operator, or from the operator's Keystone and issuer. No name comes from
a guest, so only a few names are ever cached.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import Event, original, wait_for_io

_socket = original("socket")
_threading = original("threading")

KEEP: Final = 1.0
AGAIN: Final = 2.0
LIMIT: Final = 6.0
"""More than the C library's timeout for one nameserver (resolv.conf(5), timeout: 5), less than a
guest waits by default."""
PATIENCE: Final = 1.0
"""Seconds to wait for a new answer if there is an old one."""
STALE: Final = 3600.0
THREADS: Final = 8
PASSING: Final = frozenset({socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM})
"""Errors of getaddrinfo(3) about the nameservers, not about the name."""
OTHERS: Final = ("gethostbyaddr", "gethostbyname", "gethostbyname_ex", "getnameinfo")
"""Other functions of the C library that would block the hub."""

Clock = Callable[[], float]


class Names:
    """A blocking function of the C library, wrapped for the hub's thread, which must not block.

    :param call: the function. It is called directly in all threads except the one that creates this
        object.
    :param clock: monotonic seconds.
    """

    def __init__(self, call: Callable[..., Any], *, clock: Clock = clock.now) -> None:
        self._call = call
        self._clock = clock
        self._thread = _threading.get_ident()
        self._questions: dict[tuple[Any, ...], _Question] = {}

    def __call__(self, *args: Any, seconds: float = LIMIT) -> Any:
        """Call the function with *args*, and wait for the answer for *seconds* at most.

        :raises OSError: any that the function raises, such as socket.gaierror; EAI_AGAIN if there
            was no answer in time.
        """
        if _threading.get_ident() != self._thread:
            return self._call(*args)
        question = self._questions.get(args)
        if question is None:
            question = self._questions[args] = _Question(partial(self._call, *args), self._clock)
        return question.answer(min(seconds, LIMIT))


class _Question:
    """Lookups of one name, and their threads."""

    def __init__(self, call: Callable[[], Any], clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._news = Event()
        self._found: Any = None
        self._found_at = self._begun = self._unanswered = float("-inf")
        self._threads = self._latest = self._answered = 0

    def answer(self, seconds: float) -> Any:
        now = self._clock()
        age = now - self._found_at
        if age < KEEP:
            return self._found
        found, stale, deadline = self._found, age < STALE, now + seconds
        if stale:
            since = self._unanswered if self._threads else now
            deadline = min(deadline, since + PATIENCE)
        try:
            return self._wait(deadline)
        except OSError as error:
            if stale and error.errno in PASSING:
                return found
            raise

    def _wait(self, deadline: float) -> Any:
        while True:
            now = self._clock()
            if now - self._found_at < KEEP:
                # The answer came between two waits.
                return self._found
            late = now - self._begun >= AGAIN and self._threads < THREADS
            if not self._threads or late:
                self._begin(now)
            left = deadline - self._clock()
            answers: list[Any] = []
            with threads.Timeout(max(0.0, min(left, AGAIN)), False):
                answers.append(self._news.wait())
            if answers:
                return answers[0]
            if left <= AGAIN:
                raise socket.gaierror(socket.EAI_AGAIN, "no nameserver has answered in time")

    def _begin(self, now: float) -> None:
        self._begun = now
        self._latest += 1
        ended, end = os.pipe()
        outcome: list[Any] = []
        thread = _threading.Thread(target=_run, args=(self._call, outcome, end), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            os.close(ended)
            os.close(end)
            raise socket.gaierror(socket.EAI_SYSTEM, f"no thread to resolve it: {error}") from error
        if not self._threads:
            self._unanswered = now
        self._threads += 1
        threads.spawn_detached(self._attend, self._latest, ended, outcome)

    def _attend(self, number: int, ended: int, outcome: list[Any]) -> None:
        try:
            wait_for_io(ended, read=True)
        finally:
            os.close(ended)
            self._threads -= 1
        found, error = outcome
        # A later lookup has answered already, or may still do so.
        if number < (self._answered if error is None else self._latest):
            return
        news, self._news = self._news, Event()
        if error is None:
            self._found, self._found_at, self._answered = found, self._clock(), number
            news.send(found)
            return
        if getattr(error, "errno", None) not in PASSING:
            self._found_at = float("-inf")
        news.send_exception(error)


def _run(call: Callable[[], Any], outcome: list[Any], end: int) -> None:
    """Call *call*, in a thread, store its outcome, and then close *end*."""
    try:
        outcome += [call(), None]
    except Exception as error:  # raised again in the waiting greenthread
        outcome += [None, error]
    finally:
        os.close(end)


_addresses = Names(_socket.getaddrinfo)


def getaddrinfo(
    host: Any,
    port: Any,
    family: int = 0,
    type: int = 0,  # noqa: A002  # the name in Python's function, for keyword arguments
    proto: int = 0,
    flags: int = 0,
    *,
    seconds: float = LIMIT,
) -> list[Any]:
    """Resolve like :func:`socket.getaddrinfo`; numeric addresses need no thread.

    :param seconds: maximum time to wait, limited by :data:`LIMIT`.
    :raises socket.gaierror: as getaddrinfo(3); EAI_AGAIN if there was no answer in time.
    """
    options = family, type, proto
    try:
        numeric = flags | socket.AI_NUMERICHOST
        return _socket.getaddrinfo(host, port, *options, numeric)  # type: ignore[no-any-return]  # eventlet has no types
    except socket.gaierror:
        return list(_addresses(host, port, *options, flags, seconds=seconds))


def addresses(host: str, port: int, seconds: float) -> list[Any]:
    """Return the result of :func:`getaddrinfo` for stream sockets, within *seconds*.

    :raises socket.gaierror: as :func:`getaddrinfo`.
    """
    return getaddrinfo(host, port, 0, socket.SOCK_STREAM, seconds=seconds)


def install() -> None:
    """Replace the resolvers of eventlet and of the standard library in this process.

    Call this in the hub's thread, before ``eventlet.monkey_patch``.
    """
    from dfmeta.runtime.threads import green_socket as green

    replacements = {name: Names(getattr(_socket, name)) for name in OTHERS}
    for name, function in {"getaddrinfo": getaddrinfo, **replacements}.items():
        for module in (green, socket):
            setattr(module, name, function)
