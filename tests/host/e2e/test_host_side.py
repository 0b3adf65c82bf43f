"""The host side of tap-metadata is put back for both versions of IP, at one cost on any host."""

import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

import pytest

from dfmeta.errors import HostError
from dfmeta.flows.family import IPV6
from dfmeta.host.changes import KernelChanges
from dfmeta.host.device import disable_tx_checksum, driver_of
from dfmeta.host.host_facts import HostFacts, read_host
from dfmeta.host.ipv6 import lack_of
from dfmeta.host.netlink import HostSide, WantedSide
from dfmeta.identity.key import NEXT_HOP6, NEXT_HOP_MAC
from tests.harness.guest import METADATA_IP
from tests.harness.netns import Namespace
from tests.harness.poll import wait_for

ETHTOOL = shutil.which("ethtool")
DEVICE = "tap-metadata"
KNOB = f"net.ipv6.conf.{DEVICE}"
HOST_IP6 = "fd00:a9fe:a9fe:a9fe::a9fe"


@dataclass(frozen=True)
class Kind:
    """A version of IP.

    :ivar steps: what is done on a host that has none of it.
    :ivar removals: what another program does, and the steps that put it back.
    """

    wanted: WantedSide
    steps: tuple[str, ...]
    removals: tuple[tuple[str, slice], ...]

    @property
    def ip(self) -> str:
        """The address of the device."""
        return str(self.wanted.address)

    def read(self) -> HostFacts:
        """What doctor reads of it."""
        return read_host(DEVICE, self.ip, table=2, family=self.wanted.family)


KINDS = {
    4: Kind(
        WantedSide(DEVICE, IPv4Address(METADATA_IP), 2),
        (
            "up",
            f"address {METADATA_IP}/32",
            "neighbour 128.0.0.0",
            "route in table 2",
            "rule 32764",
            "rule 32765",
        ),
        (
            # With a device's last address the kernel takes its neighbours and routes.
            (f"addr del {METADATA_IP}/32 dev {DEVICE}", slice(1, 4)),
            (f"neigh del 128.0.0.0 dev {DEVICE}", slice(2, 3)),
            (f"neigh change 128.0.0.0 dev {DEVICE} lladdr 02:00:00:00:00:02", slice(2, 3)),
            (f"neigh change 128.0.0.0 dev {DEVICE} nud reachable", slice(2, 3)),
            ("route flush table 2", slice(3, 4)),
            (f"route replace default dev {DEVICE} table 2", slice(3, 4)),
            ("rule del pref 32764", slice(4, 5)),
            ("rule del pref 32765", slice(5, 6)),
        ),
    ),
    6: Kind(
        WantedSide(DEVICE, IPv6Address(HOST_IP6), 2, IPV6, NEXT_HOP6),
        (
            "accept_ra 0",
            "addr_gen_mode 1",
            "up",
            f"address {HOST_IP6}/128",
            f"neighbour {NEXT_HOP6}",
            "IPv6 route in table 2",
            "IPv6 rule 32764",
            "IPv6 rule 32765",
        ),
        (
            (f"addr flush dev {DEVICE}", slice(3, 4)),
            (f"-6 addr del {HOST_IP6}/128 dev {DEVICE}", slice(3, 4)),
            (f"link set {DEVICE} down", slice(2, 6)),
            (f"-6 neigh del {NEXT_HOP6} dev {DEVICE}", slice(4, 5)),
            (f"-6 neigh change {NEXT_HOP6} dev {DEVICE} lladdr 02:00:00:00:00:02", slice(4, 5)),
            ("-6 route flush table 2", slice(5, 6)),
            (f"-6 route replace default dev {DEVICE} table 2 metric 1024", slice(5, 6)),
            ("-6 rule del pref 32764", slice(6, 7)),
            ("-6 rule del pref 32765", slice(7, 8)),
        ),
    ),
}
FOUR, SIX = KINDS[4], KINDS[6]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def host() -> Iterator[Namespace]:
    with Namespace("side") as namespace:
        # Else the end of duplicate address detection, seconds later, is a change as well.
        namespace.setting("net/ipv6/conf/default/accept_dad", "0")
        for name in (DEVICE, "up0"):
            namespace.ip(f"link add {name} type veth peer name of-{name[:9]}")
            namespace.ip(f"link set of-{name[:9]} up")
        namespace.ip("addr add 10.0.0.1/8 dev up0", "link set up0 up")
        # A host that sends all unique local addresses elsewhere, the keys among them.
        ip(namespace, "-6 route add fd00::/8 dev up0", "-6 route add default dev up0")
        yield namespace


@pytest.fixture
def side(host: Namespace, kind: Kind) -> HostSide:
    made = HostSide(kind.wanted)
    assert ensure(host, made) == [*kind.steps]
    return made


