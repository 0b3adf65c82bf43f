"""Starting, reloading and ending: one clear line for each fault, and no request lost."""

from __future__ import annotations

import http.client
import json
import signal

import pytest

from tests.harness import neutron
from tests.harness.agent import Agent, Answer
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.neutron import Neutron
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e.support import (
    META_DATA,
    NOVA_OPTIONS,
    asks_own,
    project_ids,
    put,
    put_nova,
)

pytestmark = pytest.mark.early

REMEDIES = ("Give ", "Name ", "Set ", "Correct ", "Remove ", "Stop ", "Create", "Start ", "Check ")


def check_line(agent: Agent, *words: str) -> None:
    done = agent.run()
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("dfmeta-agent: ")
    for word in words:
        assert word in line
    assert any(remedy in line for remedy in REMEDIES)


def test_a_wrong_value_is_one_clear_line_and_exit_2(make_agent: MakeAgent) -> None:
    for group, option, value in (
        ("df_metadata", "hold_timeout", "soon"),
        ("df_metadata", "state_path", "/dev/null/folder"),
        ("DEFAULT", "auth_ca_cert", "/no/such/file"),
    ):
        agent = make_agent({group: {option: value}}, start=False)
        check_line(agent, f"[{group}]", value)


def test_an_admin_listener_that_is_taken_is_one_clear_line(
    host: OpenvSwitch, make_agent: MakeAgent
) -> None:
    with host.namespace.open_socket() as taken:
        taken.bind(("127.0.0.1", 9697))
        taken.listen()
        check_line(make_agent(start=False), "[df_metadata] admin_listen", "127.0.0.1:9697")


def answer(agent: Agent) -> Answer | None:
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


