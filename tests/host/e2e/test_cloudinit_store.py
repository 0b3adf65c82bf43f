"""A real cloud-init boots from the store, in every mode that it has for that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from dfmeta.guest import tag_devices
from dfmeta.store.db.repository import Repository
from tests.harness.agent import Agent
from tests.harness.cloudinit import Boot, Booting
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.udev import Udev
from tests.host.e2e.support import KEY

StartBoot = Callable[..., Booting]

OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDtmDuGK3tzmR4o/7QENvMOitBvsO8uN4Z1WblfVWyAg a/b=c"
RAN = "/run/ran-on"
VENDOR_RAN = "/run/vendor-ran"
USER_DATA = f"#!/bin/sh\nhostname > {RAN}\n"
VENDOR_DATA = f"#cloud-config\nruncmd:\n- [touch, {VENDOR_RAN}]\n"
ZONE = "da11"
SOURCES = {"NoCloud": "NoCloudNet", "OpenStack": "OpenStack", "Ec2": "Ec2"}
"""Mode → how cloud-init calls the source that it has found."""


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """One for all tests that need no option: each has a guest of its own."""
    with OpenvSwitch() as switch, Agent(switch) as one:
        yield one.start()
        one.stop()


@pytest.fixture
def guest(agent: Agent) -> Iterator[Guest]:
    """A guest with an id of its own, which has no record."""
    with Guest(agent.host, "web") as one:
        yield one


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


def check(boot: Boot, guest: Guest, mode: str) -> None:
    assert boot.errors == [], boot.output + boot.log
    assert boot.datasource == SOURCES[mode]
    assert boot.instance_id == guest.instance_id
    assert boot.hostname.partition(".")[0] == guest.name
    # It writes them in no order.
    assert sorted(boot.authorized_keys.splitlines()) == sorted([KEY, OTHER_KEY])
    assert boot.instance_data["v1"]["availability_zone"] == ZONE
    # In EC2 mode it misses AWS' own tree of networks.
    assert [one for one in boot.warnings if "Metadata 'network' key" not in one] == []


@pytest.mark.parametrize("mode", SOURCES)
def test_a_guest_boots_with_all_that_its_document_has(
    agent: Agent, guest: Guest, cloud_init: StartBoot, mode: str
) -> None:
    push(agent, guest, document(guest), USER_DATA.encode())
    boot = cloud_init(guest, mode=mode, files=[RAN, VENDOR_RAN]).finish()
    check(boot, guest, mode)
    assert boot.user_data == USER_DATA.encode()
    assert boot.files[RAN].strip().partition(".")[0] == guest.name
    # EC2 has no vendor data.
    assert (VENDOR_RAN in boot.files) == (mode != "Ec2")


@pytest.mark.parametrize("mode", SOURCES)
def test_a_guest_without_user_data_boots_with_what_there_is(
    agent: Agent, guest: Guest, cloud_init: StartBoot, mode: str
) -> None:
    push(agent, guest, {**document(guest), "vendor_data": None}, None)
    boot = cloud_init(guest, mode=mode).finish()
    check(boot, guest, mode)
    assert boot.user_data == b""


def test_cloud_init_takes_the_tags_of_the_newest_tree(
    make_agent: MakeAgent, make_guest: MakeGuest, cloud_init: StartBoot
) -> None:
    agent = make_agent({"store": {"ec2_tree": "equinix"}})
    guest = make_guest("tagged")
    # In Equinix Metal's tree the id is the document's own.
    push(agent, guest, {**document(guest), "id": guest.instance_id}, USER_DATA.encode())
    boot = cloud_init(guest, mode="Ec2").finish()
    check(boot, guest, "Ec2")
    metadata = boot.instance_data["ds"]["meta-data"]
    assert metadata["tags"] == {"instance": {"role": "web"}}
    assert metadata["local-ipv4"] == "10.0.0.5"
    assert guest.curl("/2009-04-04/meta-data/public-keys").body.decode() == f"{KEY}\n{OTHER_KEY}"


NETWORK_DATA = {
    "links": [{"id": "tap1", "type": "phy", "ethernet_mac_address": "fa:16:3e:00:00:01"}],
    "networks": [{"id": "net1", "type": "ipv4_dhcp", "link": "tap1", "network_id": "n"}],
    "services": [],
}


def test_the_network_arrives_in_the_form_of_each_source(
    agent: Agent, guest: Guest, cloud_init: StartBoot
) -> None:
    config = "version: 2\nethernets: {eth0: {dhcp4: true}}\n"
    members = {**document(guest), "network_data": NETWORK_DATA, "network_config": config}
    push(agent, guest, members, None)
    boot = cloud_init(guest, mode="OpenStack").finish()
    check(boot, guest, "OpenStack")
    assert boot.instance_data["ds"]["network_json"] == NETWORK_DATA
    # cloud-init takes this one of a seed on the network from release 24.3 on.
    assert guest.curl("/nocloud/network-config").body.decode() == config


def test_a_guest_is_given_the_network_of_its_document(
    agent: Agent, guest: Guest, cloud_init: StartBoot
) -> None:
    network = {
        "interfaces": [{"name": "eth0", "mac": guest.mac}],
        "addresses": [
            {"address": "10.0.0.5", "cidr": 24, "public": False, "gateway": "10.0.0.1"},
            {"address": "2001:db8::5", "cidr": 64, "public": True, "gateway": "2001:db8::1"},
        ],
    }
    push(agent, guest, {**document(guest), "network": network}, None)
    written = "/etc/systemd/network/10-cloud-init-eth0.network"
    boot = cloud_init(guest, mode="OpenStack", network=True, files=[written]).finish()
    assert boot.errors == [], boot.output + boot.log
    lines = {line for line in boot.files[written].splitlines() if "=" in line}
    assert lines == {
        f"MACAddress={guest.mac}",
        "Name=eth0",
        "DHCP=no",
        *("Address=10.0.0.5/24", "Gateway=10.0.0.1", "Destination=0.0.0.0/0"),
        *("Address=2001:db8::5/64", "Gateway=2001:db8::1", "Destination=::/0"),
    }


def test_a_guest_asks_again_and_is_told_that_nothing_has_changed(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent({"store": {"phone_home_url": "https://{{.facility}}.phone.home/"}})
    guest = make_guest("again")
    push(agent, guest, document(guest), b"x")
    first = guest.curl("/metadata")
    assert json.loads(first.body)["phone_home_url"] == f"https://{ZONE}.phone.home/"
    etag = {name.lower(): value for name, value in first.headers}["etag"]
    again = guest.curl("/metadata", headers=[("If-None-Match", etag)])
    assert (again.status, again.body) == (304, b"")
    push(agent, guest, {"hostname": "other"}, b"x")
    changed = guest.curl("/metadata", headers=[("If-None-Match", etag)])
    assert changed.status == 200
    assert json.loads(changed.body)["hostname"] == "other"


@pytest.mark.parametrize("mode", ["NoCloud", "OpenStack"])
def test_a_guest_finds_its_roles_by_what_vendor_data_brings(
    agent: Agent, guest: Guest, cloud_init: StartBoot, mode: str
) -> None:
    """Nothing of it is in the image, and the user's own runcmd runs beside it."""
    nic = {"type": "nic", "bus": "none", "mac": guest.mac, "tags": ["web lan"]}
    # A script: of two cloud-configs' runcmd cloud-init takes the user's alone.
    own = f"#!/bin/sh\ntouch {VENDOR_RAN}\n"
    roles = {"vendor_data": own, "tag_devices": True, "devices": [nic]}
    user_data = (
        "#cloud-config\nwrite_files:\n- {path: /run/own, content: own}\n"
        f"runcmd:\n- [cp, /run/own, {RAN}]\n"
    )
    push(agent, guest, {**document(guest), **roles}, user_data.encode())
    boot = cloud_init(guest, mode=mode, files=[RAN, VENDOR_RAN, tag_devices.RULES]).finish()
    check(boot, guest, mode)
    assert boot.files[RAN] == "own"
    # No udevd in there: rules are all that can be had of it.
    assert "udevadm is not installed" in boot.output
    # What the operator gives in vendor data ran beside it.
    assert VENDOR_RAN in boot.files
    with Udev() as udev:
        udev.namespace.ip(f"link add lan address {guest.mac} type veth peer name peer")
        udev.run(["tee", tag_devices.RULES], stdin=boot.files[tag_devices.RULES])
        properties, complaints = udev.test("/sys/class/net/lan")
    assert complaints == []
    assert properties["DFMETA_TAGS"] == "web=20lan"
