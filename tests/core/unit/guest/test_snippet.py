"""The vendor data should be a script that leaves the program in a guest, whole."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from dfmeta.guest import snippet, tag_devices


def test_the_script_leaves_the_program_and_runs_it_at_each_boot(tmp_path: Path) -> None:
    program, per_boot = tmp_path / "lib" / "tag_devices.py", tmp_path / "boot" / "50-x"
    text = snippet.vendor_data()
    for name, place in ((snippet.PROGRAM, program), (snippet.PER_BOOT, per_boot)):
        text = text.replace(name, str(place))
    for _again in range(2):
        subprocess.run(["sh"], input=text.encode(), check=True)
        assert program.read_bytes() == Path(tag_devices.__file__).read_bytes()
        assert os.access(per_boot, os.X_OK)
        assert [one.name for one in (*program.parent.iterdir(), *per_boot.parent.iterdir())] == [
            "tag_devices.py",
            "50-x",
        ]


def test_a_guest_boots_whatever_becomes_of_the_program(tmp_path: Path) -> None:
    text = snippet.vendor_data()
    _, _, per_boot = text.partition(".new <<'END'\n")[2].rpartition("<<'END'\n")
    script = per_boot.partition("END\n")[0].replace(snippet.PROGRAM, str(tmp_path / "away.py"))
    done = subprocess.run(["sh"], input=script.encode(), capture_output=True, check=False)
    assert done.returncode == 0
    assert b"away.py" in done.stderr
    empty = subprocess.run(
        ["/bin/sh"], input=script.encode(), capture_output=True, check=False, env={"PATH": ""}
    )
    assert (empty.returncode, empty.stdout) == (0, b"")


def test_the_script_is_a_script_to_cloud_init_and_small_enough_for_any_store() -> None:
    text = snippet.vendor_data()
    assert text == snippet.vendor_data()
    assert text.startswith("#!/bin/sh\n")
    assert text.isascii()
    assert len(text) < 1 << 16
