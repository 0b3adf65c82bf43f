"""cloud-init should make of network_data.json what it makes of the document's network."""

from collections.abc import Iterator

import pytest

from dfmeta.store.guest.netconfig import derived
from tests.core.unit.store.guest.networks import EQUINIX, GOOD, MACS, Config
from tests.harness.netjson import CloudInit


@pytest.fixture(scope="module")
def cloud_init() -> Iterator[CloudInit]:
    with CloudInit() as one:
        yield one


def test_cloud_init_makes_the_same_of_both(cloud_init: CloudInit) -> None:
    rows: list[tuple[Config, Config]] = [*((config, config) for config in GOOD.values()), *EQUINIX]
    for network, means in rows:
        made = derived(network)
        assert made is not None, network
        assert cloud_init.network_data(made, MACS) == cloud_init.config(means), network
