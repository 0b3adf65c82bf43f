"""Faults of OVN and of its neighbours while guests send requests: a pause at worst."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.ovn import Central, Chassis
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e.support import failures
from tests.host.e2e.test_faults import Busy
from tests.host.ovn.cloud import Network, plug

MAC = "fa:16:3e:00:00:55"
REMOVED = "Flows of dfmeta were removed from br-int; installing them again"


@dataclass
class Cloud:
    """What a fault may hit."""

    host: OpenvSwitch
    central: Central
    chassis: Chassis
    agent: Agent


Fault = Callable[[Cloud], None]


@pytest.fixture(scope="module")
def cloud(host: OpenvSwitch, central: Central, chassis: Chassis, agent: Agent) -> Cloud:
    return Cloud(host, central, chassis, agent)


@pytest.fixture(scope="module")
def busy(agent: Agent, host: OpenvSwitch, networks: list[Network]) -> Iterator[Busy]:
    """Two busy guests of different networks, with the same MAC and address."""
    with ExitStack() as stack:
        make_guest = MakeGuest(host, stack)
        yield Busy(agent, [plug(make_guest, net, net.name, mac=MAC) for net in networks])


def kill_controller(cloud: Cloud) -> None:
    """Its start deletes all flows, groups and meters of br-int."""
    cloud.chassis.kill()
    cloud.chassis.start()


def stop_controller(cloud: Cloud) -> None:
    """The service manager's stop and start: the chassis' rows go as well."""
    cloud.chassis.stop(restart=False)
    cloud.chassis.start()


def restart_controller(cloud: Cloud) -> None:
    """An upgrade of its package."""
    cloud.chassis.stop(restart=True)
    cloud.chassis.start()


def recompute(cloud: Cloud) -> None:
    """The remedy of many a runbook."""
    cloud.chassis.appctl("recompute")
    cloud.chassis.wait_wired()


def kill_databases(cloud: Cloud) -> None:
    """The control plane is away."""
    for part in ("ovn-northd", "databases"):
        cloud.central.kill(part)
    for part in ("databases", "ovn-northd"):
        cloud.central.start(part)
    cloud.chassis.wait_wired()


def kill_vswitchd(cloud: Cloud) -> None:
    """Both programs install their flows at the same time."""
    cloud.host.kill("ovs-vswitchd")
    cloud.host.start("ovs-vswitchd")
    cloud.chassis.wait_wired()


def kill_ovsdb(cloud: Cloud) -> None:
    """OVSDB is away for a moment."""
    cloud.host.kill("ovsdb-server")
    wait_for(lambda: not cloud.agent.ready(), "the daemon to notice")
    cloud.host.start("ovsdb-server")
    cloud.chassis.wait_wired()


def delete_all_flows(cloud: Cloud) -> None:
    """OVN notices nothing (its flows come back with its next connection)."""
    cloud.host.ofctl("del-flows", "br-int")
    restart_controller(cloud)


def delete_tap(cloud: Cloud) -> None:
    """The port goes, and with it device, address and route."""
    cloud.host.vsctl("del-port", SIDE.bridge, SIDE.tap)


def restart_daemon(cloud: Cloud) -> None:
    """An upgrade of dfmeta."""
    cloud.agent.restart()


def restart_daemon_and_controller(cloud: Cloud) -> None:
    """An upgrade of the host's packages: OVN deletes the flows while no daemon runs."""
    cloud.agent.stop()
    restart_controller(cloud)
    cloud.agent.start()


FAULTS = (
    kill_controller,
    stop_controller,
    restart_controller,
    recompute,
    kill_databases,
    kill_vswitchd,
    kill_ovsdb,
    delete_all_flows,
    delete_tap,
    restart_daemon,
    restart_daemon_and_controller,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_guests_see_a_pause_at_worst(cloud: Cloud, busy: Busy, fault: Fault) -> None:
    def through() -> None:
        fault(cloud)
        wait_for(cloud.agent.ready, "the daemon to be ready")

    samples = busy.through(through)
    assert failures(samples) == Counter()


@pytest.mark.parametrize("start", [kill_controller, stop_controller, restart_controller])
def test_the_switch_reports_the_deletion_itself(cloud: Cloud, busy: Busy, start: Fault) -> None:
    """dfmeta counts its flows once a second as well; that is for deletions which nobody reports."""
    before = cloud.agent.log().count(REMOVED)
    start(cloud)
    wait_for(lambda: cloud.agent.log().count(REMOVED) > before, "the report")
    busy.ask_once()
