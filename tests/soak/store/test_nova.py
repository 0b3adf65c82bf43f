"""The answers with which core compares the store's should be those of a real Nova."""

import subprocess

from tests.harness.netns import ROOT

DATA = ROOT / "tests/data/nova"
PROGRAM = ROOT / "tests/soak/store/nova_program.py"


def test_recorded_answers_are_those_of_nova() -> None:
    command = [ROOT / ".cache/nova/bin/python", "-W", "ignore", PROGRAM, DATA / "facts.json"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == (DATA / "34.0.0.json").read_text()
