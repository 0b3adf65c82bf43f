"""A compute node's Open vSwitch, in a namespace and a directory of its own."""

import contextlib
import functools
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness import netns
from tests.harness.closing import Closing
from tests.harness.netns import KERNEL_DATAPATH, ROOT, CommandError
from tests.harness.ovsdb import Ovsdb, ask
from tests.harness.poll import DEADLINE, wait_for

UNPACKED = ROOT / ".cache" / "root"
"""Directory into which tools/setup.sh unpacks Open vSwitch and cloud-init."""

BRIDGE = "br-int"
_DAEMONS = {
    "ovsdb-server": "usr/sbin/ovsdb-server",
    "ovs-vswitchd": "usr/lib/openvswitch-switch/ovs-vswitchd",
}
_LIMIT = f"--timeout={DEADLINE:g}"
# If many connections to a management socket are made at once, some fail with the first of these.
_TRANSIENT = (
    "Protocol error",
    "Connection refused",
    "connection refused",
    "Connection reset",
    "Resource temporarily unavailable",
    "connection dropped",
)
_AGAIN = 0.05
"""Seconds before another try."""


class OpenvSwitch(Closing):
    """ovsdb-server, ovs-vswitchd and their bridges; a context manager that leaves nothing behind.

    ``namespace`` is the compute node's own: programs of the host (the daemon, Nova) run there.
    """

    def __init__(
        self,
        *,
        bridges: tuple[str, ...] = (BRIDGE,),
        dummies: bool = False,
        namespace: netns.Namespace | None = None,
    ) -> None:
        """Start both daemons and add the bridges: userspace datapath, except in ``tools/real``.

        :param dummies: ports of type system need no device: thousands of them are up in seconds,
            but they cannot have a guest. Internal ports do not change.
        :param namespace: one that exists, and stays; None: a new one.
        """
        self._dummies = dummies
        if not (UNPACKED / _DAEMONS["ovs-vswitchd"]).exists():
            raise FileNotFoundError(f"no Open vSwitch under {UNPACKED}: run tools/setup.sh")
        self._stack = contextlib.ExitStack()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers = itertools.count(1)
        try:
            self.namespace = namespace or self._stack.enter_context(netns.Namespace("host"))
            self.rundir = netns.temporary_folder("ovs")
            self.ovsdb = Ovsdb(self.db_socket)
            self._stack.callback(shutil.rmtree, self.rundir, ignore_errors=True)
            self._stack.callback(self._kill_all)
            self._create_database()
            self.start("ovsdb-server")
            self.ovsdb.init()
            self.start("ovs-vswitchd")
            for bridge in bridges:
                self.add_bridge(bridge)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill both daemons; remove the namespace and the directory. Idempotent."""
        self._stack.close()

    # Paths

    @property
    def db_socket(self) -> Path:
        """Return the path of OVSDB's unix socket."""
        return self.rundir / "db.sock"

    @property
    def ovsdb_connection(self) -> str:
        """Return OVSDB's socket as a connection method: ``unix:PATH``."""
        return f"unix:{self.db_socket}"

    def mgmt_socket(self, bridge: str = BRIDGE) -> Path:
        """Return the path of a bridge's OpenFlow management socket."""
        return self.rundir / f"{bridge}.mgmt"

    def environment(self) -> dict[str, str]:
        """Return the variables with which Open vSwitch's programs find this host's daemons."""
        return {
            "OVS_RUNDIR": str(self.rundir),
            "OVS_LOGDIR": str(self.rundir),
            "OVS_DBDIR": str(self.rundir),
            "OVS_SYSCONFDIR": str(self.rundir),
            "OVS_PKGDATADIR": str(UNPACKED / "usr/share/openvswitch"),
        }

    # Daemons

    def start(self, daemon: str) -> None:
        """Start ``ovsdb-server`` or ``ovs-vswitchd`` and wait until it answers."""
        if self.running(daemon):
            raise RuntimeError(f"{daemon} is running already")
        arguments = [
            str(UNPACKED / _DAEMONS[daemon]),
            f"--unixctl={self.rundir}/{daemon}.ctl",
            f"--pidfile={self.rundir}/{daemon}.pid",
            f"--log-file={self.rundir}/{daemon}.log",
            "-vconsole:off",
        ]
        if daemon == "ovsdb-server":
            arguments += [f"--remote=punix:{self.db_socket}", str(self.rundir / "conf.db")]
        else:
            arguments += ["--enable-dummy=system"] if self._dummies else []
            arguments += [self.ovsdb_connection]
            # Sockets remain after a SIGKILL; a new one shows that its bridge is configured.
            for stale in self.rundir.glob("*.mgmt"):
                stale.unlink()
        # ovs-vswitchd fills caches of 8 MiB at its start: huge pages for them.
        env = {**self.environment(), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        # A start by ip(8) would take longer, to show them the namespace's devices in /sys as well.
        with self.namespace.inside():
            self._running[daemon] = netns.spawn(arguments, env=env)
        wait_for(lambda: self._answers(daemon), f"{daemon} to answer", interval=0.01)

    def stop(self, daemon: str) -> None:
        """Stop a daemon (``ovs-appctl exit``); ovs-vswitchd's flows and taps are removed."""
        self.appctl("exit", daemon=daemon)
        self._running[daemon].wait(DEADLINE)

    def kill(self, daemon: str) -> None:
        """Send SIGKILL to a daemon."""
        process = self._running[daemon]
        process.kill()
        process.wait(DEADLINE)

    def restart(self, daemon: str) -> None:
        """Stop and start a daemon. Bridges and ports are restored from OVSDB; flows are not."""
        self.stop(daemon)
        self.start(daemon)

    def running(self, daemon: str) -> bool:
        """Return whether that daemon runs."""
        process = self._running.get(daemon)
        return process is not None and process.poll() is None

    def log(self, daemon: str) -> str:
        """Return the content of a daemon's log file."""
        with contextlib.suppress(FileNotFoundError):
            return (self.rundir / f"{daemon}.log").read_text(errors="replace")
        return ""

    # Tools

    def vsctl(self, *arguments: str, wait: bool = True) -> str:
        """Run ``ovs-vsctl``, and return its output.

        :param wait: false does not wait for ovs-vswitchd (``--no-wait``).
        """
        no_wait = [] if wait else ["--no-wait"]
        return self._tool(
            ["ovs-vsctl", f"--db={self.ovsdb_connection}", _LIMIT, *no_wait, *arguments]
        )

    def ofctl(self, *arguments: str, version: str = "OpenFlow13", stdin: str | None = None) -> str:
        """Run ``ovs-ofctl``, with retries while the management socket is too busy."""
        return self._tool(["ovs-ofctl", "-O", version, _LIMIT, *arguments], stdin=stdin, tries=5)

    def appctl(self, *arguments: str, daemon: str = "ovs-vswitchd") -> str:
        """Run ``ovs-appctl`` for one of the daemons."""
        return self._tool(
            ["ovs-appctl", "-t", f"{self.rundir}/{daemon}.ctl", _LIMIT, *arguments], tries=5
        )

    def records(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """Return rows of an OVSDB table as dicts; sets are lists, maps are dicts."""
        return [
            {name: _plain(value) for name, value in row.items() if name != "_version"}
            for row in self.ovsdb.select(table, *columns)
        ]

    def trace(self, flow: str, *arguments: str) -> str:
        """Run ``ofproto/trace`` on br-int, and return its output."""
        return self.appctl("ofproto/trace", BRIDGE, flow, *arguments)

    # Bridges and ports

    def add_bridge(self, bridge: str) -> None:
        """Add a bridge with the datapath of the tests."""
        if self.ovsdb.select("Bridge", "name", name=bridge):
            return
        kind = "system" if KERNEL_DATAPATH else "netdev"
        self.ovsdb.add_bridge(bridge, kind)

    def ports(self, bridge: str = BRIDGE) -> list[str]:
        """Return the names of a bridge's ports, without the local port."""
        return self.ovsdb.ports(bridge)

    def ofport(self, interface: str) -> int:
        """Wait for the OpenFlow port of an interface; -1: the switch has refused the port."""

        def assigned() -> list[int]:
            rows = self.ovsdb.select("Interface", "ofport", name=interface)
            return [row["ofport"] for row in rows if isinstance(row["ofport"], int)]

        return wait_for(assigned, f"the ofport of {interface}")[0]

    def flows(self, bridge: str = BRIDGE, match: str = "") -> list[str]:
        """Return the lines of ``dump-flows``, one for each flow, without the header."""
        text = self.ofctl("dump-flows", bridge, *([match] if match else []))
        return [line.strip() for line in text.splitlines() if "actions=" in line]

    def reset(self) -> None:
        """Restore the state after the start: both daemons run, br-int has only the flow NORMAL.

        Rules and routes that a daemon has added to the host are removed as well.
        """
        for daemon in _DAEMONS:
            if not self.running(daemon):
                self.start(daemon)
        for bridge in [row["name"] for row in self.ovsdb.select("Bridge", "name")]:
            deletions = [("--", "--if-exists", "del-port", port) for port in self.ports(bridge)]
            self.vsctl(
                *("del-controller", bridge, "--", "clear", "Bridge", bridge, "other_config"),
                *("external_ids", "protocols", "fail_mode"),
                *(part for deletion in deletions for part in deletion),
            )
            self.ofctl("del-flows", bridge)
            self.ofctl("del-meters", bridge)
            self.ofctl("add-flow", bridge, "priority=0,actions=NORMAL")
        self._reset_rules()

    def diagnosis(self) -> str:
        """Return the state of the switch for the report of a failure; never raises."""
        views: list[tuple[str, Callable[[], str]]] = [
            ("ovs-vsctl show", lambda: self.vsctl("show", wait=False)),
            ("interfaces", self._interfaces),
            ("ovs-ofctl dump-flows br-int", lambda: "\n".join(self.flows())),
            ("ovs-ofctl dump-ports br-int", lambda: self.ofctl("dump-ports", BRIDGE)),
            ("ip", self._addresses),
            ("ovs-vswitchd.log", lambda: _tail(self.log("ovs-vswitchd"), 30)),
        ]
        parts = []
        for title, call in views:
            try:
                parts.append(f"--- {title}\n{call()}")
            except Exception as error:
                parts.append(f"--- {title}: {error}")
        return "\n".join(parts)

    def next_number(self) -> int:
        """Return the number of the next guest of this host."""
        return next(self._numbers)

    def on_close(self, callback: Callable[[], object]) -> None:
        """Register a callback to run before the switch is closed, the last one first."""
        self._stack.callback(callback)

    # Inside

    def _create_database(self) -> None:
        (self.rundir / "conf.db").write_bytes(_empty_database())

    def _answers(self, daemon: str) -> bool:
        process = self._running[daemon]
        if process.poll() is not None:
            raise RuntimeError(f"{daemon} ended at its start: {_tail(self.log(daemon), 10)}")
        try:
            ask(self.rundir / f"{daemon}.ctl", "version")
            bridges = [row["name"] for row in self.ovsdb.select("Bridge", "name")]
        except OSError:
            return False
        return daemon == "ovsdb-server" or all(
            self.mgmt_socket(bridge).exists() for bridge in bridges
        )

    def _tool(self, command: list[str], *, stdin: str | None = None, tries: int = 1) -> str:
        program = str(UNPACKED / "usr/bin" / command[0])
        env = self.environment()
        while True:
            tries -= 1
            try:
                return netns.run([program, *command[1:]], stdin=stdin, env=env).stdout
            except CommandError as error:
                if tries <= 0 or not any(text in error.stderr for text in _TRANSIENT):
                    raise
                time.sleep(_AGAIN)

    def _interfaces(self) -> str:
        columns = ("name", "ofport", "mac_in_use", "error", "external_ids")
        return "\n".join(str(row) for row in self.records("Interface", *columns))

    def _addresses(self) -> str:
        return self.namespace.ip("addr", "rule", "route show table all", "neigh", check=False)

    def _reset_rules(self) -> None:
        for line in self.namespace.ip("rule list").splitlines():
            priority = line.partition(":")[0]
            if priority not in ("0", "32766", "32767"):
                self.namespace.ip(f"rule del priority {priority}")
        self.namespace.ip("route flush table 2", check=False)

    def _kill_all(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
            process.wait(DEADLINE)


@functools.cache
def _empty_database() -> bytes:
    """Return the file of an empty database, which ovsdb-tool makes once for the process."""
    schema = UNPACKED / "usr/share/openvswitch/vswitch.ovsschema"
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "conf.db")
        netns.run([str(UNPACKED / "usr/bin/ovsdb-tool"), "create", str(made), str(schema)])
        return made.read_bytes()


def _plain(value: Any) -> Any:
    """Convert OVSDB's JSON notation to Python values."""
    if isinstance(value, list) and len(value) == 2:
        kind, content = value
        if kind == "set":
            return [_plain(element) for element in content]
        if kind == "map":
            return {_plain(key): _plain(member) for key, member in content}
        if kind in ("uuid", "named-uuid"):
            return content
    return value


def _tail(text: str, lines: int) -> str:
    return "\n".join(text.splitlines()[-lines:])
