"""The patch ports of Neutron's trunks, made and removed as Neutron's Open vSwitch agent does it.

The real agent is in :mod:`tests.harness.neutron_agent`. This one needs no VM, and can be paused.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tests.harness.closing import Closing
from tests.harness.neutron_api import NeutronServer
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.trunk import Subport

POLL = 0.02
_SUBPORTS = """\
SELECT s.port_id, s.segmentation_id, t.port_id, p.mac_address FROM subports s
JOIN trunks t ON s.trunk_id = t.id JOIN ports p ON p.id = s.port_id"""


class TrunkAgent(Closing):
    """Wires the subports of the trunks whose parents are on a host, in a thread."""

    def __init__(self, host: OpenvSwitch, server: NeutronServer) -> None:
        self._host, self._server = host, server
        self._made: dict[str, Subport] = {}
        self._end, self._pause = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._end.set()
        self._thread.join()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Wire nothing for a while."""
        with self._pause:
            yield

    def _run(self) -> None:
        with contextlib.closing(self._server.database()) as base:
            while not self._end.wait(POLL):
                with self._pause:
                    self._step(base.execute(_SUBPORTS).fetchall())

    def _step(self, rows: list[tuple[str, int, str, str]]) -> None:
        words = list[str]()
        new = [row for row in rows if row[0] not in self._made]
        bridges: dict[str, str | None] = dict.fromkeys(parent for _port, _vid, parent, _mac in new)
        for parent in bridges:
            outer = f"tpt-{parent}"[:15]
            found = self._host.vsctl("--if-exists", "get", "Interface", outer, "name", wait=False)
            bridges[parent] = self._host.vsctl("iface-to-br", outer).strip() if found else None
        for port, vid, parent, mac in new:
            bridge = bridges[parent]
            if bridge is None:
                continue
            one = self._made[port] = Subport(port, vid)
            ids = [f'external_ids:iface-id="{port}"', f'external_ids:attached-mac="{mac}"']
            words += [
                *("--", "add-port", BRIDGE, one.inner, "--", "set", "Interface", one.inner),
                *("type=patch", f"options:peer={one.outer}", *ids),
                *("--", "add-port", bridge, one.outer, f"tag={vid}", "vlan_mode=access"),
                *("--", "set", "Interface", one.outer),
                *("type=patch", f"options:peer={one.inner}", *ids),
            ]
        for port in self._made.keys() - {row[0] for row in rows}:
            gone = self._made.pop(port)
            words += ["--", "--if-exists", "del-port", gone.inner]
            words += ["--", "--if-exists", "del-port", gone.outer]
        if words:
            self._host.vsctl(*words[1:], wait=False)
