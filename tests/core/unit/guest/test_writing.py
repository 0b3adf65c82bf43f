"""The document should be found within bounds, and the rules be put in their place whole."""

import json
import os
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dfmeta.guest import snippet, tag_devices
from tests.harness.sysfs import MAC, PCI, Machine

DOCUMENT = {"devices": [{"type": "nic", "bus": "none", "devname": "eth0", "tags": ["lan"]}]}
RAW = json.dumps(DOCUMENT).encode()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


def asked(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[Any]]
) -> tuple[list[str], Callable[[], bytes]]:
    """Addresses that are asked, and how to ask; what each answers is given."""
    hosts: list[str] = []

    def request(host: str, _port: int, *, timeout: float) -> tuple[int, bytes]:
        assert timeout == 3
        hosts.append(host)
        answer = answers[host].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, RAW

    monkeypatch.setattr(tag_devices, "request", request)

    def ask() -> bytes:
        bounds: dict[str, Any] = {"timeout": 3, "deadline": 60, "clock": Clock()}
        return tag_devices.from_service(str(machine.root), attempts=3, **bounds)

    return hosts, ask


IPV4 = "169.254.169.254"
IPV6 = "fe80::a9fe:a9fe%eth0"


@pytest.fixture
def one_nic(machine: Machine) -> Machine:
    machine.nic("virtual/net/eth0")
    machine.nic("virtual/net/lo")
    return machine


