"""``dfmeta-store`` should outlast its database, and say so; PostgreSQL itself goes and comes."""

from __future__ import annotations

import http.client
import signal
import threading
import time
from collections.abc import Iterator
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

    def ask(self, path: str = HOSTNAME, *, host: str = "127.0.0.1", timeout: float = 12) -> Answer:
        return ask(self.namespace, (host, GUEST_PORT), path, timeout=timeout)

    def readiness(self, status: int, timeout: float = 10) -> None:
        wait_for(lambda: self.central.readiness() == status, f"readiness to be {status}")


@pytest.fixture
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        one = Site(stack)
        one.central.start()
        yield one
        if one.central.running:
            one.central.stop()


def test_guests_are_answered_from_postgresql(site: Site) -> None:
    assert site.ask().text == "one"
    assert site.ask(host="::1").text == "one"
    site.central.push(ONE, "renamed", "127.0.0.1")
    assert site.ask().text == "renamed"


def test_a_server_that_stops_is_missing_until_it_is_back(site: Site) -> None:
    assert site.ask().status == 200
    site.postgres.stop("immediate")
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


def test_a_server_that_hangs_stalls_nothing_but_what_needs_it(site: Site) -> None:
    assert site.ask().status == 200
    site.postgres.pause()
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(site.ask().status)) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    meanwhile, until = 0, time.monotonic() + 4
    while time.monotonic() < until and not answers:
        for path in ("/healthz", "/metrics"):
            assert site.central.admin(path).status == 200
        meanwhile += not answers
    assert meanwhile >= 3, "they wait until the database has had its time for an answer"
    for _ in range(3):
        begun = time.monotonic()
        assert site.central.readiness() == 503
        assert time.monotonic() - begun < 4
    for thread in threads:
        thread.join(20)
    assert answers == [503] * 12
    site.postgres.resume()
    site.readiness(200)
    assert site.ask().text == "one"


def test_a_server_that_hangs_keeps_it_from_nothing_at_sigterm(site: Site) -> None:
    site.postgres.pause()
    ended: list[object] = []

    def asks() -> None:
        try:
            ended.append(site.ask().status)
        except http.client.RemoteDisconnected as error:
            ended.append(error)

    thread = threading.Thread(target=asks)
    thread.start()
    wait_for(lambda: site.central.metrics()["dfmeta_open_connections"] == 1, "a request to be held")
    site.central.signal(signal.SIGTERM)
    assert site.central.wait(5) == 0
    thread.join(20)
    assert len(ended) == 1


@pytest.mark.parametrize("how", ["stopped", "paused"])
def test_a_server_that_is_away_at_the_start_is_waited_for(site: Site, how: str) -> None:
    site.central.stop()
    if how == "stopped":
        site.postgres.stop()
    else:
        site.postgres.pause()
    site.central.start(wait=False)
    site.readiness(503)
    wait_for(lambda: "Serving" in site.central.log().rpartition(" starts")[2], "a listener")
    assert site.ask().status == 503
    if how == "stopped":
        site.postgres.start()
    else:
        site.postgres.resume()
    site.readiness(200)
    assert site.ask().text == "one"


def test_it_can_be_ended_while_it_waits_for_a_server(site: Site) -> None:
    site.central.stop()
    site.postgres.pause()
    site.central.start(wait=False)
    site.readiness(503)
    site.central.signal(signal.SIGTERM)
    assert site.central.wait(5) == 0
