"""Memory of the daemon, by the number of guests that it knows, and of Neutron's metadata agent.

The values are proportional set sizes: memory that several processes share, such as the text of a
library, is divided among them.
"""

from __future__ import annotations

from contextlib import ExitStack

from bench import peers, processes
from bench.stand import OPTIONS, Stand
from bench.targets import IN_PROCESS, ONE_WORKER, TWO_WORKERS
from bench.throughput import PEER_PORT
from tests.harness.agent import Agent
from tests.harness.crowd import Crowd
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for

COUNTS = (0, 100, 1000)
WORKERS = {0: IN_PROCESS, 1: ONE_WORKER, 2: TWO_WORKERS}
AT_ONCE = 100
NETWORKS = 10
"""Networks for which haproxy is started; memory for more networks is calculated from these."""
TIMEOUT = 120.0


def measure() -> dict[str, dict[str, float]]:
    """Return MB for each proxy and number of guests, and MB of Neutron's two parts."""
    figures = {}
    for workers, name in WORKERS.items():
        print(f"memory: {name}", flush=True)
        figures[name] = of_dfmeta(workers)
    print("memory: neutron", flush=True)
    agent, haproxy = of_neutron()
    for guests in (1, 10):
        name = f"neutron, {guests} guest{'s' if guests > 1 else ''} a network"
        figures[name] = {
            str(count): round(agent + haproxy * -(-count // guests), 1) for count in COUNTS
        }
    figures["neutron, parts"] = {"agent": agent, "haproxy of a network": haproxy}
    return figures


def of_dfmeta(workers: int) -> dict[str, float]:
    """Return, for each number of guests, the MB of the daemon and its workers."""
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch(dummies=True))
        crowd = Crowd(host)
        agent = stack.enter_context(Agent(host, OPTIONS))
        agent.configure({"df_metadata": {"proxy_workers": workers}})
        agent.start()
        there = 0
        for count in COUNTS:
            crowd.plug(range(there, count))
            if count > there:
                crowd.wait_plugged(count - 1)
                introduce(agent, crowd, there, count)
            there = count
            figures[str(count)] = processes.resident([agent.pid])
    return figures


def introduce(agent: Agent, crowd: Crowd, first: int, end: int) -> None:
    """Make one address of each port known to the daemon."""

    def learned() -> float:
        return agent.metric("dfmeta_packet_ins_total", outcome="learned")

    for start in range(first, end, AT_ONCE):
        upto = min(end, start + AT_ONCE)

        def known(start: int = start, upto: int = upto) -> bool:
            # As a guest resends its SYN: the first one is lost if the daemon does not know the
            # port yet.
            for number in range(start, upto):
                crowd.ask(number)
            return learned() >= upto

        wait_for(known, TIMEOUT, f"{upto} guests to be known", interval=0.5)


def of_neutron() -> tuple[float, float]:
    """Return the MB of the agent, and of the haproxy of one network."""
    with (
        Stand() as stand,
        stand.daemon(0),
        peers.NeutronMetadata(stand.host.namespace, PEER_PORT) as neutron,
    ):
        for number in range(1, NETWORKS):
            neutron.add_network(PEER_PORT + number)
        agent, *haproxies = neutron.pids
        return processes.resident([agent]), round(processes.resident(haproxies) / NETWORKS, 1)