def test_an_absent_ovsdb_is_waited_for(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest = make_guest("early")
    host.kill("ovsdb-server")
    agent = make_agent(start=False).start(wait=False)
    assert missing(agent) == ["ovsdb", "bridge", "flows", "proxy"]
    assert agent.admin("/healthz").status == 200
    host.start("ovsdb-server")
    agent.wait_ready()
    put(agent, guest)
    asks_own(guest)


def test_a_device_that_is_removed_during_the_start_is_made_again(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    with Neutron(host.namespace) as source:
        # The device is there; before it listens, the start waits for the sources of identities.
        source.fault("both", delay=60)
        make_guest("strange", ids=Ids(iface_id=uuid_of("port of strange")))
        guest = make_guest("known")
        options = {
            "df_metadata": {"identity_sources": "ovsdb,neutron"},
            "neutron": neutron.options(timeout=1),
        }
        agent = make_agent(options, start=False).start(wait=False)
        configured = f"Configured {SIDE.tap}: "
        wait_for(lambda: configured in agent.log(), "the device", interval=0.005)
        host.vsctl("del-port", SIDE.bridge, SIDE.tap, wait=False)
        agent.wait_ready()
        assert agent.log().count(configured) == 2
        put(agent, guest)
        asks_own(guest)
        agent.stop()


def test_after_startup_timeout_a_switch_that_is_away_is_one_clear_line(host: OpenvSwitch) -> None:
    host.kill("ovs-vswitchd")
    # Time enough to come to where it waits for the switch.
    with Agent(host, {"df_metadata": {"startup_timeout": 3}}) as agent:
        check_line(agent, "ovs-vswitchd")


def test_guests_reach_no_path_of_the_admin_listener(
    nova_agent: Agent, nova: RecordingNova, make_guest: MakeGuest
) -> None:
    guest = make_guest("curious", ids=project_ids("curious"))
    put_nova(nova, guest)
    paths = ["/healthz", "/healthz/liveness", "/healthz/readiness", "/metrics", "/version"]
    paths += [
        "/ports",
        "/options",
        "/probe",
        "/device-metadata",
        "/device-userdata/x",
        "/api/v1/device-metadata",
        "/records",
    ]
    for path in paths:
        assert guest.curl(path).status == 404, path
    assert nova.requests() == []
    asks_own(guest)


@pytest.fixture
def guest(nova_agent: Agent, nova: RecordingNova, make_guest: MakeGuest) -> Guest:
    one = make_guest("one", ids=project_ids("one"))
    put_nova(nova, one)
    asks_own(one)
    nova.clear()
    return one


def test_a_running_request_is_answered_before_the_end(
    nova_agent: Agent, nova: RecordingNova, guest: Guest
) -> None:
    nova.fault(held=True)
    batch = guest.start_many(1)
    wait_for(nova.requests, "the request to reach Nova")
    nova_agent.signal(signal.SIGTERM)
    wait_for(lambda: "dfmeta-agent ends" in nova_agent.log(), "the end to begin")
    nova.mend()
    (sample,) = batch.samples()
    assert (sample.status, sample.error) == (200, "")
    assert nova_agent.wait() == 0


def test_a_held_request_is_closed_and_the_daemon_ends_within_five_seconds(
    nova_agent: Agent, nova: RecordingNova, guest: Guest
) -> None:
    nova_agent.configure({"df_metadata": {"hold_timeout": 30}})
    nova_agent.signal(signal.SIGHUP)
    wait_for(lambda: "Reloaded" in nova_agent.log(), "the new hold_timeout")
    nova.fault(held=True)
    batch = guest.start_many(1)
    wait_for(nova.requests, "the request to reach Nova")
    # Below hold_timeout.
    nova_agent.stop(5)
    (sample,) = batch.samples()
    assert sample.status == 0
    assert "timed out" not in sample.error
    nova.mend()


def test_sighup_keeps_the_options_in_force_when_a_value_is_wrong(
    make_agent: MakeAgent, nova: RecordingNova, make_guest: MakeGuest
) -> None:
    agent = make_agent(
        {**NOVA_OPTIONS, "DEFAULT": {"metadata_proxy_shared_secret": "another secret"}}
    )
    guest = make_guest("one", ids=project_ids("one"))
    put_nova(nova, guest)
    assert guest.curl(META_DATA).status == 403

    agent.configure({"DEFAULT": {"metadata_proxy_shared_secret": SECRET}})
    agent.signal(signal.SIGHUP)
    wait_for(lambda: guest.curl(META_DATA).status == 200, "the new secret to be used")

    agent.configure(
        {
            "DEFAULT": {"metadata_proxy_shared_secret": "wrong again"},
            "df_metadata": {"hold_timeout": "soon"},
        }
    )
    agent.signal(signal.SIGHUP)
    wait_for(lambda: "Not reloaded" in agent.log(), "the daemon to refuse")
    line = next(line for line in agent.log().splitlines() if "Not reloaded" in line)
    assert "[df_metadata] hold_timeout" in line
    assert "'soon'" in line
    asks_own(guest)

    agent.configure(
        {
            "DEFAULT": {"metadata_proxy_shared_secret": SECRET},
            "df_metadata": {"hold_timeout": 0.3},
        }
    )
    reloads = agent.log().count("Reloaded")
    agent.signal(signal.SIGHUP)
    wait_for(lambda: agent.log().count("Reloaded") > reloads, "the new hold_timeout")
    nova.away()
    assert guest.curl("/").status == 503
    assert SECRET not in agent.log()
    assert "Traceback" not in agent.log()


DOWN, UP = "Readiness has been DOWN", "is UP again"


def lines(agent: Agent, text: str) -> list[str]:
    return [line for line in agent.log().splitlines() if text in line]


def test_a_bridge_that_refuses_openflow_13_is_one_line_with_the_remedy(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent()
    assert lines(agent, DOWN) == []
    host.vsctl("set", "Bridge", BRIDGE, "protocols=OpenFlow10")
    wait_for(lambda: not agent.ready(), "readiness to go")
    wait_for(lambda: lines(agent, DOWN), "the line on readiness")
    (line,) = lines(agent, "OpenFlow 1.3")
    command = line.partition("Enable it: ")[2].split()
    assert command[:4] == ["ovs-vsctl", "add", "Bridge", BRIDGE]
    assert "unsupported version" not in agent.log()
    host.vsctl(*command[1:6])
    agent.wait_ready()
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)
    wait_for(lambda: len(lines(agent, UP)) == len(lines(agent, DOWN)), "the end in the log")
