"""haproxy while ports come and go with the numbers of others: each guest gets its own answers."""

import contextlib
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException
from itertools import count

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import METADATA_IP, Guest
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import DEADLINE, wait_for
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
INTERVAL = 0.02
"""Seconds between two requests of each of the two connections: one each 10 ms."""
MANY = 1_000_000
"""More requests than are sent until the end."""

host, nova, fresh_record = shared.host, shared.nova, shared.fresh_record
agent = shared.nova_agent_with(
    {**OPTIONS, "df_metadata": {**OPTIONS["df_metadata"], "hold_timeout": 60}}
)


class Coming:
    """A guest whose port comes and goes, each time for another instance.

    :ivar kept: a connection of the instance before, which has had an answer.
    :ivar slow: a connection of the instance before, with a request that Nova holds.
    """

    kept: HTTPConnection
    slow: HTTPConnection

    def __init__(self, guest: Guest, nova: RecordingNova) -> None:
        self.guest = guest
        self._nova = nova
        self._turns = count(1)
        put_nova(nova, guest)

    def replug(self, number: int) -> tuple[str, ...]:
        """Become the next instance; the command that plugs it with that number."""
        self.guest.name = f"{self.guest.name.partition('-t')[0]}-t{next(self._turns)}"
        self.guest.ids = project_ids(self.guest.name)
        put_nova(self._nova, self.guest)
        port = self.guest.port
        ids = [f'external_ids:{key}="{value}"' for key, value in self.guest.external_ids().items()]
        command = ("--", "add-port", "br-int", port, "--", "set", "Interface", port)
        return (*command, *ids, f"ofport_request={number}")

    def connect(self) -> HTTPConnection:
        """Open a connection of the guest."""
        connection = HTTPConnection(METADATA_IP)
        connection.sock = self.guest.namespace.connect(METADATA_IP, 80, timeout=DEADLINE)
        return connection

    def is_served(self) -> bool:
        """Whether it gets an answer, which may only be its own."""
        with contextlib.suppress(OSError, HTTPException):
            with contextlib.closing(self.connect()) as new:
                new.request("GET", NAME)
                answer = new.getresponse()
                body = answer.read().decode()
            assert answer.status != 200 or body == self.guest.name
            return answer.status == 200
        return False

    def begin(self, stack: contextlib.ExitStack) -> None:
        """Leave two connections behind."""
        self.slow, self.kept = (
            stack.enter_context(contextlib.closing(self.connect())) for _ in range(2)
        )
        self.slow.request("GET", META_DATA)
        self.kept.request("GET", NAME)
        assert self.kept.getresponse().read().decode() == self.guest.name

    def assert_nothing_came(self) -> None:
        """No connection of the instance before has an answer, nor has one more request."""
        with contextlib.suppress(OSError):
            self.kept.request("GET", NAME)
        for connection in (self.kept, self.slow):
            connection.sock.setblocking(False)
            answer = b""
            with contextlib.suppress(OSError):
                answer = connection.sock.recv(65536)
            assert not answer


def words(commands: Iterable[tuple[str, ...]]) -> list[str]:
    """Several commands of ovs-vsctl in one transaction."""
    return [word for command in commands for word in command][1:]


def test_guests_get_their_own_answers_while_ports_swap_their_numbers(
    host: OpenvSwitch, agent: Agent, nova: RecordingNova, make_guest: MakeGuest, soak: int
) -> None:
    process = pid(agent)

    def withheld() -> float:
        return agent.metric("dfmeta_closed_connections_total", reason="changed")

    busy = made(agent, nova, make_guest, "busy")
    batch = busy.start_many(MANY, 2, path=NAME, interval=INTERVAL)
    pool = [
        Coming(make_guest(f"p{number}", ids=project_ids(f"p{number}")), nova)
        for number in range(POOL)
    ]
    numbers = [member.guest.ofport for member in pool]
    for _ in range(ROUNDS * min(soak, LONGEST)):
        with contextlib.ExitStack() as stack:
            nova.clear()
            nova.fault("meta_data.json", held=True)
            for member in pool:
                wait_for(member.is_served, f"{member.guest.name} to be served")
                member.begin(stack)

            def held() -> int:
                return sum("meta_data.json" in response.path for response in nova.requests())

            wait_for(lambda: held() == POOL, "the slow requests to reach Nova")
            host.vsctl(*words(("--", "del-port", "br-int", member.guest.port) for member in pool))
            numbers = [*numbers[1:], numbers[0]]
            host.vsctl(
                *words(member.replug(number) for member, number in zip(pool, numbers, strict=True))
            )
            assert [member.guest.ofport for member in pool] == numbers
            for member in pool:
                member.guest.forget_neighbours()
                wait_for(member.is_served, f"{member.guest.name} to be served")
            enough = withheld() + POOL
            nova.mend()
            wait_for(lambda enough=enough: withheld() >= enough, "Nova's answers to be withheld")
            for member in pool:
                member.assert_nothing_came()
    assert failures({busy: batch.finish()}) == {}
    assert pids(agent) == [process]
