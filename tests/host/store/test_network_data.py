"""cloud-init should make of network_data.json and of a seed what it makes of the document."""

from collections.abc import Iterator

import pytest

from dfmeta.store.guest.links import version2
from dfmeta.store.guest.netconfig import derived, read
from tests.core.unit.store.guest.networks import EQUINIX, GOOD, MACS, Config
from tests.harness.netjson import CloudInit


@pytest.fixture(scope="module")
def cloud_init() -> Iterator[CloudInit]:
    with CloudInit() as cloud_init:
        yield cloud_init


def test_cloud_init_makes_the_same_of_both(cloud_init: CloudInit) -> None:
    rows: list[tuple[Config, Config]] = [*((config, config) for config in GOOD.values()), *EQUINIX]
    for network, means in rows:
        made = derived(network)
        assert made is not None, network
        assert cloud_init.network_data(made, MACS) == cloud_init.config(means), network
        seed = version2(read(network))
        devices = [device for kind in [*seed][1:] for device in seed[kind].values()]
        # Version 2 has no SLAAC, and this cloud-init leaves out the MAC of a bond or VLAN in it.
        if not any("macaddress" in device or device.get("accept-ra") for device in devices):
            assert cloud_init.config(seed) == cloud_init.config(means), network
