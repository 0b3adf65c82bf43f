"""The engine haproxy under load: ports that come and go, numbers that are reused, and faults."""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path

import pytest

from tests.harness.agent import Agent
from tests.harness.closing import Closing
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import METADATA_IP, Guest, Sample
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import PATIENCE, wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import META_DATA, failures, project_ids, put_nova
from tests.host.e2e.test_haproxy import OPTIONS, made, pid, pids

NAME = "/latest/meta-data/hostname"
POOL = 8
"""Guests whose ports come and go."""
ROUNDS = 8
"""More than a port has slots, so that keys are reused as well."""
LONGEST = 8
"""Times as many rounds with ``--soak``, at most: 512 ports that come and go."""
DELAY = 1.0
"""Seconds until Nova answers the slow requests."""
BUSY, AT_ONCE = 2, 2
INTERVAL = 0.06
"""Seconds between two requests of each of the six connections: one each 10 ms."""
MANY = 1_000_000
"""More requests than are sent until the end."""
IDLE_COMMANDS = 32
"""Connections to haproxy's runtime interface, more than it accepts at once."""
_PIDFD_GETFD = 438

host, nova, fresh_record = shared.host, shared.nova, shared.fresh_record
agent = shared.nova_agent_with(OPTIONS)


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {METADATA_IP}\r\n\r\n".encode()


class Load(Closing):
    """Guests that ask for their names all the time: over new connections, and over kept ones."""

    def __init__(
        self, agent: Agent, nova: RecordingNova, make_guest: MakeGuest, interval: float = 0
    ) -> None:
        """:param interval: seconds between two requests of each of a guest's connections."""
        self.guests = [made(agent, nova, make_guest, f"busy-{number}") for number in range(BUSY)]
        self._interval = interval
        self._batches = {
            one: one.start_many(MANY, AT_ONCE, path=NAME, interval=interval) for one in self.guests
        }
        self._done = threading.Event()
        self.kept: Counter[str] = Counter()
        """Outcomes of requests over kept connections."""
        self.longest = 0.0
        """Seconds of the longest of these that was answered."""
        self._threads = [threading.Thread(target=self._ask, args=(one,)) for one in self.guests]
        for thread in self._threads:
            thread.start()

    def answered(self) -> int:
        """How many requests over kept connections have been answered."""
        return self.kept["own"]

    def goes_on(self) -> None:
        """Wait until each guest has had some more answers."""
        before = self.answered()
        wait_for(lambda: self.answered() >= before + 20 * BUSY, "answers")

    def samples(self) -> dict[Guest, list[Sample]]:
        """End it; return the requests over new connections."""
        self._done.set()
        samples = {guest: batch.finish() for guest, batch in self._batches.items()}
        self._batches.clear()
        for thread in self._threads:
            thread.join()
        return samples

    def close(self) -> None:
        self._done.set()
        for batch in self._batches.values():
            batch.stop()

    def _ask(self, guest: Guest) -> None:
        """Ask over a kept connection, and over another one when it has ended."""
        while not self._done.is_set():
            with contextlib.suppress(OSError, HTTPException), connected(guest) as kept:
                while not self._done.is_set():
                    began = time.monotonic()
                    kept.request("GET", NAME)
                    answer = kept.getresponse()
                    body = answer.read()
                    own = (answer.status, body) == (200, guest.name.encode())
                    self.kept["own" if own else f"{answer.status} {body!r}"] += 1
                    took = time.monotonic() - began
                    self.longest = max(self.longest, took)
                    self._done.wait(max(0.0, self._interval - took))
            if not self._done.is_set():
                self.kept["ended"] += 1


@contextlib.contextmanager
def connected(guest: Guest, timeout: float = 10) -> Iterator[HTTPConnection]:
    connection = HTTPConnection(METADATA_IP)
    with guest.namespace.connect(METADATA_IP, 80, timeout=timeout * PATIENCE) as connection.sock:
        yield connection


@pytest.fixture
def load(agent: Agent, nova: RecordingNova, make_guest: MakeGuest) -> Iterator[Load]:
    """Each connection has a request under way all the time."""
    with Load(agent, nova, make_guest) as one:
        one.goes_on()
        yield one


@pytest.fixture
def steady(agent: Agent, nova: RecordingNova, make_guest: MakeGuest) -> Iterator[Load]:
    """A bounded rate, for what takes long."""
    with Load(agent, nova, make_guest, INTERVAL) as one:
        one.goes_on()
        yield one