@pytest.fixture
def side6(host: Namespace) -> HostSide:
    made = HostSide(SIX.wanted)
    assert ensure(host, made) == [*SIX.steps]
    return made


@pytest.fixture
def take(host: Namespace) -> Iterator[Callable[[], bool]]:
    """Takes the changes of that host, which has become quiet."""
    with closing(KernelChanges(table=2)) as changes:
        with host.inside():
            index = socket.if_nametoindex(DEVICE)
            assert changes.take(index), "what was before is not known"

        def quiet() -> bool:
            return not changes.take(index)

        # The kernel tells of the carrier up to a second late.
        wait_for(lambda: "state UP" in host.ip(f"link show {DEVICE}"), "the carrier")
        wait_for(quiet, "what the device's start still brings")
        yield lambda: changes.take(index)


def ip(host: Namespace, *lines: str, check: bool = True) -> str:
    """What ip(8) prints for each line; a batch takes no ``-6``."""
    return "".join(host.run(["ip", *line.split()], check=check).stdout for line in lines)


def ensure(host: Namespace, side: HostSide) -> list[str]:
    with host.inside():
        return side.ensure()


def addresses6(host: Namespace) -> list[str]:
    return re.findall(r"inet6 (\S+)", ip(host, f"-6 address show dev {DEVICE}"))


def test_a_removal_by_another_program_is_noticed_and_put_back(
    host: Namespace, side: HostSide, kind: Kind, take: Callable[[], bool]
) -> None:
    assert ensure(host, side) == []
    assert not take(), "a look that has nothing to do is no change"
    for removal, steps in kind.removals:
        ip(host, removal)
        assert take(), removal
        assert ensure(host, side) == [*kind.steps[steps]], removal
        assert ensure(host, side) == [], removal
        with host.inside():
            result = kind.read()
        assert (result.up, result.route, result.neighbour) == (True, True, True), removal
        assert result.way_back == DEVICE, removal
        assert all(rule.present for rule in result.rules), removal
        wait_for(lambda: not take(), "what the repair brings")


def test_checksum_offload_is_turned_off_again(host: Namespace) -> None:
    assert ETHTOOL is not None
    for _ in range(2):
        host.run([ETHTOOL, "-K", DEVICE, "tx", "on"])
        with host.inside():
            assert FOUR.read().tx_checksum
            assert disable_tx_checksum(DEVICE)
            assert not disable_tx_checksum(DEVICE)
            assert not FOUR.read().tx_checksum
    host.ip("tuntap add tap0 mode tap")
    with host.inside():
        with pytest.raises(HostError, match="TX checksum"):
            disable_tx_checksum("nothing0")
        assert [driver_of(name) for name in (DEVICE, "tap0", "lo", "none0")] == [
            *("veth", "tun", "", "")
        ]


# What IPv6 alone has


def test_device_has_its_address_and_answers_leave_by_it(host: Namespace, side6: HostSide) -> None:
    del side6
    assert addresses6(host) == [f"{HOST_IP6}/128"]
    shown = ip(host, f"-6 address show dev {DEVICE}")
    assert "nodad noprefixroute" in shown
    assert "tentative" not in shown
    with host.inside(), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind((HOST_IP6, 0))
        for slot in range(1, 9):
            sock.sendto(b"", (f"fd00:a9fe:a9fe:a9fe:{slot}:0:0:9", 9))
    entries = ip(host, f"-6 neighbour show dev {DEVICE}").split("\n")
    assert [line for line in entries if "fd00:" in line] == []
    assert f"{NEXT_HOP6} lladdr {NEXT_HOP_MAC} PERMANENT" in " ".join(entries)


def test_generated_addresses_and_other_settings_are_put_right(host: Namespace) -> None:
    # The device was up before its settings were made.
    ip(host, f"link set {DEVICE} up")
    wait_for(lambda: addresses6(host), "the kernel to generate an address")
    (generated,) = addresses6(host)
    side = HostSide(SIX.wanted)
    assert f"no address {generated.partition('/')[0]}" in ensure(host, side)
    assert addresses6(host) == [f"{HOST_IP6}/128"]
    assert ensure(host, side) == []
    host.sysctl(**{f"{KNOB}.accept_ra": 2, f"{KNOB}.addr_gen_mode": 0})
    done = ensure(host, side)
    assert done[:2] == [*SIX.steps[:2]]
    assert [line for line in done[2:] if not line.startswith("no address fe80::")] == []
    assert addresses6(host) == [f"{HOST_IP6}/128"]
    ip(host, f"link set {DEVICE} mtu 1279")
    with host.inside():
        lack = lack_of(DEVICE)
    assert lack is not None
    assert "is 1279" in lack.cause
