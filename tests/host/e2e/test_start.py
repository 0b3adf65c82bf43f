"""Starting: what is missing is waited for, what is wrong is one line, and all of it can be seen."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import neutron
from tests.harness.agent import Agent, Answer
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.neutron import Neutron
from tests.harness.nova import RecordingNova
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e.support import asks_own, project_ids, put, put_nova

pytestmark = pytest.mark.early
installed = pytest.mark.installed

REMEDIES = ("Give ", "Name ", "Set ", "Correct ", "Remove ", "Stop ", "Create", "Start ", "Check ")
WRONG: list[tuple[str, str, Any]] = [
    ("df_metadata", "hold_timeout", "soon"),
    ("df_metadata", "integration_bridge", "br/int"),
    ("df_metadata", "state_path", "/dev/null/folder"),
    ("DEFAULT", "nova_metadata_host", "nova one"),
    ("DEFAULT", "auth_ca_cert", "/no/such/file"),
    ("DEFAULT", "nova_client_cert", "/dev/null"),
    ("store", "connection", "nonsense"),
]
"""One of each way to find a value wrong; tests/core/unit/test_conf.py has every option."""


def check_line(agent: Agent, *words: str, arguments: tuple[str, ...] = ()) -> str:
    done = agent.run(*arguments, timeout=30)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("dfmeta-agent: ")
    for word in words:
        assert word in line
    assert any(remedy in line for remedy in REMEDIES)
    return line


@pytest.mark.parametrize(("group", "option", "value"), WRONG)
def test_a_wrong_value_is_one_clear_line_and_exit_2(
    make_agent: MakeAgent, group: str, option: str, value: object
) -> None:
    agent = make_agent({group: {option: value}}, start=False)
    shown = "nova_client_priv_key" if option == "nova_client_cert" else str(value)
    line = check_line(agent, shown if group != "store" else "connection")
    assert option in line or shown in line
    assert f"[{group}]" in line


@installed
def test_backend_nova_without_a_secret_is_one_clear_line(make_agent: MakeAgent) -> None:
    agent = make_agent({"df_metadata": {"backend": "nova"}}, start=False)
    check_line(agent, "[DEFAULT] metadata_proxy_shared_secret", "nova.conf")


@pytest.mark.parametrize("text", ["[df_metadata\nport = 1\n", "[df_metadata]\nno equals sign\n"])
def test_a_file_that_cannot_be_parsed_is_one_clear_line(make_agent: MakeAgent, text: str) -> None:
    agent = make_agent(start=False)
    agent.config_file.write_text(text)
    check_line(agent, str(agent.config_file))


def test_an_admin_listener_that_is_taken_is_one_clear_line(
    host: OpenvSwitch, make_agent: MakeAgent
) -> None:
    with host.namespace.open_socket() as taken:
        taken.bind(("127.0.0.1", 9697))
        taken.listen()
        check_line(make_agent(start=False), "[df_metadata] admin_listen", "127.0.0.1:9697")


# Waiting


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


@pytest.fixture
def bare_host() -> Iterator[OpenvSwitch]:
    with OpenvSwitch(bridges=()) as switch:
        yield switch


def test_an_absent_bridge_is_waited_for(bare_host: OpenvSwitch) -> None:
    with Agent(bare_host) as agent:
        agent.start(wait=False)
        wait_for(lambda: "ovsdb" not in missing(agent), "OVSDB to be read")
        assert missing(agent) == ["bridge", "flows", "proxy"]
        bare_host.add_bridge(BRIDGE)
        agent.wait_ready()
        with Guest(bare_host, "late") as guest:
            put(agent, guest)
            asks_own(guest)
        agent.stop()


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


def test_after_startup_timeout_an_absent_ovsdb_is_one_clear_line(bare_host: OpenvSwitch) -> None:
    bare_host.kill("ovsdb-server")
    with Agent(bare_host, {"df_metadata": {"startup_timeout": 0.5}}) as agent:
        check_line(agent, bare_host.ovsdb_connection, "[df_metadata] ovsdb_connection")


def test_after_startup_timeout_a_switch_that_is_away_is_one_clear_line(host: OpenvSwitch) -> None:
    host.kill("ovs-vswitchd")
    # Time enough to come to where it waits for the switch.
    with Agent(host, {"df_metadata": {"startup_timeout": 3}}) as agent:
        check_line(agent, "ovs-vswitchd")


# What can be seen


@installed
def test_the_admin_listener_tells_health_version_and_metrics(make_agent: MakeAgent) -> None:
    agent = make_agent(start=False).start(wait=False)
    assert missing(agent)
    agent.wait_ready()
    for path in ("/healthz", "/healthz/liveness", "/healthz/readiness"):
        seen = agent.admin(path)
        assert (seen.status, seen.json()) == (200, {"status": "UP"})
    assert agent.admin("/version").json()["version"]
    metrics = agent.admin("/metrics")
    assert ("Content-Type", "text/plain") in [(k, v[:10]) for k, v in metrics.headers]
    assert all(name.startswith("dfmeta_") for name in agent.metrics())
    assert agent.admin("/no/such").status == 404
    assert agent.admin("/healthz", method="POST").status == 405


def test_nothing_of_the_admin_listener_is_there_for_guests(
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
