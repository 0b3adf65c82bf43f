"""The hub is chosen before os-ken is imported by whichever test comes first."""

import os
from collections.abc import Iterator

import pytest

os.environ["OSKEN_HUB_TYPE"] = "eventlet"

from tests.harness.ovs import OpenvSwitch
from tests.host.ovs import vms
from tests.host.ovs.neutron_world import engines, server, vm, whole, world
from tests.host.ovs.switch import add_ports

__all__ = ["engines", "server", "vm", "whole", "world"]


@pytest.fixture(scope="module")
def switch() -> Iterator[OpenvSwitch]:
    """A switch without devices, for the tests of a module."""
    with OpenvSwitch(dummies=True) as switch:
        yield switch


@pytest.fixture
def host(switch: OpenvSwitch) -> Iterator[OpenvSwitch]:
    """The switch, without VMs and attachments after each test."""
    yield switch
    vms.clear(switch)


@pytest.fixture(scope="module")
def lasting_ports(lasting_host: OpenvSwitch) -> dict[int, int]:
    """The ports that the bridge has for all tests of a module."""
    return add_ports(lasting_host)
