"""A real cloud-init boots from the store: all of its releases, sources, documents and networks."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from dfmeta.guest import tag_devices
from tests.core.docs import typed
from tests.harness import cni_file
from tests.harness.agent import Agent
from tests.harness.cloudinit import NEWEST, OWN, RECENT, RECENT_WITHOUT_ZONES, Release
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import EC2_6, OPENSTACK6, Guest
from tests.harness.udev import Udev
from tests.host.e2e import test_cloudinit as boots
from tests.host.e2e.support import put as put_hostname
from tests.host.e2e.test_cloudinit import (
    BUILT_IN,
    RAN,
    SOURCES,
    ULA,
    USER_DATA,
    VENDOR_RAN,
    MakeGuest6,
    StartBoot,
    Way,
    check,
    check6,
    check_source,
    document,
    push,
    put6,
)

host, agent, guest, make_guest6 = boots.host, boots.agent, boots.guest, boots.make_guest6

OPENSTACK6_BY_INDEX = "[fe80::a9fe:a9fe%252]"
"""Host of a URL: the zone is the number of the guest's first NIC."""
WRITTEN = "/etc/systemd/network/10-cloud-init-eth0.network"
NOCLOUD_EC2 = Way(
    mode="NoCloud", service=EC2_6, address6=(f"{ULA}/64",), release=RECENT_WITHOUT_ZONES
)
WAYS = {
    "OpenStack, built-in URL, beside a ULA": Way(
        mode="OpenStack", service=OPENSTACK6, built_in=True, address6=(f"{ULA}/64",)
    ),
    "NoCloud, zone by index": Way(
        mode="NoCloud", service=OPENSTACK6_BY_INDEX, release=RECENT_WITHOUT_ZONES
    ),
    "NoCloud, EC2's address": NOCLOUD_EC2,
    "Ec2, built-in URL, the distribution's cloud-init": Way(
        mode="Ec2", service=EC2_6, address6=(f"{ULA}/64",), release=OWN, built_in=True, since=(0, 0)
    ),
}
NETWORKS = pytest.mark.parametrize("way", [BUILT_IN, NOCLOUD_EC2], ids=["OpenStack", "NoCloud"])


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


@pytest.mark.parametrize("mode", SOURCES)
@pytest.mark.parametrize("release", [OWN, RECENT, NEWEST], ids=["own", "recent", "newest"])
def test_each_cloud_init_boots_and_repeats_nothing(
    agent: Agent, make_guest: MakeGuest, cloud_init: StartBoot, release: Release, mode: str
) -> None:
    bare, full = make_guest("bare"), make_guest("full")
    put_hostname(agent, bare)
    push(agent, full, document(full), USER_DATA.encode())
    for guest, verify in ((bare, check_source), (full, check)):
        verify(cloud_init(guest, mode=mode, release=release).finish(), guest, mode)


@pytest.mark.parametrize("name", WAYS)
def test_an_ipv6_only_guest_boots_with_its_record(
    agent: Agent, make_guest6: MakeGuest6, cloud_init: StartBoot, name: str
) -> None:
    way = WAYS[name]
    guest = make_guest6("six", *way.address6)
    put6(agent, guest)
    check6(way.boot(cloud_init, guest, files=[RAN]).finish(), guest, way)


@NETWORKS
def test_an_ipv6_only_guest_gets_the_network_of_its_record(
    agent: Agent, make_guest6: MakeGuest6, cloud_init: StartBoot, way: Way
) -> None:
    guest = make_guest6("six", *way.address6)
    put6(agent, guest, network_data=network_data(guest))
    boot = way.boot(cloud_init, guest, network=True, files=[RAN, WRITTEN]).finish()
    check6(boot, guest, way)
    lines = {line for line in boot.files[WRITTEN].splitlines() if "=" in line}
    # A default route, and the member gateway6 of version 2.
    route = "Destination=::/0" if way.mode == "OpenStack" else "GatewayOnLink=yes"
    assert lines == {
        *(f"MACAddress={guest.mac}", "Name=eth0", "DHCP=no", "IPv6AcceptRA=False"),
        *(f"Address={ULA}/64", route, "Gateway=fe80::1", "DNS=2001:db8::53"),
    }


def test_guest_has_its_documents_network(agent: Agent, guest: Guest, cloud_init: StartBoot) -> None:
    network = {
        "interfaces": [{"name": "eth0", "mac": guest.mac}],
        "addresses": [
            {"address": "10.0.0.5", "cidr": 24, "public": False, "gateway": "10.0.0.1"},
            {"address": "2001:db8::5", "cidr": 64, "public": True, "gateway": "2001:db8::1"},
        ],
    }
    push(agent, guest, {**document(guest), "network": network}, None)
    boot = cloud_init(guest, mode="OpenStack", network=True, files=[WRITTEN]).finish()
    assert boot.errors == [], boot.output + boot.log
    lines = {line for line in boot.files[WRITTEN].splitlines() if "=" in line}
    assert lines == {
        f"MACAddress={guest.mac}",
        "Name=eth0",
        "DHCP=no",
        *("Address=10.0.0.5/24", "Gateway=10.0.0.1", "Destination=0.0.0.0/0"),
        *("Address=2001:db8::5/64", "Gateway=2001:db8::1", "Destination=::/0"),
    }


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


PROGRAM, LIST = "/opt/cni/bin/dfmeta-cni", "/etc/cni/net.d/10-dfmeta.conflist"


@pytest.mark.parametrize("mode", ["NoCloud", "OpenStack"])
def test_the_vendor_data_of_the_page_installs_the_plugin(
    agent: Agent, make_guest: MakeGuest, cloud_init: StartBoot, tmp_path: Path, mode: str
) -> None:
    page = typed.page("dfmeta-cni")
    (block,) = (block.text for block in typed.blocks(page) if "vendor-data" in block.text)
    script, command = block.rsplit("\n", 1)
    config = re.findall(r"^\.\. code-block:: json\n\n((?:   .*\n)+)", page, re.MULTILINE)[0]
    file = cni_file.pack(tmp_path / "dfmeta-cni")
    (tmp_path / "10-dfmeta.conflist").write_text(config, encoding="ascii")
    subprocess.run(["sh", "-euc", script], cwd=tmp_path, check=True)
    guest = make_guest(mode.lower())
    put_hostname(agent, guest)
    words = command.replace("INSTANCE", guest.instance_id).replace(
        "vendor-data vendor-data", f"vendor-data {tmp_path}/vendor-data"
    )
    agent.ctl(*shlex.split(words)[1:])
    user_data = tmp_path / "user-data"
    user_data.write_text(f"#!/bin/sh\ntest -x {PROGRAM} && touch {RAN}\n", encoding="ascii")
    agent.ctl("store", "put", guest.instance_id, "--user-data", str(user_data))
    boot = cloud_init(guest, mode=mode, files=[PROGRAM, LIST, RAN]).finish()
    assert boot.errors == [], boot.output + boot.log
    assert boot.files[PROGRAM] == file.read_bytes().decode(errors="replace")
    assert boot.files[LIST] == config
    # The user's own script runs beside it, after it.
    assert RAN in boot.files
