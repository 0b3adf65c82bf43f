"""A boot storm: many guests at once, each with the requests that cloud-init sends.

The guests send through the switch, each from its own namespace: with dfmeta the first SYN of each
guest is a packet-in. A peer listens in a namespace on the same bridge; the guests reach it by ARP
and NORMAL.
"""

from __future__ import annotations

import selectors
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial

from bench import peers, processes
from bench.programs import METADATA_IP, Program
from bench.stand import Stand
from bench.targets import HAPROXY, IN_PROCESS, NEUTRON, OVN, TWO_WORKERS
from tests.harness.greedy_client import whole
from tests.harness.guest import Guest, Ids

GUESTS = 50
PATIENCE = 60.0
TREE = "/latest/meta-data"
LEAVES = (
    *("ami-id", "ami-launch-index", "ami-manifest-path", "block-device-mapping/"),
    *("block-device-mapping/ami", "block-device-mapping/root", "hostname", "instance-action"),
    *("instance-id", "instance-type", "local-hostname", "local-ipv4", "placement/"),
    *("placement/availability-zone", "public-hostname", "public-ipv4", "public-keys/"),
    *("public-keys/0/openssh-key", "reservation-id", "security-groups"),
)
DOCUMENTS = ("meta_data.json", "user_data", "vendor_data.json", "vendor_data2.json")
PATHS = (
    *("/openstack", "/openstack"),
    *(f"/openstack/2018-08-27/{name}" for name in (*DOCUMENTS, "network_data.json")),
    f"{TREE}/",
    *(f"{TREE}/{name}" for name in LEAVES),
)
"""The 28 requests of an OpenStack guest with a key, in cloud-init's order."""


@dataclass(frozen=True, kw_only=True)
class Storm:
    """Results of one boot storm, in seconds."""

    last: float
    """Time until the last guest had finished."""
    median: float
    """Time until half of the guests had finished."""
    requests: int
    failed: int
    """Requests without an answer 200."""
    cpu: float
    """CPU time of the proxy's processes."""
    asking: float
    """CPU time of this process, which sends the requests of all guests."""


class Crawl:
    """One guest's requests, one after the other, with a connection for each.

    :param sockets: a socket of the guest's namespace for each path.
    """

    def __init__(self, sockets: Sequence[socket.socket], selector: selectors.BaseSelector) -> None:
        self._sockets = sockets
        self._selector = selector
        self._turn = 0
        self._buffer = b""
        self.failed = 0
        self.done = 0.0
        """Monotonic time of the end, in seconds; 0 while requests remain."""

    def begin(self) -> None:
        """Connect for the next request."""
        if self._turn == len(PATHS):
            self.done = time.monotonic()
            return
        self._buffer = b""
        connection = self._sockets[self._turn]
        connection.connect_ex((METADATA_IP, 80))
        self._selector.register(connection, selectors.EVENT_WRITE, self)

    def go_on(self) -> None:
        """Send the request or read the answer, when the connection is ready for it."""
        connection = self._sockets[self._turn]
        try:
            if not self._buffer and self._selector.get_key(connection).events & 2:
                connection.send(request(PATHS[self._turn]))
                self._selector.modify(connection, selectors.EVENT_READ, self)
                return
            data = connection.recv(65536)
            self._buffer += data
        except OSError:
            data = b""
        if data and not whole(self._buffer):
            return
        self.failed += not (whole(self._buffer) and self._buffer.startswith(b"HTTP/1.1 200"))
        self._selector.unregister(connection)
        connection.close()
        self._turn += 1
        self.begin()

    def give_up(self) -> None:
        """Count the requests without an answer as failed."""
        self.failed += len(PATHS) - self._turn
        for connection in self._sockets[self._turn :]:
            connection.close()
        self.done = self.done or time.monotonic()


def request(path: str) -> bytes:
    """Return cloud-init's request: it offers to keep the connection, but does not reuse it."""
    lines = (f"GET {path} HTTP/1.1", f"Host: {METADATA_IP}", "User-Agent: Cloud-Init/22.4.2")
    return "\r\n".join([*lines, "Accept: */*", "Connection: keep-alive", "", ""]).encode()


def storm(guests: Sequence[Guest], pids: Sequence[int]) -> Storm:
    """Boot all guests at once, and return the results."""
    selector = selectors.DefaultSelector()
    crawls = []
    for guest in guests:
        sockets = [guest.namespace.open_socket() for _path in PATHS]
        for sock in sockets:
            sock.setblocking(False)
        crawls.append(Crawl(sockets, selector))
    cpu, own, began = processes.cpu_seconds(pids), time.process_time(), time.monotonic()
    for crawl in crawls:
        crawl.begin()
    while selector.get_map() and time.monotonic() < began + PATIENCE:
        for key, _events in selector.select(1.0):
            key.data.go_on()
    for crawl in crawls:
        if not crawl.done:
            crawl.give_up()
    selector.close()
    times = [crawl.done - began for crawl in crawls]
    return Storm(
        last=max(times),
        median=statistics.median(times),
        requests=len(PATHS) * len(guests),
        failed=sum(crawl.failed for crawl in crawls),
        cpu=processes.cpu_seconds(pids) - cpu,
        asking=time.process_time() - own,
    )


def measure(*, rounds: int, guests: int = GUESTS) -> dict[str, dict[str, float]]:
    """Return, for each proxy, medians of all rounds; failures of all rounds are added up."""
    result: dict[str, list[Storm]] = {}
    with ExitStack() as stack:
        stand = stack.enter_context(Stand(guests))
        proxy = stack.enter_context(
            Guest(stand.host, "proxy", address="10.0.0.2/24", route="none", ids=Ids(), plug=False)
        )
        proxy.add_address(f"{METADATA_IP}/32")
        stack.enter_context(peers.Nova(proxy.namespace))
        starts: dict[str, Callable[[], Iterator[list[int]]]] = {
            IN_PROCESS: lambda: _dfmeta(stand, 0),
            TWO_WORKERS: lambda: _dfmeta(stand, 2),
            HAPROXY: lambda: _peer(stand, proxy, peers.Haproxy),
            NEUTRON: lambda: _peer(stand, proxy, peers.NeutronMetadata),
            OVN: lambda: _peer(stand, proxy, partial(peers.NeutronMetadata, kind="ovn")),
        }
        for turn in range(rounds):
            for name, start in starts.items():
                print(f"storm {turn + 1} of {rounds}: {name}", flush=True)
                with contextmanager(start)() as pids:
                    result.setdefault(name, []).append(storm(stand.guests, pids))
    return {name: _median(storms) for name, storms in result.items()}


def _dfmeta(stand: Stand, workers: int) -> Iterator[list[int]]:
    with stand.daemon(workers, forget=True) as agent:
        for guest in stand.guests:
            guest.forget_neighbours()
        yield [agent.pid]
        learned = agent.metric("dfmeta_packet_ins_total", outcome="learned")
        assert learned == len(stand.guests), learned
    done = stand.agent.run("--cleanup")
    assert not done.returncode, done.stderr


def _peer(stand: Stand, proxy: Guest, make: Callable[..., Program]) -> Iterator[list[int]]:
    with make(proxy.namespace, 80) as program:
        proxy.plug()
        for guest in stand.guests:
            guest.forget_neighbours()
        yield program.pids
    proxy.del_port()


def _median(storms: Sequence[Storm]) -> dict[str, float]:
    rows: list[Mapping[str, float]] = [asdict(storm) for storm in storms]
    figures = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    return {
        **figures,
        "failed": sum(row["failed"] for row in rows),
        "requests": sum(row["requests"] for row in rows),
    }
