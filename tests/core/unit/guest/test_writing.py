"""The rules should be put in their place whole, replaced, and taken away again."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dfmeta.guest import snippet, tag_devices
from tests.harness.sysfs import MAC, PCI, Machine

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


def test_a_dry_run_prints_the_rules_and_writes_nothing(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.rules"
    assert run("--dry-run", "--output", str(output)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(tag_devices.MARK)
    assert printed.count("\n") == 4
    assert not output.exists()


def test_an_output_is_readable_by_all_and_udev_is_left_alone(
    run: Run, tmp_path: Path, udevadm: Udevadm
) -> None:
    output = tmp_path / "new" / "out.rules"
    assert run("--output", str(output)) == 0
    first = output.read_bytes()
    assert stat.S_IMODE(output.stat().st_mode) == 0o644
    assert run("--output", str(output)) == 0
    assert output.read_bytes() == first
    assert [one.name for one in output.parent.iterdir()] == ["out.rules"]
    assert udevadm.calls == []


def test_rules_go_without_devices_and_stay_without_a_document(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_an_output_that_dfmeta_has_not_written_stays(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link, such as one to /dev/null, is how an administrator says: not these rules."""
    other, link, pipe, folder = (tmp_path / name for name in ("other", "link", "pipe", "folder"))
    other.write_text('KERNEL=="x", NAME="y"\n')
    (tmp_path / "rules").write_text(tag_devices.MARK)
    link.symlink_to("rules")
    os.mkfifo(pipe)
    folder.mkdir()
    before = {path: path.lstat() for path in tmp_path.iterdir()}
    for output in (other, link, pipe, folder):
        for devices in ((NIC,), ()):
            assert run("--output", str(output), devices=devices) == 1
            assert "Name another file with --output" in capsys.readouterr().err
    (tmp_path / "meta_data.json").unlink()
    assert {path: path.lstat() for path in tmp_path.iterdir()} == before
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


def test_udev_is_told_of_the_subsystems_that_have_rules_or_had_some(
    run: Run, tmp_path: Path, udevadm: Udevadm
) -> None:
    old = 'SUBSYSTEM=="block", TAG+="x"\n' * 1000 + 'SUBSYSTEM=="net", TAG+="x"\n'
    (tmp_path / "90.rules").write_text(tag_devices.MARK + old)
    for devices in ([], [DISK], [NIC], [], []):
        assert run(devices=devices) == 0
    block, net = "--subsystem-match=block", "--subsystem-match=net"
    triggers = [f"{block} {net}", block, f"{block} {net}", net]
    assert udevadm.calls == [
        line
        for one in triggers
        for line in ("control --reload", f"trigger --action=change {one}", "settle --timeout=30")
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
