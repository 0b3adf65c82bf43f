"""A real cloud-init of 24.2 or later boots IPv6-only guests with records of the store."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import pytest

from tests.harness import nursery
from tests.harness.agent import Agent
from tests.harness.cloudinit import (
    OWN,
    RECENT,
    RECENT_WITHOUT_ZONES,
    Boot,
    Booting,
    Mode,
    Release,
)
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import EC2_6, OPENSTACK6, Guest
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e import shared
from tests.host.e2e.support import KEY, TWIN_MAC

StartBoot = Callable[..., Booting]
MakeGuest6 = Callable[..., Guest]

ULA = "fd12:3456::5"
OPENSTACK6_BY_INDEX = "[fe80::a9fe:a9fe%252]"
"""Host of a URL: the zone is the number of the guest's first NIC."""
RAN = "/run/ran-on"
WRITTEN = "/etc/systemd/network/10-cloud-init-eth0.network"
USER_DATA = f"#!/bin/sh\nhostname > {RAN}\n"
SOURCES: dict[Mode, str] = {"NoCloud": "NoCloudNet", "OpenStack": "OpenStack", "Ec2": "Ec2"}
"""Mode → name of the data source in cloud-init's results."""
CANNOT_CONNECT = 7
"""curl's exit status for an address without a route."""


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
    forked: bool = True
    """Whether cloud-init may begin with its modules imported."""

    @property
    def url(self) -> str:
        return "" if self.built_in else f"http://{self.service}"


WAYS = {
    "OpenStack, built-in URL": Way(mode="OpenStack", service=OPENSTACK6, built_in=True),
    "OpenStack, built-in URL, beside a ULA": Way(
        mode="OpenStack", service=OPENSTACK6, built_in=True, address6=(f"{ULA}/64",)
    ),
    "OpenStack, EC2's address": Way(
        mode="OpenStack",
        service=EC2_6,
        address6=(f"{ULA}/64",),
        release=RECENT_WITHOUT_ZONES,
    ),
    "NoCloud, zone": Way(mode="NoCloud", service=OPENSTACK6, forked=False),
    "NoCloud, zone by index": Way(
        mode="NoCloud", service=OPENSTACK6_BY_INDEX, release=RECENT_WITHOUT_ZONES
    ),
    "NoCloud, EC2's address": Way(
        mode="NoCloud", service=EC2_6, address6=(f"{ULA}/64",), release=RECENT_WITHOUT_ZONES
    ),
    "Ec2, built-in URL": Way(
        mode="Ec2",
        service=EC2_6,
        address6=(f"{ULA}/64",),
        release=RECENT_WITHOUT_ZONES,
        built_in=True,
        forked=False,
    ),
    "NoCloud, EC2's address, the distribution's cloud-init": Way(
        mode="NoCloud", service=EC2_6, address6=(f"{ULA}/64",), release=OWN, since=(0, 0)
    ),
    "OpenStack, EC2's address, the distribution's cloud-init": Way(
        mode="OpenStack", service=EC2_6, address6=(f"{ULA}/64",), release=OWN, since=(0, 0)
    ),
    "Ec2, built-in URL, the distribution's cloud-init": Way(
        mode="Ec2",
        service=EC2_6,
        address6=(f"{ULA}/64",),
        release=OWN,
        built_in=True,
        since=(0, 0),
    ),
}


host = shared.host  # one for all tests: each has guests with ids of their own


@pytest.fixture(scope="module")
def agent(host: OpenvSwitch) -> Iterator[Agent]:
    with Agent(host) as one:
        yield one.start()
        one.stop()


@pytest.fixture
def make_guest6(make_guest: MakeGuest) -> MakeGuest6:
    """A function that makes guests without IPv4."""

    def make(name: str, *address6: str, mac: str = "") -> Guest:
        guest = make_guest(name, address6=address6, mac=mac)
        guest.drop_ipv4()
        assert guest.curl().exit_code == CANNOT_CONNECT
        return guest

    return make


def put(agent: Agent, guest: Guest, **document: object) -> None:
    """Push a record with the operators' command."""
    document = {"hostname": f"{guest.name}.example.org", "ssh_keys": [KEY], **document}
    pushed, user_data = agent.folder / "document", agent.folder / "user-data"
    pushed.write_text(json.dumps(document))
    user_data.write_text(USER_DATA)
    command = ("--json", str(pushed), "--user-data", str(user_data))
    agent.ctl("store", "put", guest.instance_id, *command)


def network_data(guest: Guest) -> dict[str, object]:
    """A static IPv6 address in the form of Nova's network_data.json."""
    default = {"network": "::", "netmask": "::", "gateway": "fe80::1"}
    network = {
        "id": "net1",
        "type": "ipv6",
        "link": "tap1",
        "ip_address": ULA,
        "netmask": "ffff:ffff:ffff:ffff::",
        "routes": [default],
        "network_id": "n",
    }
    return {
        "links": [{"id": "tap1", "type": "phy", "ethernet_mac_address": guest.mac}],
        "networks": [network],
        "services": [{"type": "dns", "address": "2001:db8::53"}],
    }


def network_config(guest: Guest) -> dict[str, object]:
    """The same in the form of a NoCloud seed's network-config, version 2."""
    nic = {
        "match": {"macaddress": guest.mac},
        "accept-ra": False,
        "addresses": [f"{ULA}/64"],
        "routes": [{"to": "::/0", "via": "fe80::1"}],
        "nameservers": {"addresses": ["2001:db8::53"]},
    }
    return {"version": 2, "ethernets": {"eth0": nic}}


