"""The fixtures of ``tests/host/ovs``."""

from tests.host.ovs.conftest import switch
from tests.host.ovs.neutron_world import engines, ovn, server, vm, whole, world

__all__ = ["engines", "ovn", "server", "switch", "vm", "whole", "world"]
