"""Doctor should judge a second bridge with ports of others as the daemon configures it."""

from __future__ import annotations

import pytest

from dfmeta.inspect import checks_meta
from dfmeta.inspect.facts import Bridge, Interface, MetaSide, Snapshot
from dfmeta.inspect.finding import Status
from dfmeta.model import MetaNames
from tests.core.unit.inspect.values import SETTINGS

NAMES = MetaNames("br-meta", "tap-meta", "int-br-meta", "phy-br-meta", "fa:16:ee:00:00:01")
META = MetaSide(NAMES, vlan=1, socket="/run/br-meta.mgmt")
OURS = ("br-meta", "tap-meta", "phy-br-meta")


def status(*ports: str, fail_mode: str = "secure", datapaths: tuple[str, str] = ("", "")) -> Status:
    """Status of a second bridge with these ports."""
    bridges = (Bridge("br-int", datapaths[0]), Bridge("br-meta", datapaths[1], (), fail_mode))
    interfaces = (*(Interface(name, "br-meta") for name in ports), Interface("guest", "br-int"))
    return checks_meta.bridge(Snapshot(bridges, interfaces), SETTINGS, META).status


@pytest.mark.parametrize("fail_mode", ["", "standalone"])
def test_the_fail_mode_of_a_bridge_with_ports_of_others_is_not_judged(fail_mode: str) -> None:
    assert status(*OURS, fail_mode=fail_mode) is Status.WRONG
    assert status(*OURS, "uplink", fail_mode=fail_mode) is Status.OK


@pytest.mark.parametrize("datapaths", [("", "system"), ("system", ""), ("netdev", "netdev")])
def test_an_empty_datapath_type_is_the_kernels(datapaths: tuple[str, str]) -> None:
    assert status(*OURS, datapaths=datapaths) is Status.OK
    assert status(*OURS, datapaths=(datapaths[0], "other")) is Status.WRONG
