"""A request for a network that is being read should wait for Neutron's answer."""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network
from typing import Any, cast

import pytest

from dfmeta.attach.drivers import networks as network_module
from dfmeta.attach.drivers.networks import Chosen, NeutronNetworks
from dfmeta.errors import AttachDriverError
from dfmeta.neutron.client import NeutronTrunks

PODS = {"pods": Chosen("n", "s")}


class Trunks:
    """Neutron, which answers once it may."""

    def __init__(self) -> None:
        self.asked, self.may = threading.Event(), threading.Event()
        self.requests = 0

    def network(self, _network: str) -> Mapping[str, Any]:
        self.requests += 1
        self.asked.set()
        self.may.wait()
        return {"mtu": 1450}

    def subnet(self, _subnet: str) -> Mapping[str, Any]:
        return {"network_id": "n", "cidr": "10.20.0.0/20", "gateway_ip": None}

    def ports_of_subnet(self, _subnet: str) -> list[Any]:
        return []


@pytest.fixture
def neutron() -> Trunks:
    return Trunks()


@pytest.fixture
def networks(neutron: Trunks) -> NeutronNetworks:
    return NeutronNetworks(cast("NeutronTrunks", neutron), PODS)


def test_requests_wait_for_the_starts_answer(networks: NeutronNetworks, neutron: Trunks) -> None:
    with ThreadPoolExecutor(3) as pool:
        start = pool.submit(networks.refresh)
        neutron.asked.wait()
        requests = [pool.submit(lambda: networks["pods"]) for _ in range(2)]
        neutron.may.set()
        assert {request.result().subnet for request in requests} == {IPv4Network("10.20.0.0/20")}
        start.result()
    assert neutron.requests == 1


def test_a_request_does_not_wait_for_ever(
    networks: NeutronNetworks, neutron: Trunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_module, "ANSWER_TIMEOUT", 0.01)
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(networks.refresh)
        neutron.asked.wait()
        with pytest.raises(AttachDriverError, match="has not told"):
            networks["pods"]
        neutron.may.set()
        start.result()
    assert networks["pods"].mtu == 1450
