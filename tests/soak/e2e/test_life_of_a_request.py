"""What doc/source/life-of-a-request.rst shows should be what happens today."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "doc/source/life-of-a-request"
VERSIONS = "versions.txt"
# A flow of ours by its cookie, or a kind of OpenFlow message, or a TCP segment's flags.
BONES = re.compile(r"0x64666d65\w+|\bO(?:FP|NF)T_\w+|Flags \[\S+\]|Datapath actions: drop")


def record(folder: Path) -> None:
    """Run the recorder as tools/life-of-a-request does, without setting up again."""
    program = [sys.executable, str(ROOT / "tools/life_of_a_request.py"), "--output", str(folder)]
    subprocess.run(program, check=True)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of today."""
    folder = tmp_path_factory.mktemp("life-of-a-request")
    record(folder)
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Every file of a recording."""
    return {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.txt")}


def test_the_recording_is_as_in_the_page(fresh: Path) -> None:
    now, then = contents(fresh), contents(RECORDED)
    assert now.keys() == then.keys()
    if now[VERSIONS] != then[VERSIONS]:
        # Another Open vSwitch or tcpdump has other words for the same.
        now = {name: "\n".join(BONES.findall(text)) for name, text in now.items()}
        then = {name: "\n".join(BONES.findall(text)) for name, text in then.items()}
    changed = [name for name in sorted(now) if now[name] != then[name]]
    assert not changed, "run tools/life-of-a-request, and see whether the page is still true"