def test_the_service_is_asked_over_ipv4_first_and_over_ipv6_on_each_interface(
    one_nic: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = OSError(101, "Network is unreachable")
    for given, expected in (
        ({IPV4: [away], IPV6: [200]}, [IPV4, IPV6]),
        # It is away for a moment.
        ({IPV4: [503, TimeoutError(), 200], IPV6: [away, away]}, [IPV4, IPV6] * 2 + [IPV4]),
    ):
        hosts, ask = asked(one_nic, monkeypatch, given)
        assert ask() == RAW
        assert hosts == expected


def test_service_without_document_ends(one_nic: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, cause, tries in ((404, "404", 1), (OSError(), "OSError", 3)):
        answers: dict[str, list[Any]] = {IPV4: [answer] * 3, IPV6: [answer] * 3}
        hosts, ask = asked(one_nic, monkeypatch, answers)
        with pytest.raises(tag_devices.TagError, match=rf"no document \({cause}\)"):
            ask()
        assert hosts == [IPV4, IPV6] * tries


def test_deadline_bounds_all_requests(one_nic: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timeouts = Clock(), []

    def request(_host: str, _port: int, *, timeout: float) -> tuple[int, bytes]:
        timeouts.append(timeout)
        clock.now += timeout
        raise TimeoutError

    monkeypatch.setattr(tag_devices, "request", request)
    bounds: dict[str, Any] = {"timeout": 10, "deadline": 25, "attempts": 9, "clock": clock}
    with pytest.raises(tag_devices.TagError, match=r"in time \(\w+\)"):
        tag_devices.from_service(str(one_nic.root), **bounds)
    assert timeouts == [10, 10, 3]
    assert clock.now == 1025


def test_exchanges_of_a_request_with_token_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, ends = [(401, b""), (200, b"token-1"), (200, RAW)], []

    def exchange(_host: str, _port: int, _order: object, end: float) -> tuple[int, bytes]:
        ends.append(end)
        return answers[len(ends) - 1]

    monkeypatch.setattr(tag_devices, "_exchange", exchange)
    assert tag_devices.request("127.0.0.1", 1, timeout=5) == (200, RAW)
    assert ends == [ends[0]] * 3


def test_a_number_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option, values in (
        ("--timeout", ("inf", "nan", "-1", "0", "1e9", "x")),
        ("--deadline", ("inf", "-1")),
        ("--attempts", ("0", "-1", "21", "1.5")),
    ):
        for value in values:
            with pytest.raises(SystemExit) as ended:
                options(f"{option}={value}")
            assert ended.value.code == 2
            assert f"argument {option}:" in capsys.readouterr().err, value


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    folder = tmp_path / "drive"
    (folder / "openstack" / "latest").mkdir(parents=True)
    (folder / "openstack" / "latest" / "meta_data.json").write_bytes(RAW)
    return folder


def options(*words: str) -> Any:
    return tag_devices.parser().parse_args(words)


def test_a_mounted_config_drive_is_read_and_no_link_leads_out_of_it(
    drive: Path, tmp_path: Path, messages: list[str]
) -> None:
    chosen = options("--source", "config-drive", "--config-drive", str(drive))
    assert tag_devices.fetch(chosen, messages.append) == DOCUMENT
    file = drive / "openstack" / "latest" / "meta_data.json"
    file.rename(tmp_path / "secret")
    with pytest.raises(tag_devices.TagError, match="No such file"):
        tag_devices.from_folder(str(drive))
    file.symlink_to(tmp_path / "secret")
    with pytest.raises(tag_devices.TagError, match="a link out of the drive"):
        tag_devices.from_folder(str(drive))


def test_a_config_drive_is_found_by_its_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: list[str]
) -> None:
    monkeypatch.setattr(tag_devices, "BY_LABEL", str(tmp_path))
    assert tag_devices.find_drive() == ""
    with pytest.raises(tag_devices.TagError, match="there is no config drive"):
        tag_devices.fetch(options("--source", "config-drive"), messages.append)
    (tmp_path / "sr0").touch()
    (tmp_path / "config-2").symlink_to("sr0")
    assert tag_devices.find_drive() == str(tmp_path / "sr0")


def test_a_drive_is_found_where_it_is_mounted_whatever_else_is(
    tmp_path: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that is wanted comes after 4096 bytes of others; some are cut, some odd."""
    device = tmp_path / "sr0"
    device.touch()
    folder = tmp_path / "my drive\\\u2026"
    drive.rename(folder)
    mounts = tmp_path / "mounts"
    place = str(folder).replace("\\", "\\134").replace(" ", "\\040")
    lines = ["tmpfs /run tmpfs rw 0 0"] * 300 + ["", "cut", f"{device}"]
    mounts.write_text("\n".join([*lines, f"{device} {place} iso9660 ro 0 0", "/dev/la"]))
    monkeypatch.setattr(tag_devices, "MOUNTS", str(mounts))
    assert tag_devices.from_drive(str(device)) == RAW


def test_the_config_drive_takes_over_where_the_service_is_away(
    drive: Path, one_nic: Machine, monkeypatch: pytest.MonkeyPatch, messages: list[str]
) -> None:
    away: dict[str, list[Any]] = {IPV4: [OSError()] * 2, IPV6: [OSError()] * 2}
    hosts, _ask = asked(one_nic, monkeypatch, away)
    words = ("--config-drive", str(drive), "--sysfs", str(one_nic.root), "--timeout", "3")
    assert tag_devices.fetch(options(*words), messages.append) == DOCUMENT
    assert hosts == [IPV4, IPV6]
    assert "reading the config drive instead" in messages[0]
    with pytest.raises(tag_devices.TagError):
        tag_devices.fetch(
            options("--source", "service", "--attempts", "1", *words), messages.append
        )


NIC = {"type": "nic", "bus": "pci", "address": "0000:00:02.0", "tags": ["lan"]}
DISK = {"type": "disk", "bus": "pci", "address": "0000:00:07.0", "tags": ["db"]}
Run = Callable[..., int]


@pytest.fixture
def run(machine: Machine, tmp_path: Path) -> Run:
    machine.nic(f"{PCI}:02.0/virtio0/net/eth0", MAC)
    machine.disk(f"{PCI}:07.0/virtio4/block/vda")

    def call(*options: str, devices: object = (NIC, DISK)) -> int:
        file = tmp_path / "meta_data.json"
        file.write_text(json.dumps({"uuid": "x", "devices": devices}))
        return tag_devices.main(["--file", str(file), "--sysfs", str(machine.root), *options])

    return call


class Udevadm:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing = ""

    def run(self, command: Sequence[str], **_options: object) -> None:
        self.calls.append(" ".join(command[1:]))
        if command[1] == self.failing:
            raise subprocess.CalledProcessError(1, command)


@pytest.fixture
def udevadm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Udevadm:
    """Let the rules of udev be a file in the test's folder."""
    made = Udevadm()
    monkeypatch.setattr(tag_devices, "RULES", str(tmp_path / "90.rules"))
    monkeypatch.setattr(tag_devices.shutil, "which", lambda name, **_options: f"/bin/{name}")
    monkeypatch.setattr(tag_devices.subprocess, "run", made.run)
    return made


def test_dry_run_prints_rules(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.rules"
    assert run("--dry-run", "--output", str(output)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(tag_devices.MARK)
    assert printed.count("\n") == 4
    assert not output.exists()


def test_output_is_readable_and_udev_left_alone(run: Run, tmp_path: Path, udevadm: Udevadm) -> None:
    output = tmp_path / "new" / "out.rules"
    assert run("--output", str(output)) == 0
    first = output.read_bytes()
    assert stat.S_IMODE(output.stat().st_mode) == 0o644
    assert run("--output", str(output)) == 0
    assert output.read_bytes() == first
    assert [path.name for path in output.parent.iterdir()] == ["out.rules"]
    assert udevadm.calls == []


def test_rules_follow_devices(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.rules"
    assert run("--output", str(output)) == 0
    assert run("--output", str(output), devices="nonsense") == 1
    assert run("--output", str(output), "--file", str(tmp_path / "away")) == 1
    assert output.exists()
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"dfmeta-tag-devices: {tmp_path}/away: No such file or directory"
    )
    for devices in ([], None):
        assert run("--output", str(output), devices=devices) == 0
        assert not output.exists()


def state(path: Path) -> tuple[int, ...]:
    """What a change of a file changes; reading it changes its time of access alone."""
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def test_foreign_output_stays(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link, such as one to /dev/null, is how an administrator says: not these rules."""
    other, link, pipe, folder = (tmp_path / name for name in ("other", "link", "pipe", "folder"))
    other.write_text('KERNEL=="x", NAME="y"\n')
    (tmp_path / "rules").write_text(tag_devices.MARK)
    link.symlink_to("rules")
    os.mkfifo(pipe)
    folder.mkdir()
    before = {path: state(path) for path in tmp_path.iterdir()}
    for output in (other, link, pipe, folder):
        for devices in ((NIC,), ()):
            assert run("--output", str(output), devices=devices) == 1
            assert "Name another file with --output" in capsys.readouterr().err
    (tmp_path / "meta_data.json").unlink()
    assert {path: state(path) for path in tmp_path.iterdir()} == before
    assert other.read_text() == 'KERNEL=="x", NAME="y"\n'


def test_an_empty_name_of_a_file_is_not_taken_for_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tag_devices, "RULES", str(tmp_path / "90.rules"))
    monkeypatch.setattr(tag_devices, "find_drive", lambda: pytest.fail("looked elsewhere"))
    monkeypatch.setattr(tag_devices, "from_service", lambda *_: pytest.fail("looked elsewhere"))
    monkeypatch.chdir(tmp_path / "sys")
    before = {*tmp_path.iterdir(), tmp_path / "meta_data.json"}
    for option in ("--file", "--output"):
        assert run(option, "") == 1
    assert {*tmp_path.iterdir()} == before


def test_an_input_that_is_no_file_is_not_read(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for file in ("/dev/zero", "/", str(tmp_path / "fifo")):
        assert run("--dry-run", "--file", file) == 1


def test_udev_is_told_of_changed_subsystems(run: Run, tmp_path: Path, udevadm: Udevadm) -> None:
    old = 'SUBSYSTEM=="block", TAG+="x"\n' * 1000 + 'SUBSYSTEM=="net", TAG+="x"\n'
    (tmp_path / "90.rules").write_text(tag_devices.MARK + old)
    for devices in ([], [DISK], [NIC], [], []):
        assert run(devices=devices) == 0
    block, net = "--subsystem-match=block", "--subsystem-match=net"
    triggers = [f"{block} {net}", block, f"{block} {net}", net]
    assert udevadm.calls == [
        line
        for trigger in triggers
        for line in (
            "control --reload",
            f"trigger --action=change {trigger}",
            "settle --timeout=30",
        )
    ]


def test_an_udev_that_does_not_answer_is_told(
    run: Run, udevadm: Udevadm, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in ("control", "trigger", "settle"):
        udevadm.failing = step
        assert run() == 1
        error = f"dfmeta-tag-devices: udevadm {step} failed: the rules apply from"
        assert capsys.readouterr().err.startswith(error)
        assert udevadm.calls[-1].startswith(step)


def test_the_script_is_a_script_to_cloud_init_and_small_enough_for_any_store() -> None:
    text = snippet.vendor_data()
    assert text == snippet.vendor_data()
    assert text.startswith("#!/bin/sh\n")
    assert text.isascii()
    assert len(text) < 1 << 16
