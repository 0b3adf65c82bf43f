"""The subports of a real neutron-server, wired on a host.

:class:`Link` passes them to Neutron's own agent (:mod:`tests.host.neutron.agent`), which gets no
messages of the server. :class:`TrunkAgent` makes their patch ports itself, as that agent does it:
for switches without devices. :class:`Ovn` stands in for OVN, which has no row
for a subport.
"""

import abc
import contextlib
import threading
from dataclasses import dataclass

from tests.harness.closing import Closing
from tests.harness.guest import uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.trunk import Subport
from tests.host.neutron.agent import OPEN, NeutronAgent, Port
from tests.host.neutron.api import NeutronServer

POLL = 0.02
AGAIN = 0.1
"""Seconds between two tries to wire what the host has no place for."""
_SUBPORTS = """\
SELECT s.port_id, s.segmentation_id, t.id, t.port_id, p.mac_address, a.ip_address, p.network_id
FROM subports s JOIN trunks t ON s.trunk_id = t.id JOIN ports p ON p.id = s.port_id
JOIN ipallocations a ON a.port_id = p.id"""


@dataclass(frozen=True)
class Row:
    """A subport in Neutron's database."""

    port: str
    vid: int
    trunk: str
    parent: str
    mac: str
    ip: str
    network: str


class Following(Closing):
    """A thread that reads the server's database, which causes the server no work."""

    def __init__(self, server: NeutronServer) -> None:
        self._server = server
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._end.set()
        self._thread.join()

    @abc.abstractmethod
    def step(self, rows: list[Row]) -> bool:
        """Wire the subports, and no others; return whether all are wired."""

    def _run(self) -> None:
        wired = 0
        """The version of the database that is wired."""
        pause = POLL
        with contextlib.closing(self._server.database()) as base:
            while not self._end.wait(pause):
                # Before the rows are read: a change meanwhile makes another version.
                (version,) = base.execute("PRAGMA data_version").fetchone()
                pause = POLL
                if version == wired:
                    continue
                if self.step([Row(*row) for row in base.execute(_SUBPORTS)]):
                    wired = version
                else:
                    pause = AGAIN


class TrunkAgent(Following):
    """Wires the subports of the trunks whose parents are on a host."""

    def __init__(self, host: OpenvSwitch, server: NeutronServer) -> None:
        self._host = host
        self._made: dict[str, Subport] = {}
        super().__init__(server)

    def step(self, rows: list[Row]) -> bool:
        """See :class:`Following`."""
        words = list[str]()
        new = [row for row in rows if row.port not in self._made]
        bridges = {parent: self._bridge(parent) for parent in {row.parent for row in new}}
        for row in new:
            if bridges[row.parent]:
                subport = self._made[row.port] = Subport(row.port, row.vid)
                words += _adding(subport, bridges[row.parent], row.mac)
        for port in self._made.keys() - {row.port for row in rows}:
            gone = self._made.pop(port)
            words += ["--", "--if-exists", "del-port", gone.inner]
            words += ["--", "--if-exists", "del-port", gone.outer]
        if words:
            self._host.vsctl(*words[1:], wait=False)
        return len(self._made) == len(rows)

    def _bridge(self, parent: str) -> str:
        """Return the bridge of a parent's trunk; empty: it is not on this host."""
        outer = f"tpt-{parent}"[:15]
        vsctl = self._host.vsctl("--if-exists", "get", "Interface", outer, "name", wait=False)
        return self._host.vsctl("iface-to-br", outer).strip() if vsctl.strip() else ""


class Ovn(Following):
    """Gives the ports of subports the status ACTIVE, as ML2/OVN does once they are bound."""

    def __init__(self, server: NeutronServer) -> None:
        self._active: set[str] = set()
        super().__init__(server)

    def step(self, rows: list[Row]) -> bool:
        """See :class:`Following`."""
        ports = {row.port for row in rows}
        for port in ports - self._active:
            self._server.set_status("ports", port, "ACTIVE")
        self._active = ports
        return True


class Link(Following):
    """Passes the subports to Neutron's own agent."""

    def __init__(self, agent: NeutronAgent, server: NeutronServer) -> None:
        self._agent = agent
        self._parents: dict[str, str] = {}
        """Trunk → the port of its parent."""
        super().__init__(server)

    def step(self, rows: list[Row]) -> bool:
        """See :class:`Following`."""
        self._parents |= {row.trunk: row.parent for row in rows}
        for trunk, parent in self._parents.items():
            ports = {row.vid: _port(row) for row in rows if row.trunk == trunk}
            self._agent.put_subports(trunk, parent, ports)
        return True


def _adding(subport: Subport, bridge: str, mac: str) -> list[str]:
    ids = [f'external_ids:iface-id="{subport.port_id}"', f'external_ids:attached-mac="{mac}"']
    return [
        *("--", "add-port", BRIDGE, subport.inner, "--", "set", "Interface", subport.inner),
        *("type=patch", f"options:peer={subport.outer}", *ids),
        *("--", "add-port", bridge, subport.outer, f"tag={subport.vid}", "vlan_mode=access"),
        *("--", "set", "Interface", subport.outer),
        *("type=patch", f"options:peer={subport.inner}", *ids),
    ]


def _port(row: Row) -> Port:
    return Port(
        id=row.port,
        instance=uuid_of(f"instance of {row.port}"),
        mac=row.mac,
        ip=row.ip,
        network=row.network,
        vlan=302,
        groups=(OPEN,),
    )
