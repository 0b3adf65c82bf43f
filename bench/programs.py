"""The programs that dfmeta is compared with: their paths below .cache, and how they are started."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence

from tests.harness import netns, ovs
from tests.harness.closing import Closing
from tests.harness.netns import ROOT, Namespace
from tests.harness.poll import wait_for

UNPACKED = ROOT / ".cache" / "bench"
WRK = UNPACKED / "usr/bin/wrk"
NGINX = UNPACKED / "usr/sbin/nginx"
HAPROXY = ovs.UNPACKED / "usr/sbin/haproxy"
NEUTRON = ROOT / ".cache" / "neutron" / "bin" / "python"
METADATA_IP = "169.254.169.254"


def require() -> None:
    """Check that all programs are unpacked.

    :raises SystemExit: a program is missing, or the user is not root.
    """
    if os.geteuid():
        raise SystemExit("must be run as root, because it creates network namespaces")
    for program in (WRK, NGINX, HAPROXY, NEUTRON):
        if not program.exists():
            raise SystemExit(f"{program} does not exist: run tools/setup.sh --bench")


def environment() -> dict[str, str]:
    """Return an environment without the variables of the caller's virtual environment."""
    return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}


def versions() -> dict[str, str]:
    """Return the version that each program reports."""

    def printed(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).split("\n", 1)[0]

    script = "from importlib.metadata import version; print(version('neutron'))"
    return {
        "haproxy": printed(str(HAPROXY), "-v").split()[2],
        "nginx": printed(str(NGINX), "-v").rpartition("/")[2],
        "wrk": printed(str(WRK), "-v").split()[1],
        "neutron": printed(str(NEUTRON), "-I", "-c", script),
    }


class Program(Closing):
    """Processes in a namespace, with a directory of their own; a context manager that ends both."""

    def __init__(self, namespace: Namespace, name: str) -> None:
        self.namespace = namespace
        self.folder = netns.temporary_folder(name)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the started processes, without their children."""
        return [process.pid for process in self._processes]

    def run(self, *command: str) -> None:
        """Start one more process; its output goes to the file ``log`` in the directory."""
        with (self.folder / "log").open("ab") as log:
            self._processes.append(
                self.namespace.spawn(command, env=environment(), stdout=log, stderr=log)
            )

    def wait_listening(self, port: int, address: str = METADATA_IP) -> None:
        """Wait until the address and port accept connections.

        :raises RuntimeError: a process has ended instead; the message has its log.
        """

        def accepts() -> bool:
            for process in self._processes:
                if process.poll() is not None:
                    raise RuntimeError(f"{process.args!r} has ended:\n{self.log()}")
            with contextlib.suppress(OSError):
                self.namespace.connect(address, port).close()
                return True
            return False

        wait_for(accepts, f"a listener on port {port}", interval=0.05)

    def log(self) -> str:
        """Return the end of the processes' output."""
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End all processes and remove the directory. Idempotent."""
        for process in self._processes:
            netns.end(process)
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def configured(program: Program, name: str, lines: Sequence[str]) -> str:
    """Write a file into the program's directory, and return its path."""
    path = program.folder / name
    path.write_text("\n".join([*lines, ""]))
    return str(path)
