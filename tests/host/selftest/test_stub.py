"""A program in a shell should be the same by itself and as a nursery's fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import nursery
from tests.harness.netns import ROOT, Namespace, end, spawn
from tests.harness.poll import wait_for

SHOW = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["SHOWN"], sys.stdin.read()]))
print(os.readlink("/proc/self/ns/net"), os.readlink("/proc/self/ns/mnt"), file=sys.stderr)
print(os.path.exists("/mnt/only-here"), os.getpriority(os.PRIO_PROCESS, 0), file=sys.stderr)
sys.exit(7)
"""
WAIT = """
import signal, sys
signal.signal(signal.SIGHUP, lambda *_: sys.exit(5))
print("begun", flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A nursery for all, as ``tools/test`` starts it."""
    folder = tmp_path_factory.mktemp("ready")
    place = folder / "dfmeta"
    process = spawn([sys.executable, "-m", nursery.__name__, "dfmeta", str(place)], cwd=ROOT)
    wait_for(place.exists, "the nursery")
    yield folder
    end(process)


@pytest.fixture
def commands(ready: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing but the variables; see :func:`both`."""
    monkeypatch.setenv(nursery.SHARED, str(ready))
    monkeypatch.setenv("SHOWN", 'blanks and "quotes" and \udcff')
    return ["dfmeta", "one", "a b", "ü\udcfe", ""]


def both(command: list[str], code: str, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command as an interpreter, and as a fork."""
    found = []
    for enabled in (False, True):
        monkeypatch.setattr(nursery, "enabled", enabled)
        found.append(nursery.in_shell(command, code))
    assert ["stub.py" in " ".join(one) for one in found] == [False, True]
    return found


def test_arguments_streams_directory_namespaces_and_status_are_the_shells(
    commands: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = ["unshare", "--mount", "nice", "-n", "3"]
    mounted = 'mount -t tmpfs none /mnt; touch /mnt/only-here; cd "$0"; readlink /proc/self/ns/mnt'
    seen = []
    with Namespace("shell") as namespace:
        for command in both(commands, SHOW, monkeypatch):
            line = [*here, "sh", "-c", f'{mounted}; "$@"', str(tmp_path), *command]
            done = namespace.run(line, stdin="typed\n", check=False)
            own, said = done.stdout.splitlines()
            net, mounts, *rest = done.stderr.split()
            assert mounts == own
            seen.append((done.returncode, said, net, rest))
    assert seen[0] == seen[1]
    assert seen[0][0] == 7
    assert seen[0][3] == ["True", str(os.getpriority(os.PRIO_PROCESS, 0) + 3)]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_signals_end_it_as_they_end_an_interpreter(
    commands: list[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    ends = []
    for command in both(commands, WAIT, monkeypatch):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        ends.append(process.wait(30))
        # The fork has the other end, too.
        assert process.stdout.read() == ""
        process.stdout.close()
    assert ends == [5 if number == signal.SIGHUP else -number] * 2


def test_without_code_it_is_the_program(
    commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "enabled", True)
    command = nursery.in_shell([*commands[:1], "--no-such-option"])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr
