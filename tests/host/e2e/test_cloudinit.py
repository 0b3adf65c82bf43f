"""A real cloud-init boots: one data source and version of IP each, of the store."""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from dfmeta.store.db.repository import Repository
from tests.harness.agent import Agent
from tests.harness.cloudinit import OWN, RECENT, RECENT_WITHOUT_ZONES, Boot, Booting, Mode, Release
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import EC2_6, OPENSTACK6, Guest
from tests.host.e2e import shared
from tests.host.e2e.support import KEY

StartBoot = Callable[..., Booting]
MakeGuest6 = Callable[..., Guest]

OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDtmDuGK3tzmR4o/7QENvMOitBvsO8uN4Z1WblfVWyAg a/b=c"
RAN = "/run/ran-on"
VENDOR_RAN = "/run/vendor-ran"
USER_DATA = f"#!/bin/sh\nhostname > {RAN}\n"
VENDOR_DATA = f"#cloud-config\nruncmd:\n- [touch, {VENDOR_RAN}]\n"
ZONE = "da11"
ULA = "fd12:3456::5"
SOURCES: dict[Mode, str] = {"NoCloud": "NoCloudNet", "OpenStack": "OpenStack", "Ec2": "Ec2"}
"""Mode → name of the data source in cloud-init's results."""
CANNOT_CONNECT = 7
"""curl's exit status for an address without a route."""

host, agent = shared.host, shared.agent_with()


@pytest.fixture
def guest(agent: Agent) -> Iterator[Guest]:
    """A guest with an id of its own, which has no record."""
    with Guest(agent.host, "web") as guest:
        yield guest


def document(guest: Guest) -> dict[str, Any]:
    """What another program might push of a guest."""
    return {
        "hostname": f"{guest.name}.example.org",
        "facility": ZONE,
        "ssh_keys": [KEY, {"label": "a/b=c", "key": OTHER_KEY}],
        "instance_tags": {"role": "web"},
        "vendor_data": VENDOR_DATA,
        "network": {"addresses": [{"address": "10.0.0.5", "public": False}]},
    }


def push(agent: Agent, guest: Guest, members: dict[str, Any], userdata: bytes | None) -> None:
    """Put a record into the daemon's database."""
    with closing(Repository(f"sqlite:///{agent.state_path}/store.db")) as repository:
        repository.put(guest.instance_id, document=members, userdata=userdata)


def own_id(guest: Guest, mode: str) -> str:
    """The instance id that the guest reads: in EC2's tree in the form of EC2."""
    digits = hashlib.sha256(guest.instance_id.encode()).hexdigest()[:17]
    return f"i-{digits}" if mode == "Ec2" else guest.instance_id


def tries(boot: Boot) -> set[str]:
    """The numbers of requests for each file that was read."""
    return set(re.findall(r"Read from http://\S+ \(.*\) after (\d+) attempts", boot.log))


def check_source(boot: Boot, guest: Guest, mode: str) -> None:
    """Check that the guest has its own id and name, and has repeated no request for them."""
    assert boot.errors == [], boot.output + boot.log
    assert (boot.datasource, boot.instance_id) == (SOURCES[mode], own_id(guest, mode))
    assert boot.hostname.partition(".")[0] == guest.name
    # Of those that are answered with 404 neither.
    assert (tries(boot), "Please wait" in boot.log) == ({"1"}, False)


def check(boot: Boot, guest: Guest, mode: str) -> None:
    check_source(boot, guest, mode)
    # It writes them in no order.
    assert sorted(boot.authorized_keys.splitlines()) == sorted([KEY, OTHER_KEY])
    assert boot.instance_data["v1"]["availability_zone"] == ZONE
    # In EC2 mode it misses AWS' own tree of networks.
    assert [warning for warning in boot.warnings if "Metadata 'network' key" not in warning] == []


