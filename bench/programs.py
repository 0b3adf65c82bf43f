"""The other people's programs: where tools/setup.sh unpacks them, and how they are started."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Self

from tests.harness import netns
from tests.harness.netns import ROOT, Namespace
from tests.harness.poll import wait_for

UNPACKED = ROOT / ".cache" / "bench"
WRK = UNPACKED / "usr/bin/wrk"
NGINX = UNPACKED / "usr/sbin/nginx"
HAPROXY = UNPACKED / "usr/sbin/haproxy"
NEUTRON = ROOT / ".cache" / "neutron" / "bin" / "python"
METADATA_IP = "169.254.169.254"


def require() -> None:
    """Look whether all of them are there.

    :raises SystemExit: one is missing, or this is not root.
    """
    if os.geteuid():
        raise SystemExit("must be run as root: it makes network namespaces")
    for program in (WRK, NGINX, HAPROXY, NEUTRON):
        if not program.exists():
            raise SystemExit(f"no {program}: run tools/setup.sh --bench")


def environment() -> dict[str, str]:
    """The host's, without what a caller's virtual environment has put there."""
    return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}


def versions() -> dict[str, str]:
    """What each of them says of itself."""

    def said(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).split("\n", 1)[0]

    script = "from importlib.metadata import version; print(version('neutron'))"
    return {
        "haproxy": said(str(HAPROXY), "-v").split()[2],
        "nginx": said(str(NGINX), "-v").rpartition("/")[2],
        "wrk": said(str(WRK), "-v").split()[1],
        "neutron": said(str(NEUTRON), "-I", "-c", script),
    }


class Program:
    """A process in a namespace with a folder of its own; a context manager that ends both."""

    def __init__(self, namespace: Namespace, name: str) -> None:
        self.namespace = namespace
        self.folder = netns.temporary_folder(name)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Of what was started; their children are not among them."""
        return [process.pid for process in self._processes]

    def run(self, *command: str) -> None:
        """Start one more process; what it says is in the file ``log`` of the folder."""
        with (self.folder / "log").open("ab") as log:
            self._processes.append(
                self.namespace.spawn(command, env=environment(), stdout=log, stderr=log)
            )

    def wait_listening(self, port: int, address: str = METADATA_IP) -> None:
        """Wait until somebody accepts connections there.

        :raises RuntimeError: a process has ended instead; with its log.
        """

        def accepts() -> bool:
            for process in self._processes:
                if process.poll() is not None:
                    raise RuntimeError(f"{process.args!r} has ended:\n{self.log()}")
            with contextlib.suppress(OSError):
                self.namespace.connect(address, port).close()
                return True
            return False

        wait_for(accepts, 60, f"port {port} to be listened on", interval=0.05)

    def log(self) -> str:
        """What they have said."""
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End all of them and remove the folder. Idempotent."""
        for process in self._processes:
            netns.end(process)
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def configured(program: Program, name: str, lines: Sequence[str]) -> str:
    """Write a file into the program's folder; its path."""
    path = program.folder / name
    path.write_text("\n".join([*lines, ""]))
    return str(path)
