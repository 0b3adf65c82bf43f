"""A small MTU, of a neighbour or behind the guest itself, takes metadata from nobody else."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dfmeta.model import TAP_MTU
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import METADATA_IP, Guest
from tests.harness.netns import Namespace, run, veth
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import shared
from tests.host.e2e.support import put

SERVICES = (METADATA_IP, "[fd00:ec2::254]")
USER_DATA = "".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(250)) * 12
"""192 kB."""
CONTAINER, CONTAINER6 = "172.17.0.2", "fd17::2"

host, agent = shared.host, shared.agent_with()


@pytest.fixture
def guest(agent: Agent, make_guest: MakeGuest, tmp_path: Path) -> Guest:
    file = tmp_path / "user-data"
    file.write_text(USER_DATA)
    guest = make_guest("one", address6=["fd12:3456::5/64"], route="gateway")
    put(agent, guest, "--user-data", str(file))
    return guest


def fetch_all(guest: Guest) -> None:
    for service in SERVICES:
        reply = guest.curl("/latest/user-data", host=service)
        assert (reply.status, reply.text == USER_DATA) == (200, True), (service, reply)


def mtu_of(host: OpenvSwitch, port: str) -> str:
    return host.vsctl("get", "Interface", port, "mtu").strip()


@contextmanager
def container(guest: Guest, mtu: int) -> Iterator[Namespace]:
    """Have a container whose packets the VM routes, as Docker does, over a link of that MTU."""
    vm = guest.namespace
    with Namespace("inner") as inner:
        veth(vm, "docker0", inner, "eth0")
        for namespace, device in ((vm, "docker0"), (inner, "eth0")):
            namespace.ip(f"link set {device} mtu {mtu}")
        vm.ip("addr add 172.17.0.1/24 dev docker0")
        vm.ip("addr add fd17::1/64 dev docker0 nodad", six=True)
        inner.ip(f"addr add {CONTAINER}/24 dev eth0", "route add default via 172.17.0.1")
        inner.ip(
            f"addr add {CONTAINER6}/64 dev eth0 nodad", "route add default via fd17::1", six=True
        )
        for setting in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            vm.setting(f"net/{setting}", "1")
        yield inner


@pytest.mark.parametrize("mtu", [68, 9000])
def test_mtu_of_a_neighbour_changes_nothing_for_others(
    host: OpenvSwitch, agent: Agent, guest: Guest, make_guest: MakeGuest, mtu: int
) -> None:
    before = mtu_of(host, SIDE.tap)
    neighbour = make_guest("neighbour", address="10.0.0.9/24")
    host.namespace.ip(f"link set {neighbour.port} mtu {mtu}")
    wait_for(lambda: mtu_of(host, neighbour.port) == str(mtu), "Open vSwitch to read the MTU")
    fetch_all(guest)
    assert mtu_of(host, SIDE.tap) == before


@pytest.mark.parametrize(("of_vm", "inside"), [(1450, 1500), (1500, 1280)])
def test_container_behind_a_smaller_link_fetches_a_large_document(
    host: OpenvSwitch, agent: Agent, guest: Guest, of_vm: int, inside: int
) -> None:
    host.namespace.ip(f"link set {guest.port} mtu {of_vm}")
    guest.namespace.ip(f"link set {guest.device} mtu {of_vm}")
    fetch_all(guest)
    with container(guest, inside) as inner:
        for service in SERVICES:
            url = f"http://{service}/latest/user-data"
            command = inner.command(["curl", "-q", "-sS", "-g", "--max-time", "60", url])
            assert run(command).stdout == USER_DATA


def test_foreign_internal_port_keeps_its_mtu(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    internal = ("set", "Interface", "mgmt0", "type=internal")
    host.vsctl("add-port", BRIDGE, "mgmt0", "--", *internal)
    try:
        host.namespace.ip(f"link set {guest.port} mtu 9000")
        wait_for(lambda: mtu_of(host, "mgmt0") == "9000", "the MTU of the other ports")
        fetch_all(guest)
        host.namespace.ip(f"link set {guest.port} mtu 1500")
        wait_for(lambda: mtu_of(host, "mgmt0") == "1500", "the MTU of the other ports")
        host.vsctl("del-port", BRIDGE, guest.port)
        host.vsctl("clear", "Interface", SIDE.tap, "mtu_request")
        request = ("get", "Interface", SIDE.tap, "mtu_request")
        wait_for(lambda: host.vsctl(*request).strip() == str(TAP_MTU), "the request")
        assert mtu_of(host, "mgmt0") == "1500", "a bridge without other ports"
    finally:
        host.vsctl("del-port", BRIDGE, "mgmt0")


def test_operators_mtu_request_stays(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    own = str(TAP_MTU)
    for request, result in (("9000", "9000"), ("1280", "1280"), ("1279", own), ("", own)):
        change = ("set", "Interface", SIDE.tap, f"mtu_request={request}")
        if not request:
            change = ("clear", "Interface", SIDE.tap, "mtu_request")
        host.vsctl(*change)
        wait_for(lambda: mtu_of(host, SIDE.tap) == result, f"MTU {result}")  # noqa: B023
        fetch_all(guest)
