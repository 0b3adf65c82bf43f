"""tap-metadata's host side should be looked after, and IPv6 there cost IPv4 nothing."""

import logging
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dfmeta.cmd.tap import TapKeeper
from dfmeta.errors import HostError
from dfmeta.flows.family import IPV6
from dfmeta.host import device, ipv6
from dfmeta.host.ipv6 import SETTINGS, Lack, lack_of, settle
from dfmeta.host.netlink import HostSide, WantedSide
from dfmeta.host.sides import HostSides
from dfmeta.identity.key import Keys
from dfmeta.ovsdb.bridge_reader import TapPort, Update
from dfmeta.ovsdb.external_ids import META_KEYS
from dfmeta.ovsdb.rows import Bridge
from dfmeta.runtime.saved_state import HostMemory, SavedState
from dfmeta.runtime.throttle import LONGEST_PAUSE
from tests.harness.tier import CLOCK

BRIDGE = Bridge("br-int", datapath_id=1)
THERE = Update(True, BRIDGE, TapPort(9, "02:64:66:6d:65:fe", sound=True, marked=True))
NO_NUMBER = Update(True, BRIDGE, TapPort(None, "", sound=True, marked=True))
HOST_IP6 = "fd00:a9fe:a9fe:a9fe::a9fe"
GROUP = SimpleNamespace(
    metadata_interface="lo",
    ip="169.254.169.254",
    host_ip="169.254.169.254",
    ip6=["FE80::A9FE:A9FE", "fd00:ec2:0::254"],
    host_ip6=HOST_IP6.upper(),
    key_prefix6="fd12:3456:789a:1::/64",
    route_table=2,
    port=0,
)


class Host:
    """The kernel's side; each look at it is told, and may fail."""

    def __init__(self, looked: Callable[[], None]) -> None:
        self.looked = looked
        self.refuses = False
        self.wanting = False
        self.serves_ipv6 = False
        self.ipv6_fault = ""

    def look(self) -> tuple[list[str], bool]:
        return [], self.wanting

    def ensure(self) -> list[str]:
        self.looked()
        if self.refuses:
            raise HostError(what="address", device="lo", cause="no")
        return []


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> TapKeeper:
    monkeypatch.setattr(device, "disable_tx_checksum", lambda _name: False)
    monkeypatch.setattr(device, "raise_arp_ignore", lambda: None)
    keys = Keys(IPv6Network(GROUP.key_prefix6))
    made: Any = TapKeeper(GROUP, SavedState(), SimpleNamespace(), keys=keys)
    made._changes = SimpleNamespace(take=lambda _index: False)
    made.seen = []
    made.requests = []
    made.host = Host(lambda: made.seen.append(made.in_place))
    return made  # type: ignore[no-any-return]


def look(keeper: Any, update: Update = THERE) -> bool:
    keeper._next_look = keeper._next_full_look = 0.0
    watcher = SimpleNamespace(
        ensure_tap=lambda: None, reconfigure=lambda: keeper.requests.append("numbers")
    )
    return bool(keeper.ensure(watcher, update))


def test_a_look_that_fails_takes_it_away_until_one_succeeds(keeper: Any) -> None:
    look(keeper)
    keeper.host.refuses = True
    with pytest.raises(HostError):
        look(keeper)
    assert not keeper.in_place
    keeper.host.refuses = False
    assert look(keeper)
    assert keeper.in_place


def test_side_of_the_kernel_is_read_again_after_a_change(keeper: Any) -> None:
    look(keeper)
    changes = iter([False, True, False])
    keeper._changes = SimpleNamespace(take=lambda _index: next(changes))
    looks = []
    for _ in range(3):
        keeper._next_look = 0.0  # a second is over
        assert keeper.ensure(SimpleNamespace(), THERE)
        looks.append(len(keeper.seen))
    assert looks == [1, 2, 2]


def test_a_number_that_stays_away_is_asked_for_now_and_then(keeper: Any) -> None:
    requests = []
    for seconds in (0, 0.5, LONGEST_PAUSE, 1, LONGEST_PAUSE):
        CLOCK.advance(seconds)
        assert not look(keeper, NO_NUMBER)
        requests.append(len(keeper.requests))
    assert requests == [0, 0, 1, 1, 2]
    assert look(keeper)
    CLOCK.advance(60)
    look(keeper, NO_NUMBER)
    assert len(keeper.requests) == 2


