"""A compute node that OVN wires, with two networks, and the daemon."""

from collections.abc import Iterator

import pytest

from tests.harness.agent import Agent
from tests.harness.ovn import Central, Chassis
from tests.harness.ovs import OpenvSwitch
from tests.host.ovn.cloud import Network


@pytest.fixture(scope="module")
def host() -> Iterator[OpenvSwitch]:
    with OpenvSwitch() as switch:
        yield switch


@pytest.fixture(scope="module")
def central() -> Iterator[Central]:
    with Central() as databases:
        yield databases


@pytest.fixture(scope="module")
def chassis(host: OpenvSwitch, central: Central) -> Iterator[Chassis]:
    """Provide ovn-controller on ``host``."""
    with Chassis(host, central, name="compute1", address="127.0.0.1") as controller:
        yield controller


@pytest.fixture(scope="module")
def networks(chassis: Chassis) -> list[Network]:
    """Provide two networks with the same addresses."""
    return [Network(chassis.central, name) for name in ("red", "blue")]


@pytest.fixture(scope="module")
def agent(host: OpenvSwitch, chassis: Chassis) -> Iterator[Agent]:
    """Provide the daemon beside ovn-controller; it must stop with exit status 0."""
    with Agent(chassis.host) as daemon:
        yield daemon.start()
        daemon.stop()
