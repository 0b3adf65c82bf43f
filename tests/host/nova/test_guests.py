"""Guests get what a real Nova has of their instances, through both engines.

All is real here but Keystone: Neutron has made the ports, OVN has bound them and answers DHCP, and
Nova answers for the instances of its database.
"""

import gzip
import random
import signal
from base64 import b64encode
from collections.abc import Callable, Iterator

import pytest

from tests.harness.agent import Agent, ask
from tests.harness.cloudinit import Booting
from tests.harness.guest import EC2_6, METADATA_IP, OPENSTACK6, Guest
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.nova_tree import Instance
from tests.harness.poll import wait_for
from tests.harness.postgres import Postgres
from tests.host.e2e.support import KEY, META_DATA, PROJECT, TWIN_MAC, Capture, packets, uuid_in
from tests.host.nova.cloud import ENGINES, Cloud, cloud_with
from tests.host.nova.server import PORT

pytestmark = pytest.mark.early

OTHER_PROJECT = "0c5e1b9f4e0a4d0f9b6f6f2d1c3a7e58"
RAN = "/run/ran-on"
USER_DATA = f"#!/bin/sh\nhostname > {RAN}\n".encode()
BINARY = random.Random(45).randbytes(45_000)
CRAWL = 28
"""Requests of cloud-init's OpenStack data source for an instance with a key."""
STALL = 2
"""SYNs that are sent again at most, after 1 s and 3 s, while the machine stands still once."""
PASSWORD = b64encode(BINARY[:700])
BELIEVED = (
    ("X-Instance-ID", "11111111-2222-4333-8444-555555555555"),
    ("X-Tenant-ID", "another"),
    ("X-Instance-ID-Signature", "0" * 64),
    ("X-Forwarded-For", "192.0.2.66"),
    ("X-Metadata-Provider", "provider"),
    ("X-Metadata-Provider-Signature", "0" * 64),
)
"""What Nova would believe, with values that a guest might like."""
HOSTILE = [*BELIEVED, *((name.lower().replace("-", "_"), value) for name, value in BELIEVED)]
ULA = "fd12:3456::5"
KNOWN = "9d2a8f4e-8a52-4f3f-9a05-0d2f4b8e7c11"
"""An instance of both Novas."""


@pytest.fixture(scope="module")
def cloud(postgres: Postgres) -> Iterator[Cloud]:
    with cloud_with(postgres) as services:
        yield services


@pytest.fixture(scope="module", params=ENGINES)
def agent(cloud: Cloud, request: pytest.FixtureRequest) -> Iterator[Agent]:
    """The daemon with each engine."""
    with cloud.agent(request.param) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def twins(cloud: Cloud) -> list[Guest]:
    """Guests of two networks and projects with the same MAC and addresses."""
    same = {"key": KEY, "mac": TWIN_MAC, "ip": "10.0.0.5"}
    blue = {"network": "blue", "project": OTHER_PROJECT}
    guests = [
        cloud.launch("left", user_data=USER_DATA, **same),
        cloud.launch("right", user_data=gzip.compress(USER_DATA), **same, **blue),
    ]
    for guest in guests:
        guest.add_address6(f"{ULA}/64")
    return guests


@pytest.fixture(scope="module")
def bare(cloud: Cloud) -> Guest:
    """A guest of an instance without a key, user-data and network cache."""
    return cloud.launch("bare", cached=False)


def test_cloud_init_boots_with_one_packet_in(
    cloud: Cloud, twins: list[Guest], agent: Agent, cloud_init: Callable[..., Booting]
) -> None:
    for guest in twins:
        assert f"{METADATA_IP} via 10.0.0.1" in guest.namespace.ip("route")  # OVN's lease
        before, asked = agent.metric("dfmeta_packet_ins_total"), len(cloud.nova.requests())
        with Capture(cloud.host.namespace, guest.port) as capture:
            boot = cloud_init(guest, files=[RAN]).finish()
            syns = capture.syns()
        assert boot.errors == [], boot.output + boot.log
        assert (boot.datasource, boot.instance_id) == ("OpenStack", guest.instance_id)
        assert boot.hostname.partition(".")[0] == guest.name
        assert boot.authorized_keys.splitlines()[0] == KEY
        assert boot.files[RAN].strip().partition(".")[0] == guest.name
        crawl = cloud.nova.requests()[asked:]
        assert [status for _path, status in crawl] == [200] * CRAWL
        assert len({syn.source_port for syn in syns}) == CRAWL
        # They come one after the other, so that a machine that stands still delays one of them.
        again = packets(syns) - CRAWL
        assert again <= STALL
        assert 1 <= agent.metric("dfmeta_packet_ins_total") - before <= 1 + again