def test_flows_lead_to_ipv6_only_while_the_host_and_the_listener_have_it(keeper: Any) -> None:
    sock = SimpleNamespace(getsockname=lambda: ("169.254.169.254", 18080))
    for serves, versions in ((False, (4,)), (False, (4, 6)), (True, (4,))):
        keeper.host.serves_ipv6 = serves
        keeper.listeners.sockets = dict.fromkeys(versions, sock)
        without = keeper.flow_target(THERE, sock)
        assert (without.ip6, without.guest_ip6) == ("", ())
    keeper.listeners.sockets = {4: sock, 6: sock}
    target = keeper.flow_target(THERE, sock)
    assert (target.ip6, target.guest_ip6) == (HOST_IP6, ("fe80::a9fe:a9fe", "fd00:ec2::254"))
    assert str(target.keys.network(6)) == GROUP.key_prefix6
    assert (target.ip, target.guest_ip) == (GROUP.host_ip, GROUP.ip)


class Calls:
    def __init__(self) -> None:
        self.made: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., list[str]]:
        def call(*args: object) -> list[str]:
            self.made.append((name, *args))
            return []

        return call


FORMER: tuple[tuple[HostMemory | None, list[str], list[Any], list[tuple[str, ...]]], ...] = (
    (None, ["fe80::1"], [], []),
    (HostMemory("lo", GROUP.host_ip, 2), [], [], []),
    # A daemon of a version without IPv6 had no address.
    (HostMemory("lo", GROUP.host_ip, 2), ["fe80::1"], [None], []),
    (HostMemory("lo", GROUP.host_ip, 2, "fd00::1"), ["fe80::1"], ["fd00::1"], []),
    (HostMemory("lo", GROUP.host_ip, 2, HOST_IP6), [], [HOST_IP6], []),
    (HostMemory("tap0", GROUP.host_ip, 2), [], [None], [("remove_taps", "tap0")]),
    # One with Meta IPs.
    (
        HostMemory("lo", GROUP.host_ip, 2, network="240.0.0.0/16"),
        [],
        [None],
        [("remove_keys", META_KEYS), ("remove_meta",)],
    ),
)
"""Memory of the former configuration, IPv6 now, and what is removed of the host and of OVSDB."""


def test_remains_of_the_former_configuration_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    former_devices: list[str | None] = []

    def note(_sides: Any, _wanted: WantedSide, wanted6: WantedSide | None) -> list[str]:
        former_devices.append(None if wanted6 is None else str(wanted6.address))
        return []

    monkeypatch.setattr(HostSides, "remove_former", note)
    for former, ip6, calls, of_ovsdb in FORMER:
        former_devices.clear()
        state, watcher = SavedState(host=former), Calls()
        keeper: Any = TapKeeper(SimpleNamespace(**{**vars(GROUP), "ip6": ip6}), state, Calls())
        keeper.remove_former(watcher)
        assert (former_devices, watcher.made) == (calls, of_ovsdb), former
        assert state.host == HostMemory("lo", GROUP.host_ip, 2, HOST_IP6 if ip6 else "")


def undone(keeper: Any) -> list[tuple[object, ...]]:
    calls: Any = Calls()
    keeper.host = calls
    keeper.undo(calls, calls)
    return list(calls.made)


def test_a_port_that_the_start_has_made_goes_with_its_flows(keeper: Any) -> None:
    look(keeper, Update(True, BRIDGE, None))
    look(keeper)
    assert undone(keeper) == [("withdraw",), ("undo",), ("remove_taps", "lo")]


def test_port_of_an_earlier_run_stays_with_its_flows(keeper: Any) -> None:
    look(keeper, Update(True, BRIDGE, TapPort(9, "", sound=False, marked=True)))
    look(keeper)
    assert undone(keeper) == [("undo",)]


