"""Neutron's own Open vSwitch agent on a compute node of the tests, without a neutron-server.

tools/setup.sh installs it in an environment of its own; ``neutron_launcher.py`` runs it there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness import netns
from tests.harness.agent import Options
from tests.harness.guest import Guest
from tests.harness.netns import ROOT
from tests.harness.ovs import UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for

PYTHON = ROOT / ".cache" / "neutron" / "bin" / "python"
OUTSIDE = "br-ex"
"""The bridge of the physical network; a host for this agent needs it."""
CLOSED = "closed"
"""A security group that allows nothing."""
OPEN = "open"
"""One that allows ICMP and UDP, in and out."""
DEAD_VLAN = 4095
_CLEANED = "cleanup stale flows"
_IDLE = re.compile(
    r"iteration:(\d+) started(?:(?!starting polling).)*iteration:\1 completed", re.DOTALL
)
"""A round of its loop in which it has found nothing to do."""


@dataclass(frozen=True, kw_only=True)
class Port:
    """What neutron-server knows of a port.

    :ivar vlan: the network's, outside.
    :ivar up: admin_state_up.
    :ivar packet_rate: thousands of packets a second that the guest may send; 0: no limit.
    :ivar name: of no meaning; a change of it is news of the port for the agent.
    """

    id: str
    instance: str
    mac: str
    ip: str
    network: str
    vlan: int
    up: bool = True
    groups: tuple[str, ...] = (CLOSED,)
    packet_rate: int = 0
    name: str = ""


class NeutronAgent:
    """The agent, native driver on 127.0.0.1:6633; a context manager that ends it.

    DNS queries to 169.254.169.254 are forwarded to :attr:`upstream`, and DHCP requests answered.
    """

    upstream = ("127.0.0.1", 5353)

    def __init__(self, host: OpenvSwitch, options: Options | None = None) -> None:
        """Write the configuration; :meth:`start` starts.

        :param options: on top of, or instead of, those that fit this host.
        """
        if not PYTHON.exists():
            raise FileNotFoundError(f"no {PYTHON}: run tools/setup.sh --neutron")
        self.host = host
        self.folder = netns.temporary_folder("neutron")
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, Port] = {}
        self._skip = 0
        self._news = 0
        programs = self.folder / "bin"
        programs.mkdir()
        # The userspace datapath has no connections in the kernel that could be deleted.
        (programs / "conntrack").symlink_to("/bin/true")
        path = f"{programs}:{UNPACKED / 'usr/bin'}:{os.environ['PATH']}"
        # os-ken's own default, which dfmeta and tests of it in this process change.
        hub = {"OSKEN_HUB_TYPE": "native"}
        self._environment = {**host.environment(), **hub, "PATH": path}
        self._options: dict[str, dict[str, object]] = {
            "DEFAULT": {
                "host": "compute-1",
                "transport_url": "fake:/",
                "state_path": self.folder,
            },
            "OVS": {
                "ovsdb_connection": host.ovsdb_connection,
                "bridge_mappings": f"physnet:{OUTSIDE}",
                "datapath_type": "netdev",
            },
            "AGENT": {
                "extensions": "dhcp,dns_forwarder,qos",
                "polling_interval": 1,
                "root_helper": "",
            },
            "DNS_FORWARDER": {"upstream_dns_server_ports": "{}:{}".format(*self.upstream)},
            "SECURITYGROUP": {"firewall_driver": "openvswitch"},
            "oslo_concurrency": {"lock_path": self.folder},
        }
        self.configure(options or {})
        self._write()
        host.on_close(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill it if it runs and remove its folder. Idempotent."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def configure(self, options: Options) -> None:
        """Change options; the next start reads them."""
        for group, values in options.items():
            self._options.setdefault(group, {}).update(values)
        lines = []
        for group, known in self._options.items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in known.items()), ""]
        (self.folder / "neutron.conf").write_text("\n".join(lines))

    # neutron-server

    def put(
        self,
        guest: Guest,
        *,
        network: str,
        vlan: int,
        groups: tuple[str, ...] = (CLOSED,),
        up: bool = True,
    ) -> None:
        """Tell of a guest's port."""
        self._ports[guest.name] = Port(
            id=guest.ids.iface_id,
            instance=guest.instance_id,
            mac=guest.mac,
            ip=guest.ip,
            network=network,
            vlan=vlan,
            groups=groups,
            up=up,
        )
        self._write()

    def change(
        self, guest: Guest, *, up: bool | None = None, packet_rate: int | None = None
    ) -> None:
        """Another state, or another limit, of a port."""
        port = self._ports[guest.name]
        self._ports[guest.name] = replace(
            port,
            up=port.up if up is None else up,
            packet_rate=port.packet_rate if packet_rate is None else packet_rate,
        )
        self._write()

    def _write(self) -> None:
        document = {
            "ports": [asdict(port) for port in self._ports.values()],
            "groups": {CLOSED: [], OPEN: ["icmp", "udp"]},
        }
        new = self.folder / "server.new"
        new.write_text(json.dumps(document))
        new.replace(self.folder / "server.json")

    # Life

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> Self:
        """Start it, and wait until it has dealt with all ports that it has been told of."""
        if self.running:
            raise RuntimeError("Neutron's agent is running already")
        self._skip = len(self.log())
        self._report.write_text("")
        launcher = str(Path(__file__).with_name("neutron_launcher.py"))
        files = [str(self.folder / name) for name in ("server.json", "report")]
        # Isolated: this folder has a module named as the package is.
        command = [str(PYTHON), "-I", launcher, *files]
        with (self.folder / "log").open("ab") as log:
            self._process = self.host.namespace.spawn(
                [*command, "--config-file", str(self.folder / "neutron.conf")],
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        if wait:
            self.wait_wired()
        return self

    def wait_wired(self, *, timeout: float = 120) -> None:
        """Wait until it has reported all ports, up or down, since its start."""

        def reported() -> bool:
            if not self.running:
                raise RuntimeError(f"Neutron's agent has ended:\n{self.tail()}")
            lines = self._report.read_text().split("\n")
            return all(
                f"{'up' if port.up else 'down'} {port.id}" in lines for port in self._ports.values()
            )

        try:
            wait_for(reported, timeout, "Neutron's agent to wire the ports", interval=0.1)
        except TimeoutError as error:
            raise RuntimeError(f"{error}\n{self.tail()}") from None

    @contextlib.contextmanager
    def rewiring(self) -> Iterator[None]:
        """What is done within makes it wire all ports anew; wait until it has."""
        self._report.write_text("")
        yield
        self.wait_wired()

    def clean_up(self) -> None:
        """Give it the work that it needs to delete, once after its start, stale flows.

        Its news of the ports comes in several of its rounds, and a port that is updated has flows
        of two cookies for a moment: so wait for a round without work after that.
        """
        self._news += 1
        self._ports = {
            name: replace(port, name=str(self._news)) for name, port in self._ports.items()
        }
        self._report.write_text("")
        self._write()
        wait_for(lambda: _CLEANED in self.log()[self._skip :], 30, "the clean-up", interval=0.1)
        self.wait_wired()
        done = len(self.log())
        wait_for(lambda: _IDLE.search(self.log()[done:]), 60, "a round without work", interval=0.1)

    def kill(self) -> None:
        """SIGKILL, if it runs: after SIGTERM it would keep its OpenFlow connections until then."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    def restart(self) -> None:
        """Kill and start; it has all ports wired again and has not cleaned up yet."""
        self.kill()
        self.start()

    # What it says

    def log(self) -> str:
        """Everything it has written so far, over all its starts."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "log").read_text(errors="replace")
        return ""

    def tail(self, lines: int = 60) -> str:
        """The end of :meth:`log`, long lines cut."""
        return "\n".join(line[:300] for line in self.log().splitlines()[-lines:])

    def errors(self) -> list[str]:
        """Lines of its log that tell of one."""
        return [line for line in self.log().splitlines() if " ERROR " in line]

    @property
    def _report(self) -> Path:
        return self.folder / "report"
