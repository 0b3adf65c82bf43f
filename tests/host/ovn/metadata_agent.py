"""Neutron's own OVN metadata agent on a compute node of the tests.

It needs no neutron-server: its data are in OVN's southbound database. tools/setup.sh installs it in
an environment of its own.
"""

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Self

from tests.harness import kernel, netns
from tests.harness.agent import Daemon
from tests.harness.guest import METADATA_IP
from tests.harness.nova import SECRET
from tests.harness.ovn import Chassis
from tests.harness.ovs import UNPACKED
from tests.harness.poll import DEADLINE, wait_for
from tests.host.e2e.shell import script
from tests.host.neutron.agent import PYTHON
from tests.host.ovn.cloud import Network

_KEEPER = "mount -t tmpfs none /run/netns; touch {}; exec sleep infinity"
_CHECKSUMS = "for path in /sys/class/net/tap*; do /usr/sbin/ethtool -K ${path##*/} tx off; done"


class MetadataAgent(Daemon):
    """The agent; a context manager that ends it and its haproxies.

    It deletes each namespace ``ovnmeta-…`` that it does not know, so it has names of namespaces of
    its own, in another mount namespace. A command sees them with :attr:`prefix`.
    """

    name = "Neutron's OVN metadata agent"

    def __init__(self, chassis: Chassis, program: str) -> None:
        """Write the configuration; :meth:`start` starts the agent.

        :param program: ``neutron-ovn-metadata-agent``, or ``neutron-ovn-agent`` with its extension.
        """
        host = chassis.host
        super().__init__(host.namespace, "ovnmeta")
        self.program = program
        entered = self.folder / "entered"
        shell = ["sh", "-euc", _KEEPER.format(entered)]
        self._keeper = host.namespace.spawn(["unshare", "--mount", *shell])
        self._namespaces = Path(f"/proc/{self._keeper.pid}/root/run/netns")
        host.on_close(self.close)
        wait_for(entered.exists, "the mount namespace")
        self.prefix = ["nsenter", f"--target={self._keeper.pid}", "--mount"]
        programs = self.folder / "bin"
        programs.mkdir()
        script(programs / "haproxy", str(UNPACKED / "usr/sbin/haproxy"))
        script(programs / "sudo", "env")
        # There is no iptables: do what its rule does, which completes checksums.
        script(programs / "iptables-restore", "sh", "-c", _CHECKSUMS)
        for unused in ("iptables-save", "ip6tables-save", "ip6tables-restore"):
            script(programs / unused, "true")
        self._path = f"{programs}:{PYTHON.parent}:{os.environ['PATH']}"
        self.configure(
            {
                "DEFAULT": {
                    "transport_url": "fake:/",
                    "state_path": self.folder,
                    "metadata_proxy_shared_secret": SECRET,
                },
                "ovn": {"ovn_sb_connection": chassis.central.remote},
                "ovs": {"ovsdb_connection": host.ovsdb_connection},
                "agent": {"extensions": "metadata"},
                "oslo_concurrency": {"lock_path": self.folder},
            }
        )

    def start(self) -> Self:
        """Start the agent; see :meth:`serves`."""
        command = [str(PYTHON), "-I", str(PYTHON.with_name(self.program))]
        files = ["--config-file", str(self.config_file)]
        self._spawn([*command, *files], env={"PATH": self._path})
        return self

    def serves(self, network: Network) -> bool:
        """Return whether the haproxy of a network listens."""
        if not self.running:
            raise RuntimeError(f"{self.name} has ended:\n{self.tail()}")
        place = self._namespaces / network.namespace
        with contextlib.suppress(OSError), kernel.another_net(place):
            socket.create_connection((METADATA_IP, 80)).close()
            return True
        return False

    def stop(self, timeout: float = DEADLINE) -> None:
        """Send SIGTERM; its haproxies stay."""
        self.signal(signal.SIGTERM)
        self.wait(timeout)

    def namespaces(self) -> list[Path]:
        """Return the paths of its namespaces."""
        return list(self._namespaces.iterdir())

    def close(self) -> None:
        """Kill the agent, its haproxies and its namespaces. Idempotent."""
        self.kill()
        if self._keeper.poll() is None:
            for pid in (pid for path in self.namespaces() for pid in kernel.processes_in(path)):
                os.kill(pid, signal.SIGKILL)
            netns.end(self._keeper)
        super().close()