def test_arp_ignore_of_the_start_is_put_back(keeper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    restored: list[int] = []
    monkeypatch.setattr(device, "raise_arp_ignore", lambda: 0)
    monkeypatch.setattr(device, "restore_arp_ignore", restored.append)
    look(keeper)
    undone(keeper)
    assert restored == [0]
    assert keeper._state.arp_ignore is None
    keeper._state.arp_ignore = 0
    keeper._made.clear()
    undone(keeper)
    assert restored == [0]
    assert keeper._state.arp_ignore == 0


WANTED = WantedSide("lo", IPv4Address("169.254.169.254"), 2)
WANTED6 = WantedSide("lo", IPv6Address("fd00::1"), 2, IPV6, "fe80::7")
OFF = Lack("it is off", "`turn it on`")


class Kernel:
    """The sides of both families as a kernel that may refuse, and the order of its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.refused: dict[str, str] = {}
        self.lack: Lack | None = None

    def call(self, name: str, side: HostSide) -> list[str]:
        name = f"{name} {side.wanted.family.version}"
        self.calls.append(name)
        if name in self.refused:
            raise HostError(what=name, device="lo", cause=self.refused[name])
        return [name]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    for name in ("ensure", "settle", "undo"):
        monkeypatch.setattr(HostSide, name, lambda side, name=name: made.call(name, side))
    monkeypatch.setattr(
        HostSide,
        "remove",
        lambda side, *, device_stays, keep: made.call(f"remove {device_stays} {bool(keep)}", side),
    )
    monkeypatch.setattr(ipv6, "lack_of", lambda _device: made.lack)
    return made


@pytest.fixture
def sides(kernel: Kernel) -> HostSides:
    del kernel
    return HostSides(WANTED, WANTED6)


def test_ipv6s_settings_come_before_the_device_is_up(kernel: Kernel, sides: HostSides) -> None:
    assert sides.ensure() == ["settle 6", "ensure 4", "ensure 6"]
    assert (sides.serves_ipv6, sides.ipv6_fault) == (True, "")
    kernel.calls.clear()
    assert sides.undo() == ["undo 6", "undo 4"], "the device, which IPv4 has brought up, is last"


def test_lack_of_ipv6_and_its_end_are_a_line_each(
    kernel: Kernel, sides: HostSides, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kernel.lack = OFF
    for _ in range(3):
        assert sides.ensure() == ["settle 6", "ensure 4"]
        assert sides.look() == (["settle 6"], False)
    assert (sides.serves_ipv6, sides.ipv6_fault) == (False, OFF.cause)
    kernel.lack = None
    assert sides.look() == (["settle 6"], True), "it is to be put in place"
    sides.ensure()
    assert (sides.serves_ipv6, sides.ipv6_fault) == (True, "")
    assert sides.look() == (["settle 6"], False)
    assert [record.getMessage() for record in caplog.records] == [
        "Guests are not served over IPv6: it is off",
        "Guests are served over IPv6 as well",
    ]


@pytest.mark.parametrize("refused", ["ensure 6", "settle 6"])
def test_refusal_for_ipv6_leaves_ipv4_alone(
    kernel: Kernel, sides: HostSides, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    kernel.refused[refused] = "no"
    for _ in range(2):
        assert "ensure 4" in sides.ensure()
    if refused == "ensure 6":
        assert not sides.serves_ipv6
        assert refused in sides.ipv6_fault
        (record,) = caplog.records
        assert record.levelno == logging.WARNING


def test_flows_stay_while_a_device_is_made_anew(kernel: Kernel, sides: HostSides) -> None:
    sides.ensure()
    kernel.refused["ensure 6"] = "there is no such device"
    sides.ensure()
    assert sides.serves_ipv6
    assert "no such device" in sides.ipv6_fault
    kernel.refused.clear()
    sides.ensure()
    assert (sides.serves_ipv6, sides.ipv6_fault) == (True, "")


def test_a_former_ipv6_goes_where_there_is_none_now(kernel: Kernel, sides: HostSides) -> None:
    assert sides.remove_former(WANTED, None) == ["remove True True 4"]
    assert sides.remove_former(WANTED, WANTED6) == ["remove True True 4", "remove True True 6"]
    removed = HostSides(WANTED).remove_former(WANTED, WANTED6)
    assert removed == ["remove True True 4", "remove True False 6"]


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the settings of ``lo``, as the kernel has them by default."""
    folder = tmp_path / "conf/lo"
    folder.mkdir(parents=True)
    for name, value in {"accept_ra": 1, "addr_gen_mode": 0, "disable_ipv6": 0}.items():
        (folder / name).write_text(f"{value}\n")
    monkeypatch.setattr(ipv6, "SYSCTL", tmp_path)
    return folder


def test_settings_that_differ_are_put_in_force_once(conf: Path) -> None:
    assert settle("lo") == ["accept_ra 0", "addr_gen_mode 1"]
    assert settle("lo") == []
    assert {name: int((conf / name).read_text()) for name in SETTINGS} == dict(SETTINGS)
    assert settle("nowhere") == []


def test_lack_names_setting(conf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert lack_of("lo") is None
    assert lack_of("nowhere") is None
    (conf / "disable_ipv6").write_text("1\n")
    off: Any = lack_of("lo")
    assert "`sysctl -w net.ipv6.conf.lo.disable_ipv6=0`" in off.remedy
    monkeypatch.setattr(ipv6, "_mtu", lambda _device: 1279)
    small: Any = lack_of("lo")
    assert small.cause == "the MTU of lo is 1279, and IPv6 needs 1280"
    monkeypatch.setattr(ipv6, "SYSCTL", tmp_path / "none")
    monkeypatch.setattr(ipv6, "_DISABLED", tmp_path / "disable")
    missing: Any = lack_of("lo")
    assert missing.remedy.startswith("`modprobe ipv6`")
    (tmp_path / "disable").write_text("1\n")
    booted: Any = lack_of("lo")
    assert "modprobe" not in booted.remedy, "it would succeed and change nothing"
