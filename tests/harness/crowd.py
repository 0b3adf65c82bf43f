"""Many guests' ports without guests, for tests that depend on the number of ports."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.core.flows.frames import ethernet, ipv4, ipv6, tcp
from tests.harness.guest import GATEWAY_MAC, METADATA_IP, OPENSTACK6, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.ovsdb import ask
from tests.harness.poll import wait_for

CHUNK = 500
"""Ports in one transaction."""
PLUG_TIMEOUT = 120.0
_SERVICE6 = OPENSTACK6.strip("[]").partition("%")[0]


class Crowd:
    """Ports of a host that was made with ``dummies=True``, each with the ids that os-vif sets.

    A port is identified by its number. All changes go through OVSDB's and ovs-vswitchd's sockets,
    without a program in between, so that the time of a change is known.
    """

    def __init__(self, host: OpenvSwitch, *, project: str = "") -> None:
        """:param project: id of the project of all instances; empty: it is not in OVSDB."""
        self.host = host
        self._project = project
        self._incarnations = itertools.count(1)

    def name(self, number: int) -> str:
        """Return the name of a port and its interface."""
        return f"crowd{number}"

    def mac(self, number: int) -> str:
        """Return the MAC of the port's guest."""
        return f"fa:16:3e:01:{number >> 8:02x}:{number & 255:02x}"

    def plug(self, numbers: Iterable[int]) -> None:
        """Add ports to the bridge, without waiting for ovs-vswitchd."""
        wanted = list(numbers)
        for chunk in _chunks(wanted):
            operations: list[dict[str, Any]] = []
            for number in chunk:
                row = {"name": self.name(number), "external_ids": self._ids(number)}
                operations.append(
                    {"op": "insert", "table": "Interface", "row": row, "uuid-name": f"i{number}"}
                )
                row = {"name": self.name(number), "interfaces": ["named-uuid", f"i{number}"]}
                operations.append(
                    {"op": "insert", "table": "Port", "row": row, "uuid-name": f"p{number}"}
                )
            ports = [["named-uuid", f"p{number}"] for number in chunk]
            self._transact(*operations, self._mutate("insert", ports))

    def unplug(self, numbers: Iterable[int]) -> None:
        """Remove ports from the bridge, without waiting for ovs-vswitchd."""
        for chunk in _chunks(list(numbers)):
            names = {self.name(number) for number in chunk}
            rows = self.host.ovsdb.select("Port", "_uuid", "name")
            ports = [row["_uuid"] for row in rows if row["name"] in names]
            self._transact(self._mutate("delete", ports))

    def change(self, number: int) -> str:
        """Give the port to another instance, and return that instance's UUID."""
        ids = self._ids(number)
        self._transact(self._of(number, "update", row={"external_ids": ids}))
        return str(dict(ids[1])["vm-uuid"])

    def declare(self, number: int, instances: Mapping[int, str]) -> None:
        """Write the port's list of subports: VLAN id → instance."""
        key = "dfmeta-subports"
        entries = [{"vid": vid, "instance_id": instance} for vid, instance in instances.items()]
        mutations = [
            ["external_ids", "delete", ["set", [key]]],
            ["external_ids", "insert", ["map", [[key, json.dumps(entries)]]]],
        ]
        self._transact(self._of(number, "mutate", mutations=mutations))

    def ofport(self, number: int) -> int:
        """Return the port's OpenFlow number; 0 while it has no number."""
        rows = self.host.ovsdb.select("Interface", "ofport", name=self.name(number))
        result = [row["ofport"] for row in rows]
        return result[0] if result and isinstance(result[0], int) else 0

    def wait_plugged(self, number: int) -> int:
        """Wait for the port's number, and return it; the port plugged last gets its number last."""
        return wait_for(
            lambda: self.ofport(number),
            f"{self.name(number)}'s ofport",
            deadline=PLUG_TIMEOUT,
            interval=0.002,
        )

    def is_configured(self) -> bool:
        """Return whether ovs-vswitchd has applied all changes."""
        (row,) = self.host.ovsdb.select("Open_vSwitch", "cur_cfg", "next_cfg")
        return bool(row["cur_cfg"] == row["next_cfg"])

    def ask(
        self, number: int, *, source: str = "10.0.0.5", port: int = 40000, vid: int = 0
    ) -> None:
        """Inject a SYN to the metadata service at the port, over the IP version of *source*.

        :param vid: VLAN id of its tag; 0: it has none.
        """
        is_ipv6 = ":" in source
        service, kind = (_SERVICE6, 0x86DD) if is_ipv6 else (METADATA_IP, 0x0800)
        segment = tcp(dst=service, src=source, dport=80, sport=port, flags=2)
        packet = (ipv6 if is_ipv6 else ipv4)(segment, dst=service, src=source)
        tags = [vid] if vid else []
        frame = ethernet(packet, dst=GATEWAY_MAC, src=self.mac(number), kind=kind, tags=tags)
        control = self.host.rundir / "ovs-vswitchd.ctl"
        ask(control, "netdev-dummy/receive", self.name(number), frame.hex())

    def _ids(self, number: int) -> list[Any]:
        name = self.name(number)
        ids = {
            "iface-id": uuid_of(f"port {name}"),
            "attached-mac": self.mac(number),
            "vm-uuid": uuid_of(f"instance {name} {next(self._incarnations)}"),
        }
        if self._project:
            ids["project-id"] = self._project
        return ["map", [list(pair) for pair in ids.items()]]

    def _mutate(self, how: str, ports: Sequence[Any]) -> dict[str, Any]:
        return {
            "op": "mutate",
            "table": "Bridge",
            "where": [["name", "==", BRIDGE]],
            "mutations": [["ports", how, ["set", list(ports)]]],
        }

    def _of(self, number: int, op: str, **values: Any) -> dict[str, Any]:
        where = [["name", "==", self.name(number)]]
        return {"op": op, "table": "Interface", "where": where, **values}

    def _transact(self, *operations: dict[str, Any]) -> None:
        bump = [["next_cfg", "+=", 1]]
        table = {"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": bump}
        self.host.ovsdb.transact(*operations, table)


def _chunks(numbers: list[int]) -> list[list[int]]:
    return [numbers[start : start + CHUNK] for start in range(0, len(numbers), CHUNK)]
