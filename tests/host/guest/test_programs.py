"""The programs in guests should start as they are installed there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from dfmeta.guest import cni, snippet, tag_devices


def test_the_file_of_the_cni_plugin_alone_is_a_program(tmp_path: Path) -> None:
    program = tmp_path / "dfmeta-cni"
    shutil.copy(cni.__file__, program)
    program.chmod(0o755)
    environ = {"CNI_COMMAND": "VERSION"}
    done = subprocess.run([program], input=b"", env=environ, capture_output=True, check=True)
    assert json.loads(done.stdout)["supportedVersions"] == [*cni.VERSIONS]
    assert done.stderr == b""


def test_version_and_status_of_the_cni_plugin_import_little() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import cni; "
        "print(sorted({'socket', 'ctypes', 'hashlib', 'typing', 'http'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-I", "-S", "-c", program, os.path.dirname(cni.__file__)]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"[]\n"


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