# From 24.3 on, cloud-init repeats NoCloud's requests that are answered with 404.
@pytest.mark.parametrize(("mode", "release"), [("NoCloud", RECENT), ("Ec2", OWN)])
def test_a_guest_boots_with_all_that_its_document_has(
    agent: Agent, guest: Guest, cloud_init: StartBoot, mode: str, release: Release
) -> None:
    push(agent, guest, document(guest), USER_DATA.encode())
    boot = cloud_init(guest, mode=mode, release=release, files=[RAN, VENDOR_RAN]).finish()
    check(boot, guest, mode)
    assert boot.user_data == USER_DATA.encode()
    assert boot.files[RAN].strip().partition(".")[0] == guest.name
    # EC2 has no vendor data.
    assert (VENDOR_RAN in boot.files) == (mode != "Ec2")


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way of an IPv6-only guest to its metadata."""

    mode: Mode
    service: str
    """Host of the URL by which the guest finds the service."""
    address6: tuple[str, ...] = ()
    """Addresses besides the link-local one."""
    release: Release = RECENT
    built_in: bool = False
    """Whether cloud-init knows the URL itself."""
    since: tuple[int, int] = (24, 2)
    """The cloud-init that it needs; of the distribution's own, any will do."""

    def boot(self, start: StartBoot, guest: Guest, **more: Any) -> Booting:
        """Begin a boot of the guest."""
        url = "" if self.built_in else f"http://{self.service}"
        return start(guest, mode=self.mode, url=url, release=self.release, **more)


BUILT_IN = Way(mode="OpenStack", service=OPENSTACK6, built_in=True)
WAYS = {
    "OpenStack": BUILT_IN,
    "Ec2": Way(
        mode="Ec2",
        service=EC2_6,
        address6=(f"{ULA}/64",),
        release=RECENT_WITHOUT_ZONES,
        built_in=True,
    ),
}


@pytest.fixture
def make_guest6(make_guest: MakeGuest) -> MakeGuest6:
    """A function that makes guests without IPv4."""

    def make(name: str, *address6: str, mac: str = "") -> Guest:
        guest = make_guest(name, address6=address6, mac=mac)
        guest.drop_ipv4()
        assert guest.curl().exit_code == CANNOT_CONNECT
        return guest

    return make


def put6(agent: Agent, guest: Guest, **members: object) -> None:
    """Put a record with a key and user data, and these members."""
    document = {"hostname": f"{guest.name}.example.org", "ssh_keys": [KEY], **members}
    push(agent, guest, document, USER_DATA.encode())


def check6(boot: Boot, guest: Guest, way: Way) -> None:
    assert boot.errors == [], boot.output + boot.log
    release = re.search(r"Cloud-init v\. (\d+)\.(\d+)", boot.output)
    assert release
    assert tuple(map(int, release.groups())) >= way.since
    assert f"Read from http://{way.service}/" in boot.log
    assert (boot.datasource, boot.instance_id) == (SOURCES[way.mode], own_id(guest, way.mode))
    assert boot.hostname.partition(".")[0] == guest.name
    assert boot.authorized_keys.splitlines() == [KEY]
    assert boot.user_data == USER_DATA.encode()
    assert boot.files[RAN].strip().partition(".")[0] == guest.name
    # No request was late, and no SYN was lost.
    assert tries(boot) == {"1"}
    counter = guest.namespace.run(["nstat", "-asz", "TcpExtTCPSynRetrans"]).stdout.splitlines()[-1]
    assert counter.split()[:2] == ["TcpExtTCPSynRetrans", "0"]


@pytest.mark.parametrize("name", WAYS)
def test_an_ipv6_only_guest_boots_with_its_record(
    agent: Agent, make_guest6: MakeGuest6, cloud_init: StartBoot, name: str
) -> None:
    way = WAYS[name]
    guest = make_guest6("six", *way.address6)
    put6(agent, guest)
    before = agent.metric("dfmeta_packet_ins_total", outcome="learned")
    check6(way.boot(cloud_init, guest, files=[RAN]).finish(), guest, way)
    assert agent.metric("dfmeta_packet_ins_total", outcome="learned") == before + 1
