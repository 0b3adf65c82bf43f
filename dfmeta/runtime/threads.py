"""Threads of the process: eventlet's greenthreads, and OS threads beside them.

Only this package imports eventlet (eventlet.readthedocs.io). A greenthread runs until it waits:
in :func:`sleep`, for an :class:`Event`, a :class:`Semaphore` or a queue, or in
:func:`wait_for_io`. The names here are eventlet's own where a comment says nothing else.
"""

from collections.abc import Callable

from eventlet import GreenPool as GreenPool
from eventlet import Timeout as Timeout
from eventlet import getcurrent as current
from eventlet import hubs, tpool
from eventlet import listen as listen
from eventlet import sleep as sleep
from eventlet import spawn as spawn
from eventlet import spawn_after as spawn_after
from eventlet import spawn_n as spawn_detached
from eventlet.event import Event as Event
from eventlet.green import socket as green_socket
from eventlet.green import ssl as green_ssl
from eventlet.patcher import original as original
from eventlet.queue import Empty as Empty
from eventlet.queue import LightQueue as Queue
from eventlet.semaphore import Semaphore as Semaphore
from eventlet.support.greenlets import GreenletExit as GreenletExit
from eventlet.support.greenlets import greenlet as greenlet

from dfmeta.runtime import clock

__all__ = [
    "Empty",
    "Event",
    "GreenPool",
    "GreenletExit",
    "Queue",
    "Semaphore",
    "Timeout",
    "call_in_thread",
    "current",
    "end_pool",
    "get_hub",
    "green_socket",
    "green_ssl",
    "greenlet",
    "listen",
    "original",
    "sleep",
    "spawn",
    "spawn_after",
    "spawn_detached",
    "wait_for_io",
    "wait_until",
]

wait_for_io = hubs.trampoline
"""Wait until a socket can be read or written; raise *timeout_exc* after *timeout* seconds."""
get_hub = hubs.get_hub
"""Return the hub of this OS thread, which runs its greenthreads."""
call_in_thread = tpool.execute
"""Call a function in an OS thread of a pool, wait for it, and return its result."""
end_pool = tpool.killall
"""End the pool of OS threads, after their calls."""


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait for a condition; return whether it held within *seconds*."""
    deadline = clock.now() + seconds
    while not condition():
        if clock.now() >= deadline:
            return False
        sleep(clock.POLL)
    return True
