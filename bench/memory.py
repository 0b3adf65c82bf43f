"""Memory of the daemon and of its haproxy, by the number of guests that they know, and of Neutron's
metadata agent.

The values are proportional set sizes: memory that several processes share, such as the text of a
library, is divided among them. Only for haproxy alone it counts in full.
"""

from __future__ import annotations

from contextlib import ExitStack

from bench import peers, processes
from bench.crowded import check, haproxy_of
from bench.direct import Direct
from bench.stand import OPTIONS, Stand, introduce_crowd
from bench.targets import HAPROXY_ALONE, IN_HAPROXY, IN_PROCESS, ONE_WORKER, TWO_WORKERS
from bench.throughput import PEER_PORT
from tests.harness.agent import Agent
from tests.harness.crowd import Crowd
from tests.harness.ovs import OpenvSwitch

COUNTS = (0, 100, 1000)
HAPROXY_COUNTS = (*COUNTS, 5000)
WORKERS = {0: IN_PROCESS, 1: ONE_WORKER, 2: TWO_WORKERS}
NETWORKS = 10
"""Networks for which haproxy is started; memory for more networks is calculated from these."""


def measure() -> dict[str, dict[str, float]]:
    """Return MB for each proxy and number of guests, and MB of Neutron's two parts."""
    figures = {}
    for workers, name in WORKERS.items():
        print(f"memory: {name}", flush=True)
        figures[name] = of_dfmeta(workers)
    print(f"memory: {IN_HAPROXY}", flush=True)
    figures |= of_haproxy()
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
        present = 0
        for count in COUNTS:
            crowd.plug(range(present, count))
            if count > present:
                crowd.wait_plugged(count - 1)
                introduce_crowd(agent, crowd, present, count)
            present = count
            figures[str(count)] = processes.resident([agent.pid])
    return figures


def of_haproxy() -> dict[str, dict[str, float]]:
    """Return, for each number of guests, the MB of the daemon with haproxy, and of haproxy alone.

    Each guest has sent a request to haproxy, over a connection of its own.
    """
    both: dict[str, float] = {}
    alone: dict[str, float] = {}
    with Stand(dummies=True) as stand, stand.daemon(0, engine="haproxy") as agent:
        direct = Direct(stand.host.namespace, [])
        try:
            present = 0
            for count in HAPROXY_COUNTS:
                keys = stand.add_crowd(present, count)
                direct.add(keys)
                check(agent, direct, keys)
                present = count
                both[str(count)] = processes.resident([agent.pid])
                alone[str(count)] = processes.whole(haproxy_of(agent))
        finally:
            direct.close()
    return {IN_HAPROXY: both, HAPROXY_ALONE: alone}


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
