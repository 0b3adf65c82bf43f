"""Neutron's own Open vSwitch agent on a compute node of the tests, without a neutron-server.

tools/setup.sh installs it in an environment of its own; ``launcher.py`` runs it there.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from tests.harness.agent import Daemon, Options
from tests.harness.guest import Guest
from tests.harness.netns import ROOT
from tests.harness.ovs import UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for

PYTHON = ROOT / ".cache" / "neutron" / "bin" / "python"
OUTSIDE = "br-ex"
"""The bridge of the physical network; a host for this agent needs it."""
CLOSED = "closed"
"""Name of a security group that allows nothing."""
OPEN = "open"
"""Name of a security group that allows ICMP and UDP, in and out."""
DEAD_VLAN = 4095
_CLEANED = "cleanup stale flows"
_IDLE = re.compile(
    r"iteration:(\d+) started(?:(?!starting polling).)*iteration:\1 completed", re.DOTALL
)
"""An iteration of the agent's loop without work."""


@dataclass(frozen=True, kw_only=True)
class Port:
    """A port as neutron-server has it.

    :ivar vlan: VLAN id of the network, outside.
    :ivar up: admin_state_up.
    :ivar packet_rate: thousands of packets a second that the guest may send; 0: no limit.
    :ivar name: without meaning; a new name is a change of the port for the agent.
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


class NeutronAgent(Daemon):
    """The agent, native driver on 127.0.0.1:6633; a context manager that ends it.

    DNS queries to 169.254.169.254 are forwarded to :attr:`upstream`, and DHCP requests answered.
    """

    name = "Neutron's agent"
    upstream = ("127.0.0.1", 5353)

    def __init__(self, host: OpenvSwitch, options: Options | None = None) -> None:
        """Write the configuration; :meth:`start` starts the agent.

        :param options: added to, or replacing, the options for this host.
        """
        if not PYTHON.exists():
            raise FileNotFoundError(f"no {PYTHON}: run tools/setup.sh --neutron")
        self.host = host
        super().__init__(host.namespace, "neutron")
        self.config_file = self.folder / "neutron.conf"
        self._ports: dict[str, Port] = {}
        self._trunks: dict[str, tuple[str, dict[int, str]]] = {}
        """Trunk → the parent's port, and VLAN id → port."""
        self._version = 0
        self._skip = 0
        self._news = 0
        programs = self.folder / "bin"
        programs.mkdir()
        # With the userspace datapath there are no connections in the kernel to delete.
        (programs / "conntrack").symlink_to("/bin/true")
        # The extension metadata_path starts it by its name.
        (programs / "haproxy").symlink_to(UNPACKED / "usr/sbin/haproxy")
        path = f"{programs}:{UNPACKED / 'usr/bin'}:{os.environ['PATH']}"
        # os-ken's own default; dfmeta's code and tests change it in this process.
        hub = {"OSKEN_HUB_TYPE": "native"}
        self._environment = {**host.environment(), **hub, "PATH": path}
        self._options = {
            "DEFAULT": {"host": "compute-1", "transport_url": "fake:/", "state_path": self.folder},
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
        """Add or replace a guest's port in neutron-server."""
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

    def put_subports(self, trunk_id: str, parent: str, ports: Mapping[int, Port]) -> None:
        """Replace the subports of a trunk, and their ports.

        :param parent: the parent's port.
        :param ports: VLAN id → port.
        """
        _parent, before = self._trunks.get(trunk_id, ("", {}))
        wanted = {vid: port.id for vid, port in ports.items()}
        if trunk_id in self._trunks and before == wanted:
            return
        for gone in set(before.values()) - set(wanted.values()):
            del self._ports[gone]
        self._ports |= {port.id: port for port in ports.values()}
        self._put_trunk(trunk_id, parent, wanted)

    def change(self, guest: Guest, *, packet_rate: int) -> None:
        """Change the packet rate of a port."""
        self._ports[guest.name] = replace(self._ports[guest.name], packet_rate=packet_rate)
        self._write()

    def _put_trunk(self, trunk_id: str, parent: str, ports: dict[int, str]) -> None:
        new = trunk_id not in self._trunks
        self._trunks[trunk_id] = parent, ports
        self._write()
        # The agent asks for a trunk once: when the VM is plugged.
        if new and self.running:
            wait_for(self._is_known, "neutron-server to have the trunk")

    def _is_known(self) -> bool:
        known = self.folder / "server.known"
        return known.exists() and known.read_text() == str(self._version)

    def _write(self) -> None:
        self._version += 1
        document = {
            "version": self._version,
            "ports": [asdict(port) for port in self._ports.values()],
            "groups": {CLOSED: [], OPEN: ["icmp", "udp"]},
            "trunks": [
                {
                    "id": trunk_id,
                    "parent": parent,
                    "subports": [{"id": subport, "vid": vid} for vid, subport in subports.items()],
                }
                for trunk_id, (parent, subports) in self._trunks.items()
            ],
        }
        new = self.folder / "server.new"
        new.write_text(json.dumps(document))
        new.replace(self.folder / "server.json")

    # Life

    def start(self, *, wait: bool = True) -> Self:
        """Start the agent, and wait until it has processed all ports."""
        if self.running:
            raise RuntimeError("Neutron's agent is running already")
        self._skip = len(self.log())
        self._report.write_text("")
        launcher = str(Path(__file__).with_name("launcher.py"))
        files = [str(self.folder / name) for name in ("server.json", "report")]
        command = [str(PYTHON), "-I", launcher, *files, "--config-file", str(self.config_file)]
        self._spawn(command, env=self._environment)
        if wait:
            self.wait_wired()
        return self

    def wait_wired(self, *, timeout: float = 120) -> None:
        """Wait until the agent has reported all ports, up or down, since its start."""

        def reported() -> bool:
            if not self.running:
                raise RuntimeError(f"Neutron's agent has ended:\n{self.tail()}")
            lines = self._report.read_text().split("\n")
            return all(
                f"{'up' if port.up else 'down'} {port.id}" in lines for port in self._ports.values()
            )

        try:
            wait_for(reported, "Neutron's agent to wire the ports", deadline=timeout, interval=0.1)
        except TimeoutError as error:
            raise RuntimeError(f"{error}\n{self.tail()}") from None

    @contextlib.contextmanager
    def rewiring(self) -> Iterator[None]:
        """Wait until the agent has wired all ports again, which the block must cause."""
        self._report.write_text("")
        yield
        self.wait_wired()

    def clean_up(self) -> None:
        """Cause the deletion of stale flows, which the agent does once after its start, with work.

        The agent processes the changes of the ports in several iterations, and an updated port has
        flows of two cookies for a moment. So wait for an iteration without work afterwards.
        """
        self._news += 1
        self._ports = {
            name: replace(port, name=str(self._news)) for name, port in self._ports.items()
        }
        self._report.write_text("")
        self._write()
        wait_for(lambda: _CLEANED in self.log()[self._skip :], "the clean-up", interval=0.1)
        self.wait_wired()
        done = len(self.log())
        wait_for(lambda: _IDLE.search(self.log()[done:]), "a round without work", interval=0.1)

    def restart(self) -> None:
        """Kill and start the agent; it has wired all ports again, but has not cleaned up yet.

        After SIGTERM it would first keep its connections.
        """
        self.kill()
        self.start()

    # Logs

    def tail(self, lines: int = 60) -> str:
        """Return the end of :meth:`log`, with long lines cut."""
        return "\n".join(line[:300] for line in self.log().splitlines()[-lines:])

    def errors(self) -> list[str]:
        """Return the lines of the log with errors."""
        return [line for line in self.log().splitlines() if " ERROR " in line]

    @property
    def _report(self) -> Path:
        return self.folder / "report"
