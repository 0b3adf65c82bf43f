"""A fork of a process that has imported everything should be as a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import forking, netns, nursery
from tests.harness.netns import ROOT
from tests.harness.nursery import Nursery
from tests.harness.poll import wait_for

FORKED = ROOT / "tests/harness/forked_python.py"
TESTS = """
import os, pathlib

def test_passes():
    assert os.environ["GIVEN"] == "value"
    pathlib.Path("ran").write_text(str(os.getpid()))

def test_fails():
    assert 1 == 2

def test_waits():
    import signal
    pathlib.Path("pid").write_text(str(os.getpid()))
    signal.pause()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


@pytest.fixture(scope="module")
def template(folder: Path) -> Iterator[Path]:
    """The socket of a template of a few tests."""
    place = folder / "socket"
    tests = str(ROOT / "tests/core/unit/test_numbers.py")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.harness.template", str(place), tests], cwd=ROOT
    )
    wait_for(place.exists, "the template")
    yield place
    process.kill()
    process.wait()


def command(template: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-S", str(FORKED), str(template), *arguments]


def run(template: Path, folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GIVEN": "value"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    return subprocess.run(
        command(template, "-m", "pytest", "-q", "-p", "no:cacheprovider", test),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_pytest_has_its_directory_environment_output_and_status(
    template: Path, folder: Path
) -> None:
    passed = run(template, folder, "test_it.py::test_passes")
    assert (passed.returncode, passed.stderr) == (0, "")
    assert "1 passed" in passed.stdout
    assert (folder / "ran").exists()
    failed = run(template, folder, "test_it.py::test_fails")
    assert failed.returncode == 1
    assert "assert 1 == 2" in failed.stdout


def test_code_reads_its_input(template: Path, folder: Path) -> None:
    code = "import sys; print(sys.stdin.readline().strip(), sys.argv)"
    done = subprocess.run(
        command(template, "-u", "-c", code),
        input="a line\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "a line ['-c']\n"


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 2), (signal.SIGKILL, -signal.SIGKILL)], ids=str
)
def test_a_signal_ends_it(template: Path, folder: Path, number: int, status: int) -> None:
    pid = folder / "pid"
    pid.unlink(missing_ok=True)
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py::test_waits")
    client = subprocess.Popen(command(template, *arguments), cwd=folder, stdout=subprocess.DEVNULL)
    wait_for(lambda: pid.exists() and pid.read_text(), "the test")
    child = Path("/proc", pid.read_text())
    assert child.exists()
    client.send_signal(number)
    assert client.wait(60) == status
    wait_for(lambda: not child.exists(), "the end of the child")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nurseries that serve several processes."""
    place = tmp_path / "dfmeta"
    process = subprocess.Popen([sys.executable, "-m", nursery.__name__, "dfmeta", str(place)])
    wait_for(place.exists, "the nursery")
    monkeypatch.setenv(nursery.SHARED, str(tmp_path))
    yield
    process.kill()
    process.wait()


@pytest.mark.usefixtures("shared")
def test_a_harness_that_leaves_a_nursery_takes_its_children_along() -> None:
    with ExitStack() as stack:
        host = stack.enter_context(netns.Namespace("shared"))
        pipes = [socket.socketpair() for _ in range(2)]
        for pair in pipes:
            for one in pair:
                stack.enter_context(one)
        nurseries = [Nursery("dfmeta") for _ in range(2)]
        # Each waits for a record on its standard input.
        program = [f"{sys.prefix}/bin/dfmeta", "store", "import", "-"]
        children = [
            one.start(program, namespace=host, streams=(pair[0].fileno(), 2, 2))
            for one, pair in zip(nurseries, pipes, strict=True)
        ]
        assert [child.poll() for child in children] == [None, None]
        nurseries[0].close()
        wait_for(lambda: children[0].poll() == -signal.SIGKILL, "the end of the first child")
        assert children[1].poll() is None
        nurseries[1].close()
        assert children[1].wait(30) == -signal.SIGKILL


def test_a_child_has_the_priority_of_its_client() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        os.set_inheritable(theirs.fileno(), True)
        code = (
            "import os, socket, sys\n"
            "from tests.harness import forking\n"
            "def become(order, descriptors):\n"
            "    os._exit(os.getpriority(os.PRIO_PROCESS, 0))\n"
            "server = forking.Server(become)\n"
            f"server.add(socket.socket(fileno={theirs.fileno()}))\n"
            "os.nice(3)\n"
            "server.serve()\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, pass_fds=(theirs.fileno(),)
        )
        _pid, ended = forking.order(ours, {}, ())
        with ended:
            assert int(ended.recv(16)) == os.getpriority(os.PRIO_PROCESS, 0)
    assert process.wait(30) == 0, "no order can come any more"