class Coming:
    """A guest whose port comes and goes, each time for another instance."""

    def __init__(self, guest: Guest, nova: RecordingNova) -> None:
        self.guest = guest
        self.kept: HTTPConnection | None = None
        """A connection of the instance before, which has had an answer."""
        self.slow: HTTPConnection | None = None
        """A connection of the instance before, with a request that Nova answers late."""
        self.late = False
        """Whether the port came to another instance before Nova answered."""
        self._sent = 0.0
        self._nova = nova
        self._turns = count(1)
        put_nova(nova, guest)

    def become_another(self) -> None:
        """Be the next instance."""
        turn = next(self._turns)
        self.guest.name = f"{self.guest.name.partition('-t')[0]}-t{turn}"
        self.guest.ids = project_ids(self.guest.name)
        put_nova(self._nova, self.guest)

    def is_served(self) -> bool:
        """Whether it gets an answer, which may only be its own."""
        with contextlib.suppress(OSError, HTTPException), connected(self.guest, 2) as new:
            new.request("GET", NAME)
            answer = new.getresponse()
            body = answer.read().decode()
            assert answer.status != 200 or body == self.guest.name
            return answer.status == 200
        return False

    def begin(self, stack: contextlib.ExitStack) -> None:
        """Leave two connections behind."""
        self.slow = stack.enter_context(connected(self.guest))
        self.slow.request("GET", META_DATA)
        self._sent = time.monotonic()
        self.kept = stack.enter_context(connected(self.guest))
        self.kept.request("GET", NAME)
        assert self.kept.getresponse().read().decode() == self.guest.name

    def note_change(self) -> None:
        """Note that the port belongs to another instance now."""
        # On a busy machine Nova may have answered before.
        self.late = time.monotonic() < self._sent + DELAY

    def is_over(self) -> bool:
        """Whether Nova has answered, some time ago."""
        return time.monotonic() > self._sent + DELAY + 0.2

    def send_more(self) -> None:
        """Send one more request over the connection of the instance before."""
        assert self.kept is not None
        with contextlib.suppress(OSError):
            self.kept.request("GET", NAME)

    def assert_nothing_came(self) -> None:
        """No connection of the instance before has an answer, nor may have one."""
        for connection, allowed in ((self.kept, False), (self.slow, not self.late)):
            assert connection is not None
            connection.sock.setblocking(False)
            answer = b""
            with contextlib.suppress(OSError):
                answer = connection.sock.recv(65536)
            assert not answer or allowed, answer


def test_ports_come_and_go_with_the_numbers_of_others_and_each_guest_gets_its_own(
    host: OpenvSwitch,
    agent: Agent,
    nova: RecordingNova,
    make_guest: MakeGuest,
    steady: Load,
    soak: int,
) -> None:
    process = pid(agent)
    nova.fault("meta_data.json", delay=DELAY)
    before = agent.metric("dfmeta_closed_connections_total", reason="changed")
    pool = [
        Coming(make_guest(f"p{number}", ids=project_ids(f"p{number}")), nova)
        for number in range(POOL)
    ]
    numbers = [one.guest.ofport for one in pool]
    withheld = 0
    rounds = ROUNDS * min(soak, LONGEST)
    for _ in range(rounds):
        with contextlib.ExitStack() as stack:
            for one in pool:
                wait_for(one.is_served, f"{one.guest.name} to be served")
                one.begin(stack)
            host.vsctl(*words(("--", "del-port", "br-int", one.guest.port) for one in pool))
            numbers = [*numbers[1:], numbers[0]]
            host.vsctl(*words(map(replug, pool, numbers)))
            for one in pool:
                one.note_change()
                one.guest.forget_neighbours()
            assert [one.guest.ofport for one in pool] == numbers
            for one in pool:
                wait_for(one.is_served, f"{one.guest.name} to be served")
                one.send_more()
            wait_for(lambda: all(one.is_over() for one in pool), "Nova's answers")
            for one in pool:
                one.assert_nothing_came()
                withheld += one.late
    assert failures(steady.samples()) == {}
    assert set(steady.kept) == {"own"}
    assert pids(agent) == [process]
    wait_for(
        lambda: (
            agent.metric("dfmeta_closed_connections_total", reason="changed") - before >= withheld
        ),
        f"{withheld} answers to be counted",
    )
    sys.stdout.write(f"{POOL * rounds} ports, {withheld} answers withheld\n")