def test_twins_get_their_own_whatever_they_send(agent: Agent, twins: list[Guest]) -> None:
    del agent
    services = (METADATA_IP, OPENSTACK6, EC2_6)
    batches = [
        (guest, guest.start_many(30, 10, host=service, headers=HOSTILE))
        for service in services
        for guest in twins
    ]
    for guest, batch in batches:
        samples = batch.samples()
        assert [sample.error for sample in samples if sample.status != 200] == []
        assert {uuid_in(sample.body) for sample in samples} == {guest.instance_id}


def test_an_instance_without_key_and_user_data_has_neither(agent: Agent, bare: Guest) -> None:
    del agent
    for path in (
        "/openstack/latest/user_data",
        "/latest/user-data",
        "/latest/meta-data/public-keys",
    ):
        assert bare.curl(path).status == 404, path
    # Nova has no address of it but the one in X-Forwarded-For.
    assert bare.curl("/latest/meta-data/local-ipv4", headers=HOSTILE).text == bare.ip


@pytest.mark.parametrize("how", ["length", "chunked"])
def test_bytes_pass_in_both_directions(cloud: Cloud, agent: Agent, how: str) -> None:
    guest = cloud.launch(how, user_data=BINARY)
    for path in ("/openstack/latest/user_data", "/latest/user-data"):
        assert guest.curl(path).body == BINARY
    path = "/openstack/2013-04-04/password"
    chunked = ["-H", "Transfer-Encoding: chunked"] if how == "chunked" else []
    # Not UTF-8: Nova ends without an answer.
    assert guest.curl(path, data=b"\xff").status == 504
    reply = guest.curl(path, *chunked, data=PASSWORD)
    assert (reply.status, reply.body) == (200, b"")
    wait_for(lambda: guest.curl(path).body == PASSWORD, "Nova's cache to expire")
    assert guest.curl(path, data=b"again").status == 409
    assert PASSWORD.decode() not in agent.log()


def test_nova_is_given_the_project_of_the_port(cloud: Cloud, agent: Agent) -> None:
    guest = cloud.launch("foreign", owner=OTHER_PROJECT)
    assert guest.curl(META_DATA).status == 404
    assert "404: Nova has no such instance in its project" in agent.ctl("ports").stdout


def test_another_secret_is_refused(agent: Agent, bare: Guest) -> None:
    def reload(secret: str, status: int) -> None:
        agent.configure({"DEFAULT": {"metadata_proxy_shared_secret": secret}})
        agent.signal(signal.SIGHUP)
        wait_for(lambda: bare.curl(META_DATA).status == status, f"{status}")

    reload("another", 403)
    reload(SECRET, 200)


def test_the_stand_in_refuses_as_nova_does(cloud: Cloud) -> None:
    place = cloud.host.namespace
    cloud.nova.put(KNOWN, PROJECT, "known")
    with RecordingNova(place, port=PORT + 1) as stand_in:
        stand_in.put(Instance(instance_id=KNOWN, project_id=PROJECT, hostname="known"))
        signature = stand_in.signature(KNOWN)
        for changes, status in (
            ({"X-Instance-ID": ""}, 403),
            ({"X-Instance-ID": None}, 400),
            ({"X-Tenant-ID": None}, 400),
            ({"X-Instance-ID-Signature": None}, 400),
            ({"X-Tenant-ID": "another"}, 404),
            ({"X-Instance-ID": "another"}, 403),
            ({"X-Instance-ID-Signature": "0" * 64}, 403),
            ({"X-Instance-ID-Signature": signature.upper()}, 403),
            ({}, 200),
        ):
            known = {"X-Instance-ID": KNOWN, "X-Tenant-ID": PROJECT}
            known |= {"X-Instance-ID-Signature": signature, **changes}
            sent = {name: value for name, value in known.items() if value is not None}
            for port in (PORT, PORT + 1):
                answer = ask(place, ("127.0.0.1", port), META_DATA, headers=sent)
                assert answer.status == status, (port, changes)
