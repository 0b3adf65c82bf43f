"""OVN: its two databases and ovn-northd, and an ovn-controller on each compute node."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.harness import netns
from tests.harness.closing import Closing
from tests.harness.netns import ROOT
from tests.harness.ovs import UNPACKED, OpenvSwitch
from tests.harness.ovsdb import ask
from tests.harness.poll import DEADLINE, wait_for

RELEASE = os.environ.get("DFMETA_TEST_OVN", "ovn")
"""Folder of .cache with the OVN of the tests: that of this release, or of another."""
OVN = ROOT / ".cache" / RELEASE
_LIMIT = f"--timeout={DEADLINE:g}"


class Central(Closing):
    """The northbound and southbound database in one ovsdb-server, and ovn-northd."""

    def __init__(self) -> None:
        """Start all; they need no network, since all connections are Unix sockets."""
        if not (OVN / "usr/bin/ovn-northd").exists():
            raise FileNotFoundError(f"no OVN under {OVN}: run tools/setup.sh")
        self.folder = netns.temporary_folder("ovn")
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name in ("nb", "sb"):
                schema = str(OVN / f"usr/share/ovn/ovn-{name}.ovsschema")
                file = str(self.folder / f"{name}.db")
                netns.run([str(UNPACKED / "usr/bin/ovsdb-tool"), "create", file, schema])
            self.start("databases")
            self.start("ovn-northd")
            self.nbctl("init")
        except BaseException:
            self.close()
            raise

    @property
    def remote(self) -> str:
        """Return the connection method of both databases."""
        return f"unix:{self.folder}/db.sock"

    def start(self, part: str) -> None:
        """Start ``databases`` or ``ovn-northd``."""
        log = [f"--log-file={self.folder}/{part}.log", "-vconsole:off"]
        if part == "databases":
            program = UNPACKED / "usr/sbin/ovsdb-server"
            files = [str(self.folder / f"{name}.db") for name in ("nb", "sb")]
            arguments = [f"--remote=p{self.remote}", f"--unixctl={self.folder}/{part}.ctl", *files]
        else:
            program = OVN / "usr/bin/ovn-northd"
            arguments = [f"--ovnnb-db={self.remote}", f"--ovnsb-db={self.remote}"]
            arguments += [f"--unixctl={self.folder}/{part}.ctl"]
        self._running[part] = netns.spawn([*command(program), *log, *arguments], env=self._env())
        control = self.folder / f"{part}.ctl"
        wait_for(lambda: _answers(control), f"{part} of OVN to answer", interval=0.01)

    def kill(self, part: str) -> None:
        """Send SIGKILL to ``databases`` or ``ovn-northd``."""
        self._running[part].kill()
        self._running[part].wait(DEADLINE)

    def close(self) -> None:
        """Kill all, and remove the folder. Idempotent."""
        for part in self._running:
            self.kill(part)
        shutil.rmtree(self.folder, ignore_errors=True)

    def nbctl(self, *arguments: str, wait: bool = False) -> str:
        """Run ``ovn-nbctl``, and return its output.

        :param wait: until all chassis have the flows of the change (``--wait=hv``).
        """
        return self._tool("ovn-nbctl", *(["--wait=hv"] if wait else []), *arguments)

    def sbctl(self, *arguments: str) -> str:
        """Run ``ovn-sbctl``, and return its output."""
        return self._tool("ovn-sbctl", *arguments)

    def wire(self, *commands: Sequence[str]) -> None:
        """Run commands of ``ovn-nbctl`` in one transaction, and wait for the chassis' flows."""
        words = [word for line in commands for word in ("--", *line)]
        self.nbctl(*words[1:], wait=True)

    def _tool(self, tool: str, *arguments: str) -> str:
        program = command(OVN / "usr/bin" / tool)
        return netns.run(
            [*program, f"--db={self.remote}", _LIMIT, *arguments], env=self._env()
        ).stdout

    def _env(self) -> dict[str, str]:
        return {name: str(self.folder) for name in ("OVN_RUNDIR", "OVN_LOGDIR", "OVN_DBDIR")}


class Chassis(Closing):
    """ovn-controller on a compute node, which wires the ports of br-int."""

    def __init__(self, host: OpenvSwitch, central: Central, *, name: str, address: str) -> None:
        """Start it, and wait for its flows.

        :param name: the chassis' ``system-id``, and Neutron's name of the host.
        :param address: of the tunnels' end on this host.
        """
        self.host, self.central, self.name = host, central, name
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            "system-id": name,
            "hostname": name,
            "ovn-remote": central.remote,
            "ovn-encap-type": "geneve",
            "ovn-encap-ip": address,
        }
        values = [f"external_ids:{key}={value}" for key, value in settings.items()]
        host.vsctl("set", "Open_vSwitch", ".", *values)
        host.on_close(self.close)
        self.start()

    def start(self, *, wait: bool = True) -> None:
        """Start it; it deletes all flows of br-int first.

        :param wait: until OVN's flows are there.
        """
        folder = self.host.rundir
        env = {**self.host.environment(), "OVN_RUNDIR": str(folder), "OVN_LOGDIR": str(folder)}
        logs = [f"--log-file={folder}/ovn-controller.log", "-vconsole:off"]
        words = [*command(OVN / "usr/bin/ovn-controller"), self.host.ovsdb_connection, *logs]
        with self.host.namespace.inside():
            self._process = netns.spawn([*words, f"--pidfile={folder}/controller.pid"], env=env)
        if wait:
            self.wait_wired()

    def wait_wired(self) -> None:
        """Wait until ovn-controller has answered, and its flows are there."""
        wait_for(lambda: _answers(self._control), "ovn-controller to answer", interval=0.01)
        wait_for(self._connected, "ovn-controller to be connected", interval=0.01)
        self.central.nbctl("sync", wait=True)

    def stop(self, *, restart: bool) -> None:
        """End it as a service manager does; the flows stay.

        :param restart: it comes back soon: its rows in the southbound database stay as well.
        """
        process = self._running()
        ask(self._control, "exit", *(["--restart"] if restart else []))
        process.wait(DEADLINE)

    def kill(self) -> None:
        """Send SIGKILL."""
        process = self._running()
        process.kill()
        process.wait(DEADLINE)

    def appctl(self, *words: str) -> str:
        """Send a command to its control socket, and return the answer."""
        return str(ask(self._control, *words))

    def close(self) -> None:
        """Kill it if it runs. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE)

    @property
    def _control(self) -> Path:
        return self.host.rundir / f"ovn-controller.{self._running().pid}.ctl"

    def _connected(self) -> bool:
        return self.appctl("connection-status").strip() == "connected"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("ovn-controller has not been started")
        return self._process


def command(program: Path) -> list[str]:
    """Return the command of a program of OVN, with the libraries of its own release."""
    loader = next(OVN.glob("usr/lib/*/ld-linux-*"), None)
    if loader is None:
        return [str(program)]
    return [str(loader), "--library-path", str(loader.parent), str(program)]


def _answers(control: Path) -> bool:
    with contextlib.suppress(OSError):
        ask(control, "version")
        return True
    return False