def check(boot: Boot, guest: Guest, way: Way) -> None:
    assert boot.errors == [], boot.output + boot.log
    release = re.search(r"Cloud-init v\. (\d+)\.(\d+)", boot.output)
    assert release
    assert tuple(map(int, release.groups())) >= way.since
    assert f"Read from http://{way.service}/" in boot.log
    assert boot.datasource == SOURCES[way.mode]
    assert boot.instance_id == guest.instance_id
    assert boot.hostname.partition(".")[0] == guest.name
    assert boot.authorized_keys.splitlines() == [KEY]
    assert boot.user_data == USER_DATA.encode()
    assert boot.files[RAN].strip().partition(".")[0] == guest.name
    # No request was late, and no SYN was lost.
    assert set(re.findall(r"Read from http://\S+ \(.*\) after (\d+) attempts", boot.log)) == {"1"}
    counter = guest.namespace.run(["nstat", "-asz", "TcpExtTCPSynRetrans"]).stdout.splitlines()[-1]
    assert counter.split()[:2] == ["TcpExtTCPSynRetrans", "0"]


@pytest.mark.parametrize("name", WAYS)
def test_an_ipv6_only_guest_boots_with_its_record(
    agent: Agent, make_guest6: MakeGuest6, cloud_init: StartBoot, name: str
) -> None:
    way = WAYS[name]
    guest = make_guest6("six", *way.address6)
    put(agent, guest)
    before = agent.metric("dfmeta_packet_ins_total", outcome="learned")
    how = {"mode": way.mode, "url": way.url, "release": way.release}
    with nullcontext() if way.forked else nursery.as_installed():
        booting = cloud_init(guest, **how, files=[RAN])
    check(booting.finish(), guest, way)
    assert agent.metric("dfmeta_packet_ins_total", outcome="learned") == before + 1


@pytest.mark.parametrize("name", ["OpenStack, built-in URL", "NoCloud, EC2's address"])
def test_an_ipv6_only_guest_gets_the_network_of_its_record(
    agent: Agent, make_guest6: MakeGuest6, cloud_init: StartBoot, name: str
) -> None:
    way = WAYS[name]
    guest = make_guest6("six", *way.address6)
    members = {"network_data": network_data(guest), "network_config": network_config(guest)}
    put(agent, guest, **members)
    how = {"mode": way.mode, "url": way.url, "release": way.release, "network": True}
    boot = cloud_init(guest, **how, files=[RAN, WRITTEN]).finish()
    check(boot, guest, way)
    lines = {line for line in boot.files[WRITTEN].splitlines() if "=" in line}
    assert lines == {
        *(f"MACAddress={guest.mac}", "Name=eth0", "DHCP=no", "IPv6AcceptRA=False"),
        *(f"Address={ULA}/64", "Destination=::/0", "Gateway=fe80::1", "DNS=2001:db8::53"),
    }


def test_a_network_in_equinix_form_needs_no_ipv4(
    agent: Agent, make_guest6: MakeGuest6, cloud_init: StartBoot
) -> None:
    way = WAYS["OpenStack, built-in URL"]
    guest = make_guest6("six")
    address = {"address": ULA, "cidr": 64, "public": True, "gateway": "fe80::1"}
    interface = {"name": "eth0", "mac": guest.mac}
    put(agent, guest, network={"interfaces": [interface], "addresses": [address]})
    how = {"mode": way.mode, "url": way.url, "release": way.release, "network": True}
    boot = cloud_init(guest, **how, files=[RAN, WRITTEN]).finish()
    check(boot, guest, way)
    assert f"Address={ULA}/64" in boot.files[WRITTEN].splitlines()
    listed = guest.curl("/latest/meta-data/", host=OPENSTACK6).text.splitlines()
    assert "ipv6" in listed
    assert not [item for item in listed if "ipv4" in item]


@pytest.mark.parametrize("name", ["OpenStack, built-in URL", "NoCloud, EC2's address"])
def test_guests_with_the_same_addresses_boot_at_once_with_their_own_records(
    agent: Agent, make_guest6: MakeGuest6, cloud_init: StartBoot, name: str
) -> None:
    way = WAYS[name]
    twins = [make_guest6(one, f"{ULA}/64", mac=TWIN_MAC) for one in ("left", "right")]
    for twin in twins:
        put(agent, twin)
    how = {"mode": way.mode, "url": way.url, "release": way.release}
    boots = [cloud_init(twin, **how, files=[RAN]) for twin in twins]
    for twin, boot in zip(twins, boots, strict=True):
        check(boot.finish(), twin, way)


def test_a_guest_whose_requests_knows_no_zones_does_not_find_the_link_local_address(
    agent: Agent, make_guest6: MakeGuest6, cloud_init: StartBoot
) -> None:
    """With requests 2.32, cloud-init's built-in URL for OpenStack never leaves the guest."""
    guest = make_guest6("six", f"{ULA}/64")
    put(agent, guest)
    boot = cloud_init(guest, mode="OpenStack", url="", release=RECENT_WITHOUT_ZONES).finish()
    assert boot.datasource in ("", "None")
    assert f"open 'http://{OPENSTACK6}/openstack'" in boot.log
    assert "Read from" not in boot.log
    assert guest.curl("/openstack", host=OPENSTACK6).status == 200
