"""Starting, reloading and ending: one clear line for each fault, and no request lost."""

import http.client
import json
import signal

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import METADATA_IP, Guest, Reply
from tests.harness.netns import Namespace, veth
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e.support import NOVA_OPTIONS, asks_own, project_ids, put, put_nova

pytestmark = pytest.mark.early


def test_other_program_ends_the_start(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    options = {
        "DEFAULT": NOVA_OPTIONS["DEFAULT"],
        "df_metadata": {"backend": "nova", "engine": "haproxy"},
        "haproxy": {"binary": "/bin/true"},
    }
    rules = host.namespace.ip("rule")
    done = make_agent(options, start=False).run()
    line = done.stderr.splitlines()[-1]
    assert (done.returncode, "[haproxy] binary" in line, "/bin/true" in line) == (2, True, True)
    assert (host.ports(), host.namespace.ip("rule")) == ([], rules)


def answer(agent: Agent) -> Reply | None:
    try:
        return agent.admin("/healthz/readiness")
    except (OSError, http.client.HTTPException):
        return None


def missing(agent: Agent) -> list[str]:
    first = wait_for(lambda: answer(agent), "the admin listener")
    assert first is not None
    assert first.status == 503
    document = json.loads(first.body)
    assert document["status"] == "DOWN"
    return list(document["missing"])


def test_ovsdb_is_awaited(host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    guest, agent = make_guest("early"), make_agent(start=False)
    host.kill("ovsdb-server")
    agent.start(wait=False)
    assert missing(agent) == ["ovsdb", "bridge", "flows", "proxy"]
    assert agent.admin("/healthz").status == 200
    host.start("ovsdb-server")
    agent.wait_ready()
    put(agent, guest)
    asks_own(guest)


@pytest.fixture
def guest(nova_agent: Agent, nova: RecordingNova, make_guest: MakeGuest) -> Guest:
    guest = make_guest("one", ids=project_ids("one"))
    put_nova(nova, guest)
    asks_own(guest)
    nova.clear()
    return guest


def test_end_awaits_running_requests(nova_agent: Agent, nova: RecordingNova, guest: Guest) -> None:
    nova.fault(held=True)
    batch = guest.start_many(1)
    wait_for(nova.requests, "the request to reach Nova")
    nova_agent.signal(signal.SIGTERM)
    wait_for(lambda: "dfmeta-agent ends" in nova_agent.log(), "the end to begin")
    nova.mend()
    (sample,) = batch.samples()
    assert (sample.status, sample.error) == (200, "")
    assert nova_agent.wait() == 0


def test_first_start_warns_hosts_of_a_cloud(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    """The host's own metadata come by its default route, as in a cloud's network."""
    with Namespace("cloud") as cloud, cloud.open_socket() as server:
        veth(host.namespace, "uplink", cloud, "eth0", then=[f"addr add {METADATA_IP}/32 dev eth0"])
        host.namespace.ip("addr add 192.0.2.2/24 dev uplink", "route add default dev uplink")
        cloud.ip("route add default dev eth0")
        server.bind((METADATA_IP, 80))
        server.listen()
        agent = make_agent()
        warns = SIDE.ip == METADATA_IP
        warning = f"cannot reach it while {SIDE.tap} has that address: a server answered this host"
        assert agent.log().count(warning) == warns
        assert ("such as 169.254.1.1" in agent.log()) == warns
        lines = json.loads(agent.ctl("doctor", "--format", "json", check=False).stdout)
        (line,) = [line for line in lines if line["check"] == "cloud"]
        assert line["status"] == ("wrong" if warns else "ok")
        agent.restart()
        assert agent.log().count(warning) == warns, "the first start alone"
