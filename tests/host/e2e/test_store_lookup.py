"""A guest whose metadata is here should boot beside an upstream store that does not answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from dfmeta.store.db.record import Kind
from dfmeta.store.db.repository import Repository
from tests.harness import netns
from tests.harness.agent import ask
from tests.harness.central import GUEST_PORT, Central
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import uuid_of
from tests.harness.netns import Namespace
from tests.harness.other_store import NOT_FOUND, Asked, OtherStore, reply
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for

USERDATA = "/latest/user-data"
METADATA = (
    *("/", "/openstack", "/openstack/latest/meta_data.json", "/openstack/latest/vendor_data.json"),
    *("/openstack/latest/password", "/latest/meta-data/", "/latest/meta-data/hostname"),
    *("/nocloud/", "/nocloud/meta-data", "/metadata"),
)
TTL = "X-aws-ec2-metadata-token-ttl-seconds"


class Stuck:
    """A store in a namespace that answers no question for user-data until it is released."""

    def __init__(self, namespace: Namespace) -> None:
        self.released = threading.Event()
        self.store = OtherStore(self._answer, namespace=namespace)

    def _answer(self, asked: Asked) -> bytes:
        if asked.target.startswith("/device-userdata"):
            self.released.wait(60)
            return NOT_FOUND
        instance = asked.target.rpartition("/")[2]
        document = {"hostname": "fetched"}
        return reply({"id": instance, "ipAddresses": [], "metadata": document})

    def options(self) -> dict[str, object]:
        return {"lookup_base_url": self.store.url, "lookup_timeout": 60, "lookup_retries": 0}


@contextmanager
def stuck_in(namespace: Namespace) -> Iterator[Stuck]:
    one = Stuck(namespace)
    with one.store:
        yield one
        one.released.set()


@pytest.fixture
def stuck(host: OpenvSwitch) -> Iterator[Stuck]:
    with stuck_in(host.namespace) as one:
        yield one


@contextmanager
def waiting_for_userdata(namespace: Namespace, url: str, stuck: Stuck) -> Iterator[None]:
    """A request of a guest's that waits for the upstream store."""
    process = namespace.spawn(["curl", "--silent", "--output", "/dev/null", url])
    try:
        wait_for(lambda: stuck.store.asked, "the question for user-data")
        yield
    finally:
        netns.end(process)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pushed", [True, False])
def test_known_metadata_is_read_beside_an_upstream_that_is_stuck(
    make_agent: MakeAgent,
    make_guest: MakeGuest,
    stuck: Stuck,
    workers: int,
    *,
    pushed: bool,
) -> None:
    agent = make_agent({"df_metadata": {"proxy_workers": workers}, "store": stuck.options()})
    guest = make_guest("known")
    name = "pushed" if pushed else "fetched"
    metadata, userdata = (f"/device-{kind}/{guest.instance_id}" for kind in Kind)
    if pushed:
        with closing(Repository(f"sqlite:///{agent.state_path}/store.db")) as repository:
            repository.put(guest.instance_id, document={"hostname": name})
    with waiting_for_userdata(guest.namespace, f"http://169.254.169.254{USERDATA}", stuck):
        for path in METADATA:
            assert guest.curl(path, timeout=30).status == 200, path
        assert json.loads(guest.curl("/metadata", timeout=30).body)["hostname"] == name
        token = guest.curl("/latest/api/token", "-X", "PUT", headers=[(TTL, "60")], timeout=30)
        assert token.status == 200
    assert stuck.store.targets() == [userdata] + ([] if pushed else [metadata])


def test_the_central_store_reads_known_metadata_beside_one_as_well(
    on_its_own: Callable[[], tuple[Namespace, Central, Stuck]],
) -> None:
    namespace, central, stuck = on_its_own()
    instance = uuid_of("instance central")
    central.push(instance, "pushed", "127.0.0.1")
    place = ("127.0.0.1", GUEST_PORT)
    with waiting_for_userdata(namespace, f"http://127.0.0.1:{GUEST_PORT}{USERDATA}", stuck):
        for path in METADATA:
            assert ask(namespace, place, path).status == 200, path
    assert stuck.store.targets() == [f"/device-userdata/{instance}"]


@pytest.fixture
def on_its_own() -> Iterator[Callable[[], tuple[Namespace, Central, Stuck]]]:
    """A central store that asks one that is stuck."""
    with (
        Namespace("central") as namespace,
        stuck_in(namespace) as stuck,
        Central({"store": stuck.options()}, namespace=namespace) as central,
    ):
        yield lambda: (namespace, central.start(), stuck)