def words(commands: Iterable[tuple[str, ...]]) -> list[str]:
    """Several commands of ovs-vsctl in one transaction."""
    return [word for command in commands for word in command][1:]


def replug(one: Coming, number: int) -> tuple[str, ...]:
    """The command that plugs the next instance with that number."""
    one.become_another()
    port = one.guest.port
    settings = [f'external_ids:{key}="{said}"' for key, said in one.guest.external_ids().items()]
    command = ("--", "add-port", "br-int", port, "--", "set", "Interface", port)
    return (*command, *settings, f"ofport_request={number}")


# Faults


def kill(agent: Agent) -> None:
    """End haproxy."""
    os.kill(pid(agent), signal.SIGKILL)


def stop(agent: Agent) -> None:
    """Stop haproxy, which then hangs."""
    os.kill(pid(agent), signal.SIGSTOP)


def fill(agent: Agent) -> None:
    """Have as many connections to its runtime interface as it accepts, so that it takes no more."""
    with command_socket(agent) as link, contextlib.ExitStack() as ends:
        for _ in range(IDLE_COMMANDS):
            mine, theirs = socket.socketpair()
            ends.enter_context(mine)
            with theirs:
                data = array.array("i", [theirs.fileno()])
                link.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, data)])
        process = pid(agent)
        wait_for(lambda: process not in pids(agent), "the end of the one that is full")


@contextlib.contextmanager
def command_socket(agent: Agent) -> Iterator[socket.socket]:
    """The daemon's end of the pair of sockets over which it sends commands."""
    process = pid(agent)
    text = next(
        one.read_text()
        for one in Path(f"/proc/{process}/fd").iterdir()
        if "dfmeta-configuration" in target(one)
    )
    found = re.search(r"sockpair@(\d+)", text)
    assert found is not None
    theirs = inode(process, int(found[1]))
    lines = agent.namespace.run(["ss", "-xanH"]).stdout.splitlines()
    (mine,) = (line.split()[5] for line in lines if line.split()[7] == theirs)
    (descriptor,) = (
        int(one.name)
        for one in Path(f"/proc/{agent.pid}/fd").iterdir()
        if inode(agent.pid, int(one.name)) == mine
    )
    process_descriptor = os.pidfd_open(agent.pid)
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(
            _PIDFD_GETFD, process_descriptor, descriptor, 0
        )
    finally:
        os.close(process_descriptor)
    assert copy >= 0, os.strerror(ctypes.get_errno())
    with socket.socket(fileno=copy) as link:
        yield link


def inode(process: int, descriptor: int) -> str:
    """The inode of a process' socket; empty if it is no socket."""
    found = re.fullmatch(r"socket:\[(\d+)\]", target(Path(f"/proc/{process}/fd/{descriptor}")))
    return found[1] if found is not None else ""


def target(descriptor: Path) -> str:
    """What a descriptor below /proc stands for; empty if it has been closed meanwhile."""
    with contextlib.suppress(OSError):
        return os.readlink(descriptor)
    return ""


@pytest.mark.parametrize("fault", [kill, stop, fill], ids=lambda one: one.__name__)
def test_after_a_fault_of_haproxy_only_requests_are_lost_that_it_had_begun(
    agent: Agent, load: Load, soak: int, fault: Callable[[Agent], None]
) -> None:
    started = "haproxy runs with process id"
    before = agent.log().count(started)
    for _ in range(soak):
        process = pid(agent)
        fault(agent)
        wait_for(lambda process=process: process not in pids(agent), "its end")
        pid(agent)
        load.goes_on()
    samples = load.samples()
    faults = agent.log().count(started) - before
    kinds = failures(samples)
    assert kinds["ANOTHER'S"] == 0
    assert kinds.total() <= AT_ONCE * BUSY * faults, kinds
    assert set(load.kept) <= {"own", "ended"}
    # One for each guest at a time, and the connection that follows may meet the same fault.
    assert load.kept["ended"] <= 2 * BUSY * faults
    longest = max(one.seconds for mine in samples.values() for one in mine if one.status == 200)
    sys.stdout.write(
        f"{fault.__name__}: {faults} times, {kinds.total()} requests lost; the longest answered "
        f"one took {longest:.2f} s over a new connection, {load.longest:.2f} s over a kept one\n"
    )
