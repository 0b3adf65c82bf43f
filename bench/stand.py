"""The host of the measurements: a compute node of the harness with nginx in Nova's place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address, IPv6Address

from bench.load import PATH
from bench.peers import SECRET, Nova
from dfmeta.identity.key import IN_PORT
from dfmeta.model import Endpoint
from tests.harness.agent import HAPROXY, Agent
from tests.harness.closing import Closing
from tests.harness.crowd import Crowd
from tests.harness.guest import METADATA_IP, OPENSTACK6, Guest, Ids, uuid_of
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for

PROJECT = uuid_of("project")
OPTIONS = {
    "DEFAULT": {"metadata_proxy_shared_secret": SECRET},
    "df_metadata": {"backend": "nova"},
}
PORT = 18080
SERVICES = {4: METADATA_IP, 6: OPENSTACK6}
PLUGGED_AT_ONCE = 500
AT_ONCE = 100
"""Ports of the crowd that send their first SYN at once."""
KNOWN_TIMEOUT = 240.0


class Stand(Closing):
    """Open vSwitch, nginx and a daemon that is not started; a context manager that stops all."""

    def __init__(self, guests: int = 0, *, dummies: bool = False) -> None:
        """Start Open vSwitch and nginx, and plug guests.

        :param guests: number of guests to plug, each with its own address of 10.0.0.0/24.
        :param dummies: the guests' ports are those of :attr:`crowd`; there can be no other guests.
        """
        self._stack = ExitStack()
        try:
            self.host = self._stack.enter_context(OpenvSwitch(dummies=dummies))
            self.crowd = Crowd(self.host, project=PROJECT)
            self.nova = self._stack.enter_context(Nova(self.host.namespace))
            self.agent = self._stack.enter_context(Agent(self.host, OPTIONS))
            self.guests = [self.plug(number) for number in range(guests)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop everything. Idempotent."""
        self._stack.close()

    def plug(self, number: int) -> Guest:
        """Plug one more guest."""
        ids = Ids(
            iface_id=uuid_of(f"port {number}"),
            vm_uuid=uuid_of(f"instance {number}"),
            project_id=PROJECT,
        )
        address = f"10.0.0.{10 + number}/24"
        return self._stack.enter_context(
            Guest(self.host, f"guest{number}", address=address, ids=ids)
        )

    @contextmanager
    def daemon(
        self, workers: int, *, engine: str = "wsgi", forget: bool = False
    ) -> Iterator[Agent]:
        """Run the daemon during the block.

        :param engine: the option of that name.
        :param forget: start it without known guests, as on a host whose guests have not booted.
        """
        if forget:
            done = self.agent.run("--cleanup")
            assert not done.returncode, done.stderr
        self.agent.configure(
            {
                "df_metadata": {"proxy_workers": workers, "engine": engine},
                "haproxy": {"binary": HAPROXY},
            }
        )
        self.agent.start()
        try:
            yield self.agent
        finally:
            self.agent.stop(timeout=10)

    def introduce(self, version: int = 4) -> list[IPv4Address | IPv6Address]:
        """Send each guest's first SYN through the switch; return the keys of the guests.

        :param version: of IP; a guest has a key for each version.
        """
        wanted = self._learned() + len(self.guests)
        for guest in self.guests:
            (sample,) = guest.http_many(1, path=PATH, host=SERVICES[version])
            assert sample.status == 200, sample
        assert wait_for(lambda: self._learned() >= wanted, "the guests to be known")
        slot = IN_PORT.slots(version)[0]
        return [IN_PORT.key_of(Endpoint(guest.ofport), slot) for guest in self.guests]

    def add_crowd(self, first: int, end: int) -> list[IPv4Address | IPv6Address]:
        """Plug ports of the crowd; return their keys when the daemon, which runs, knows them.

        Each guest's first SYN is a frame that the switch receives at its port.

        :param first: number of the first port.
        :param end: number after the last one; all ports below *first* are known already.
        """
        for start in range(first, end, PLUGGED_AT_ONCE):
            upto = min(end, start + PLUGGED_AT_ONCE)
            self.crowd.plug(range(start, upto))
            self.crowd.wait_plugged(upto - 1)
            wait_for(
                lambda upto=upto: self._ports() >= upto, f"{upto} ports", deadline=KNOWN_TIMEOUT
            )
            introduce_crowd(self.agent, self.crowd, start, upto)
        slot = IN_PORT.slots(4)[0]
        return [
            IN_PORT.key_of(Endpoint(self.crowd.ofport(number)), slot)
            for number in range(first, end)
        ]

    def _ports(self) -> float:
        return self.agent.metric("dfmeta_ports")  # of all states

    def _learned(self) -> float:
        return self.agent.metric("dfmeta_packet_ins_total", outcome="learned")


def introduce_crowd(agent: Agent, crowd: Crowd, first: int, end: int) -> None:
    """Make one address of each port known to the daemon."""

    def learned() -> float:
        return agent.metric("dfmeta_packet_ins_total", outcome="learned")

    before = learned()
    for start in range(first, end, AT_ONCE):
        upto = min(end, start + AT_ONCE)

        def known(start: int = start, upto: int = upto) -> bool:
            # As a guest resends its SYN: the first one is lost if the daemon does not know the
            # port yet.
            for number in range(start, upto):
                crowd.ask(number)
            return learned() - before >= upto - first

        wait_for(known, f"{upto} guests to be known", deadline=KNOWN_TIMEOUT, interval=0.5)
