"""``dfmeta-store`` should outlast its database, and say so; PostgreSQL itself goes and comes."""

from __future__ import annotations

import http.client
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.harness.agent import Answer, ask
from tests.harness.central import GUEST_PORT, Central
from tests.harness.guest import uuid_of
from tests.harness.netns import Namespace
from tests.harness.poll import wait_for
from tests.harness.postgres import Postgres

ONE = uuid_of("instance one")
HOSTNAME = "/latest/meta-data/hostname"
OPENSTACK = "/openstack/2018-08-27/meta_data.json"


class Site:
    """A service on a PostgreSQL server of its own; its guest is on the same host."""

    def __init__(self, stack: ExitStack) -> None:
        self.namespace = stack.enter_context(Namespace("store"))
        self.postgres = stack.enter_context(Postgres())
        options = {"store": {"connection": self.postgres.create_database()}}
        self.central = stack.enter_context(Central(options, namespace=self.namespace))
        stack.callback(self.postgres.resume)
        self.central.push(ONE, "one", "127.0.0.0/8", "::1")

    def ask(self, path: str = HOSTNAME, *, host: str = "127.0.0.1") -> Answer:
        return ask(self.namespace, (host, GUEST_PORT), path)

    def readiness(self, status: int) -> None:
        wait_for(lambda: self.central.readiness() == status, f"readiness to be {status}")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        one = Site(stack)
        one.central.start()
        yield one


def test_a_server_that_stops_is_missing_until_it_is_back(site: Site) -> None:
    assert site.ask().text == "one"
    assert site.ask(host="::1").text == "one"
    site.postgres.stop()
    site.readiness(503)
    assert site.central.admin("/healthz/readiness").json() == {
        "status": "DOWN",
        "missing": ["store"],
    }
    assert site.central.admin("/healthz").status == 200
    answer = site.ask()
    assert (answer.status, dict(answer.headers)["Retry-After"]) == (503, "2")
    with pytest.raises(http.client.RemoteDisconnected):
        site.ask(OPENSTACK)
    wait_for(lambda: "Readiness has been DOWN" in site.central.log(), "the beginning in the log")
    site.postgres.start()
    site.readiness(200)
    wait_for(lambda: "store is UP again" in site.central.log(), "the end in the log")
    (line,) = [one for one in site.central.log().splitlines() if "Readiness has been DOWN" in one]
    assert "store: the database of [store] connection does not answer" in line
    assert site.ask().text == "one"
    assert site.ask(OPENSTACK).status == 200


def test_a_server_that_hangs_at_the_start_is_waited_for_until_sigterm(site: Site) -> None:
    site.central.stop()
    site.postgres.pause()
    site.central.start(wait=False)
    site.readiness(503)
    wait_for(lambda: "Serving" in site.central.log().rpartition(" starts")[2], "a listener")
    assert site.ask().status == 503
    site.postgres.resume()
    site.readiness(200)
    assert site.ask().text == "one"
    site.postgres.pause()
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(site.ask)
        open_ones = "dfmeta_open_connections"
        wait_for(lambda: site.central.metrics()[open_ones] == 1, "a request to be held")
        site.central.signal(signal.SIGTERM)
        assert site.central.wait() == 0
        error = request.exception()
        assert error is None or isinstance(error, http.client.RemoteDisconnected)
