"""Listeners that systemd opens outlive every process, and hear no other device."""

from collections.abc import Iterator

import pytest

from tests.harness.activator import Activator
from tests.harness.agent import ADMIN_PORT, Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import METADATA_IP, Guest
from tests.harness.netns import Namespace, veth
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import (
    META_DATA,
    PROXY_PORT,
    SILENCE,
    asks_own,
    open_connection,
    put,
    read_all,
)

REQUEST = f"GET {META_DATA} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n".encode()
READINESS = b"GET /healthz/readiness HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
HOST_IP6 = "fd00:a9fe:a9fe:a9fe::a9fe"
AGENT = (
    ("dfmeta-agent-guests", (METADATA_IP, PROXY_PORT)),
    ("dfmeta-agent-guests", (HOST_IP6, PROXY_PORT)),
    ("dfmeta-agent-admin", ("127.0.0.1", ADMIN_PORT)),
)


@pytest.fixture
def activator(host: OpenvSwitch) -> Iterator[Activator]:
    with Activator(host.namespace, AGENT) as activator:
        yield activator


@pytest.fixture
def agent(make_agent: MakeAgent, activator: Activator) -> Agent:
    agent = make_agent(start=False)
    agent.activator = activator
    return agent


@pytest.fixture
def guest(make_guest: MakeGuest) -> Guest:
    return make_guest("one", route="gateway")


def holders(host: OpenvSwitch) -> str:
    return host.namespace.run(["ss", "-xlH"]).stdout


def test_clients_wait_while_no_agent_runs(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    agent.start()
    put(agent, guest)
    asks_own(guest)
    for end, workers in ((agent.stop, 2), (agent.kill, 0)):
        end()
        agent.configure({"df_metadata": {"proxy_workers": workers}})
        with (
            open_connection(guest) as waiting,
            host.namespace.connect("127.0.0.1", ADMIN_PORT) as operator,
        ):
            waiting.sendall(REQUEST)
            operator.sendall(READINESS)
            agent.start()
            assert guest.instance_id.encode() in read_all(waiting)
            assert read_all(operator).startswith(b"HTTP/1.1 ")
    assert "dfmeta-listener" not in holders(host), "who keeps it needs no help"
    assert agent.metric("dfmeta_packet_ins_total") == 0


def test_no_other_device_is_heard(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    """The address may be there before the daemon: on the device of an earlier run."""
    host.namespace.ip(f"address add {METADATA_IP}/32 dev lo")
    with Namespace("neighbour") as neighbour:
        veth(host.namespace, "uplink", neighbour, "eth0")
        host.namespace.ip("address add 192.0.2.1/24 dev uplink")
        neighbour.ip("address add 192.0.2.2/24 dev eth0", "route add default via 192.0.2.1")
        place = (METADATA_IP, PROXY_PORT)
        with neighbour.connect(*place, source="192.0.2.2") as early:
            agent.start()
            wait_for(lambda: closed(early), "the early connection to be reset")
            assert "Reset 1 connections" in agent.log()
        for end in (lambda: None, agent.stop):
            end()
            with pytest.raises(TimeoutError):
                neighbour.connect(*place, source="192.0.2.2", timeout=SILENCE)
        agent.start()
        put(agent, guest)
        asks_own(guest)


def closed(connection: object) -> bool:
    try:
        return connection.recv(1) == b""  # type: ignore[attr-defined]  # a socket, which its caller opened
    except ConnectionResetError:
        return True
