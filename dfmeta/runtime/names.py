"""Names of hosts, resolved by the C library without blocking the hub.

eventlet's own resolver reads /etc/resolv.conf once, and ignores nsswitch.conf(5). getaddrinfo(3)
reads both again (glibc from 2.26 on), and gives the same results as in ``dfmeta doctor`` and every
other program of the host. But it blocks its thread: 10 seconds for a silent nameserver, 30 for
three. So each lookup runs in the hub's pool of OS threads, callers for one name share it, and a
caller waits for :data:`LIMIT` seconds at most.

An answer is valid for :data:`KEEP` seconds, so that a burst of connections causes one lookup; with
an old answer, callers wait as long for a new one. The old answer is used for :data:`STALE` seconds
while nameservers do not answer (RFC 8767), but not for a name that no longer exists.

Trust: names come from the operator, or from the operator's Keystone and issuer. No name comes from
a guest, so only a few names are ever cached.
"""

import socket
from collections.abc import Callable
from typing import Any, Final

from dfmeta.runtime import clock, threads

_socket = threads.original("socket")
_threading = threads.original("threading")

KEEP: Final = 1.0
LIMIT: Final = 6.0
"""More than the C library's timeout for one nameserver (resolv.conf(5), timeout: 5), less than a
guest waits by default."""
STALE: Final = 3600.0
PASSING: Final = frozenset({socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM})
"""Errors of getaddrinfo(3) about the nameservers, not about the name."""
OTHERS: Final = ("gethostbyaddr", "gethostbyname", "gethostbyname_ex", "getnameinfo")
"""Other functions of the C library that would block the hub."""


class Names:
    """A blocking function of the C library, wrapped for the hub's thread, which must not block.

    :param call: the function. It is called directly in all threads except the one that creates this
        object.
    :param clock: monotonic seconds.
    """

    def __init__(self, call: Callable[..., Any], *, clock: Callable[[], float] = clock.now) -> None:
        self._call = call
        self._clock = clock
        self._thread = _threading.get_ident()
        self._answers: dict[tuple[Any, ...], tuple[Any, float]] = {}
        """Arguments → the latest answer, and its time."""
        self._lookups: dict[tuple[Any, ...], tuple[threads.Event, float]] = {}
        """Arguments → the lookup under way, and the time of its beginning."""

    def __call__(self, *args: Any, seconds: float = LIMIT) -> Any:
        """Call the function with *args*, and wait for the answer for *seconds* at most.

        :raises OSError: any that the function raises, such as socket.gaierror; EAI_AGAIN if there
            was no answer in time.
        """
        if _threading.get_ident() != self._thread:
            return self._call(*args)
        now = self._clock()
        answer, answered_at = self._answers.get(args, (None, float("-inf")))
        if now - answered_at < KEEP:
            return answer
        if args not in self._lookups:
            self._lookups[args] = threads.Event(), now
            threads.spawn_detached(self._look_up, args)
        lookup, begun = self._lookups[args]
        is_stale = now - answered_at < STALE
        left = min(seconds, LIMIT, begun + KEEP - now if is_stale else LIMIT)
        try:
            with threads.Timeout(max(0.0, left), False):
                return lookup.wait()
        except OSError as error:
            if not is_stale or error.errno not in PASSING:
                raise
        if is_stale:
            return answer
        raise socket.gaierror(socket.EAI_AGAIN, "no nameserver has answered in time")

    def _look_up(self, args: tuple[Any, ...]) -> None:
        try:
            answer = threads.call_in_thread(self._call, *args)
        except Exception as error:  # raised again in the waiting greenthreads
            if getattr(error, "errno", None) not in PASSING:
                self._answers.pop(args, None)
            self._lookups.pop(args)[0].send_exception(error)
        else:
            self._answers[args] = answer, self._clock()
            self._lookups.pop(args)[0].send(answer)


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
