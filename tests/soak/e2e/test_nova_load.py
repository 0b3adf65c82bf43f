"""Guests that load a real Nova get their own answer to each request, through both engines."""

import pytest

from tests.harness.postgres import Postgres
from tests.host.e2e.support import TWIN_MAC, uuid_in
from tests.host.nova.cloud import ENGINES, cloud_with

REQUESTS = 2_500


@pytest.mark.parametrize("engine", ENGINES)
def test_no_request_fails(postgres: Postgres, soak: int, engine: str) -> None:
    with cloud_with(postgres) as cloud, cloud.agent(engine):
        networks = ("red", "blue")
        twins = [cloud.launch(net, network=net, mac=TWIN_MAC, ip="10.0.0.5") for net in networks]
        batches = [guest.start_many(REQUESTS * soak, 5) for guest in twins]
        for guest, batch in zip(twins, batches, strict=True):
            samples = batch.samples()
            assert len(samples) == REQUESTS * soak
            assert [sample.error for sample in samples if sample.status != 200] == []
            assert {uuid_in(sample.body) for sample in samples} == {guest.instance_id}
