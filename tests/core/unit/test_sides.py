"""IPv6 on the host may fail: IPv4 should not notice, and one line should say so for each change."""

from __future__ import annotations

import logging
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import pytest

from dfmeta.exceptions import HostError
from dfmeta.flows.family import IPV6
from dfmeta.host import ipv6
from dfmeta.host.ipv6 import SETTINGS, Lack, lack_of, settle
from dfmeta.host.netlink import HostSide, Wanted
from dfmeta.host.sides import HostSides

WANTED = Wanted("lo", IPv4Address("169.254.169.254"), 2)
WANTED6 = Wanted("lo", IPv6Address("fd00::1"), 2, IPV6, "fe80::7")
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
        HostSide, "remove_former", lambda side, _former: made.call("remove_former", side)
    )
    monkeypatch.setattr(
        HostSide, "remove", lambda side, *, device_stays: made.call(f"remove {device_stays}", side)
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
    assert sides.remove_former(WANTED, None) == ["remove_former 4"]
    assert sides.remove_former(WANTED, WANTED6) == ["remove_former 4", "remove_former 6"]
    found = HostSides(WANTED).remove_former(WANTED, WANTED6)
    assert found == ["remove_former 4", "remove True 6"]


# Settings


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


def test_the_setting_that_prevents_ipv6_is_named(
    conf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert lack_of("lo") is None
    assert lack_of("nowhere") is None
    (conf / "disable_ipv6").write_text("1\n")
    off: Any = lack_of("lo")
    assert off.cause == "net.ipv6.conf.lo.disable_ipv6 is 1"
    assert "`sysctl -w net.ipv6.conf.lo.disable_ipv6=0`" in off.remedy
    monkeypatch.setattr(ipv6, "_mtu", lambda _device: 1279)
    small: Any = lack_of("lo")
    assert small.cause == "the MTU of lo is 1279, and IPv6 needs 1280"
    monkeypatch.setattr(ipv6, "SYSCTL", tmp_path / "none")
    monkeypatch.setattr(ipv6, "_DISABLED", tmp_path / "disable")
    missing: Any = lack_of("lo")
    assert missing.cause == "the kernel has no IPv6: its module ipv6 is not loaded"
    assert missing.remedy.startswith("`modprobe ipv6`, then `systemctl restart dfmeta-agent`")
    (tmp_path / "disable").write_text("1\n")
    booted: Any = lack_of("lo")
    assert booted.cause == "the kernel has no IPv6: it was booted with ipv6.disable=1"
    assert "boot again" in booted.remedy
    assert "modprobe" not in booted.remedy, "it would succeed and change nothing"
