"""Names of hosts, resolved by the C library while the hub goes on.

eventlet's own resolver reads /etc/resolv.conf once, and passes nsswitch.conf(5) by. getaddrinfo(3)
reads both anew (glibc from 2.26 on), and gives what ``dfmeta doctor`` and every other program of
the host gets. But its thread waits: 10 seconds for a nameserver that is silent, 30 for three. So:

* Each look-up has an OS thread of its own. All that ask for a name at the same time share one.
* While that one waits, the name is asked for again every :data:`AGAIN` seconds: what is under way
  goes on with the nameservers that were there when it began. A name has :data:`THREADS` at most.
* A caller waits for :data:`LIMIT` seconds at most, whatever the threads do; none of them keeps the
  process from ending.
* An answer is good for :data:`KEEP` seconds, so that a burst of connections asks once. It stands
  in for :data:`STALE` seconds while nameservers cannot be asked (RFC 8767); a name that is no more
  is no more.

Trust: names are the operator's, or those that an operator's Keystone and issuer give. A guest
gives none, so that few are ever remembered.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import eventlet
from eventlet.event import Event
from eventlet.hubs import trampoline
from eventlet.patcher import original

_socket = original("socket")
_threading = original("threading")

KEEP: Final = 1.0
AGAIN: Final = 2.0
LIMIT: Final = 6.0
"""More than the C library gives one nameserver (resolv.conf(5), timeout: 5), less than a guest
waits by default."""
PATIENCE: Final = 1.0
"""Seconds for a new answer where an old one is at hand."""
STALE: Final = 3600.0
THREADS: Final = 8
PASSING: Final = frozenset({socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM})
"""Errors of getaddrinfo(3) that tell of the nameservers, not of the name."""
OTHERS: Final = ("gethostbyaddr", "gethostbyname", "gethostbyname_ex", "getnameinfo")
"""What else the C library would keep the hub for."""

Clock = Callable[[], float]


class Names:
    """A blocking function of the C library, for the one OS thread that may not wait.

    :param call: the function; other threads than the one that makes this call it themselves.
    :param clock: monotonic seconds.
    """

    def __init__(self, call: Callable[..., Any], *, clock: Clock = time.monotonic) -> None:
        self._call = call
        self._clock = clock
        self._thread = _threading.get_ident()
        self._questions: dict[tuple[Any, ...], _Question] = {}

    def __call__(self, *args: Any, seconds: float = LIMIT) -> Any:
        """Call it with *args* and wait for the answer, *seconds* at most.

        :raises OSError: what the function raises, socket.gaierror among them; EAI_AGAIN where there
            was no answer in time.
        """
        if _threading.get_ident() != self._thread:
            return self._call(*args)
        question = self._questions.get(args)
        if question is None:
            question = self._questions[args] = _Question(partial(self._call, *args), self._clock)
        return question.answer(min(seconds, LIMIT))


class _Question:
    """A name that is asked for, and the threads that do so."""

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
            late = now - self._begun >= AGAIN and self._threads < THREADS
            if not self._threads or late:
                self._begin(now)
            left = deadline - self._clock()
            answers: list[Any] = []
            with eventlet.Timeout(max(0.0, min(left, AGAIN)), False):
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
        eventlet.spawn_n(self._attend, self._latest, ended, outcome)

    def _attend(self, number: int, ended: int, outcome: list[Any]) -> None:
        try:
            trampoline(ended, read=True)
        finally:
            os.close(ended)
            self._threads -= 1
        found, error = outcome
        # A later one has answered already, or may yet.
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
    """Call it, in a thread, and close *end* when the outcome is there."""
    try:
        outcome += [call(), None]
    except Exception as error:  # raised again where it is waited for
        outcome += [None, error]
    finally:
        os.close(end)


_addresses = Names(_socket.getaddrinfo)


def getaddrinfo(
    host: Any,
    port: Any,
    family: int = 0,
    type: int = 0,  # noqa: A002  # its name in Python's own, by which it may be given
    proto: int = 0,
    flags: int = 0,
    *,
    seconds: float = LIMIT,
) -> list[Any]:
    """As :func:`socket.getaddrinfo`; addresses need no thread.

    :param seconds: to wait at most; no more than :data:`LIMIT`.
    :raises socket.gaierror: as getaddrinfo(3); EAI_AGAIN where there was no answer in time.
    """
    options = family, type, proto
    try:
        numeric = flags | socket.AI_NUMERICHOST
        return _socket.getaddrinfo(host, port, *options, numeric)  # type: ignore[no-any-return]  # eventlet has no types
    except socket.gaierror:
        return list(_addresses(host, port, *options, flags, seconds=seconds))


def addresses(host: str, port: int, seconds: float) -> list[Any]:
    """What :func:`getaddrinfo` gives for streams, within *seconds*.

    :raises socket.gaierror: as :func:`getaddrinfo`.
    """
    return getaddrinfo(host, port, 0, socket.SOCK_STREAM, seconds=seconds)


def install() -> None:
    """Put it in the place of eventlet's own, and of the C library's, in this process.

    To be called in the hub's thread, before ``eventlet.monkey_patch``.
    """
    from eventlet.green import socket as green

    replacements = {name: Names(getattr(_socket, name)) for name in OTHERS}
    for name, function in {"getaddrinfo": getaddrinfo, **replacements}.items():
        for module in (green, socket):
            setattr(module, name, function)
