"""A guest's first SYN while another guest keeps the proxy as busy as it can.

Both guests send through the switch. A first SYN comes from an address that the daemon does not
know: it goes to the controller, its flows are installed, and only then is it released to the
proxy's listener. The time is that of connect(2), from the SYN to the answer of the listening
kernel.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from bench.load import PATH, Load, finish_wrk, start_wrk
from bench.packet_path import quantile
from bench.programs import METADATA_IP
from bench.stand import Stand
from bench.targets import IN_PROCESS, ONE_WORKER, TWO_WORKERS
from dfmeta.identity.key import SLOTS
from tests.harness.guest import Guest
from tests.harness.poll import wait_for

GUESTS = 30
CONNECTIONS = 48
"""Connections of the guest that keeps the proxy busy; a port may have 64."""
PAUSE = 0.02
"""Seconds between two first SYNs."""
TIMEOUT = 5.0
LONG = 3600
WORKERS = {0: IN_PROCESS, 1: ONE_WORKER, 2: TWO_WORKERS}
_RESET = struct.pack("ii", 1, 0)


def measure(*, guests: int = GUESTS) -> dict[str, dict[str, float]]:
    """Return, for each situation, p50 and p99 in ms, and the SYNs sent and unanswered."""
    figures: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        stand = stack.enter_context(Stand(guests + 1))
        busy, *others = stand.guests
        for number, guest in enumerate(others):
            guest.namespace.ip(
                *(f"addr add {address}/24 dev {guest.device}" for address in addresses(number))
            )
        for workers, name in WORKERS.items():
            for keep in (None, False, True):
                situation = {None: "quiet", False: "new", True: "keep-alive"}[keep]
                print(f"first SYN: {name}, {situation}", flush=True)
                with stand.daemon(workers, forget=True), saturated(busy, keep) as rate:
                    times = first_syns(others)
                answered = [seconds for seconds in times if seconds < TIMEOUT]
                figures[f"{name}, {situation}"] = {
                    "p50": quantile(answered, 0.5),
                    "p99": quantile(answered, 0.99),
                    "count": len(times),
                    "unanswered": len(times) - len(answered),
                    "rate": rate[0] if rate else 0.0,
                }
    return figures


def addresses(number: int) -> list[str]:
    """Return further addresses of a guest, one for each free slot, so that none is evicted."""
    return [f"10.0.{number + 1}.{turn + 1}" for turn in range(len(SLOTS) - 1)]


@contextmanager
def saturated(guest: Guest, keep: bool | None) -> Iterator[list[float]]:
    """Send requests of *guest* as fast as possible; afterwards the list has its requests a second.

    :param keep: whether to keep connections; None sends nothing.
    """
    rate: list[float] = []
    if keep is None:
        yield rate
        return
    process = start_wrk(
        guest.namespace,
        Load(clients=CONNECTIONS, keep=keep),
        f"http://{METADATA_IP}{PATH}",
        seconds=LONG,
    )
    try:
        began = time.monotonic()
        wait_for(lambda: time.monotonic() > began + 1, "the load to start", interval=0.1)
        yield rate
        # SIGINT ends wrk as the end of its duration does.
        process.send_signal(2)
        rate.append(finish_wrk(process, TIMEOUT).rate)
    finally:
        process.kill()
        process.wait()


def first_syns(guests: Sequence[Guest]) -> list[float]:
    """Return the seconds of the first SYN from each address of each guest."""
    times = []
    for number, guest in enumerate(guests):
        # The ARP request that comes first is not part of the measured time.
        _connect(guest, guest.ip)
        for address in addresses(number):
            times.append(_connect(guest, address))
            time.sleep(PAUSE)
    return times


def _connect(guest: Guest, source: str) -> float:
    with contextlib.closing(guest.namespace.open_socket()) as connection:
        connection.bind((source, 0))
        connection.settimeout(TIMEOUT)
        # Closed by a reset, so that nothing of the connection affects later measurements.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            connection.connect((METADATA_IP, 80))
            return time.monotonic() - began
        return TIMEOUT
