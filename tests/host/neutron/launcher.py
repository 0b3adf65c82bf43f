"""A program: Neutron's own Open vSwitch agent, with a stand-in for neutron-server in this file.

It is run by the Python of the environment that tools/setup.sh makes for Neutron, with the agent's
own options::

    launcher.py SERVER REPORT --config-file FILE

SERVER is a JSON file with the server's data; :mod:`tests.host.neutron.agent` writes it. Changes
of the file reach the agent as notifications of the server. REPORT gets a line for each port that
the agent reports as up or down. Everything else is the agent's own code: only the client and the
consumer of messages are replaced, and the helper that would run as root.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# This import is first, because it selects threads; the other imports would select eventlet.
from neutron.cmd.agents import ovs_neutron_agent

# isort: split
import netaddr
import neutron_lib.rpc
from neutron import objects, privileged
from neutron.api.rpc.callbacks import events
from neutron.api.rpc.callbacks.consumer import registry
from neutron.api.rpc.callbacks.exceptions import CallbackNotFound
from neutron.objects import network, ports, securitygroup, subnet, trunk
from neutron.objects.port.extensions import port_security
from neutron.objects.qos import policy, rule
from neutron_lib import context
from oslo_privsep.priv_context import PrivContext

HOST = "compute-1"
PHYSICAL = "physnet"
_POLL = 0.1
"""Seconds between two reads of SERVER."""


def _id(*parts: object) -> str:
    """Return a UUID that depends only on *parts*."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, " ".join(map(str, parts))))


def _port(row: dict[str, Any], revision: int) -> ports.Port:
    """Return a bound port of an instance."""
    port, name = row["id"], row["network"]
    segment = network.NetworkSegment(
        id=_id("segment", name),
        network_id=_id("network", name),
        network_type="vlan",
        physical_network=PHYSICAL,
        segmentation_id=row["vlan"],
    )
    address = ports.IPAllocation(
        port_id=port,
        subnet_id=_id("subnet", name),
        network_id=_id("network", name),
        ip_address=netaddr.IPAddress(row["ip"]),
    )
    binding = ports.PortBinding(
        port_id=port, host=HOST, profile={}, vif_type="ovs", vnic_type="normal", status="ACTIVE"
    )
    level = ports.PortBindingLevel(
        port_id=port,
        host=HOST,
        level=0,
        driver="openvswitch",
        segment=segment,
        segment_id=segment.id,
    )
    return ports.Port(
        id=port,
        project_id="project",
        name=row["name"],
        network_id=_id("network", name),
        mac_address=netaddr.EUI(row["mac"]),
        admin_state_up=row["up"],
        device_id=row["instance"],
        device_owner="compute:nova",
        status="ACTIVE",
        allowed_address_pairs=[],
        fixed_ips=[address],
        bindings=[binding],
        binding_levels=[level],
        distributed_bindings=[],
        hints=None,
        security=port_security.PortSecurity(id=port, port_security_enabled=True),
        security_group_ids={_id("group", group) for group in row["groups"]},
        qos_policy_id=_id("policy", row["packet_rate"]) if row["packet_rate"] else None,
        revision_number=revision,
    )


def _group(name: str, protocols: list[str], revision: int) -> securitygroup.SecurityGroup:
    """Return a security group that allows only these protocols, in and out."""
    rules = [
        securitygroup.SecurityGroupRule(
            id=_id("rule", name, protocol, direction),
            security_group_id=_id("group", name),
            direction=direction,
            ethertype="IPv4",
            protocol=protocol,
            revision_number=revision,
        )
        for protocol in protocols
        for direction in ("ingress", "egress")
    ]
    return securitygroup.SecurityGroup(
        id=_id("group", name),
        name=name,
        project_id="project",
        stateful=True,
        rules=rules,
        revision_number=revision,
    )


def _policy(packets: int) -> policy.QosPolicy:
    """Return a policy that limits the packets that a guest may send in a second."""
    qos_packet_rate_limit_rule = rule.QosPacketRateLimitRule(
        id=_id("limit", packets),
        qos_policy_id=_id("policy", packets),
        max_kpps=packets,
        max_burst_kpps=0,
        direction="egress",
    )
    return policy.QosPolicy(
        id=_id("policy", packets),
        project_id="project",
        name="policy",
        shared=False,
        rules=[qos_packet_rate_limit_rule],
    )


def _network(name: str, revision: int) -> tuple[network.Network, subnet.Subnet]:
    """Return a network and its subnet; all subnets have the same addresses."""
    whole = network.Network(id=_id("network", name), name=name, mtu=1500, revision_number=revision)
    part = subnet.Subnet(
        id=_id("subnet", name),
        network_id=whole.id,
        enable_dhcp=True,
        ip_version=4,
        cidr=netaddr.IPNetwork("10.0.0.0/24"),
        gateway_ip=None,
        dns_nameservers=[],
        host_routes=[],
        revision_number=revision,
    )
    return whole, part


def _trunk(row: dict[str, Any]) -> trunk.Trunk:
    """Return a trunk with its subports."""
    subports = [
        trunk.SubPort(
            trunk_id=row["id"],
            port_id=subport["id"],
            segmentation_type="vlan",
            segmentation_id=subport["vid"],
        )
        for subport in row["subports"]
    ]
    return trunk.Trunk(
        id=row["id"],
        project_id="project",
        name="trunk",
        port_id=row["parent"],
        admin_state_up=True,
        status="ACTIVE",
        sub_ports=subports,
    )


def _everything(document: dict[str, Any], revision: int) -> Iterator[Any]:
    """Yield all objects of SERVER."""
    for row in document["ports"]:
        yield _port(row, revision)
        yield from _network(row["network"], revision)
        if row["packet_rate"]:
            yield _policy(row["packet_rate"])
    for name, protocols in document["groups"].items():
        group = _group(name, protocols, revision)
        yield group
        yield from group.rules


class Server:
    """The data and the answers of neutron-server."""

    def __init__(self, source: Path, report: Path) -> None:
        self._source = source
        self._report = report
        self._revision = 1
        self._text = ""
        self._known = 0
        """Version of SERVER that was read."""
        self._told = 0
        """The last of them that the tests were told of."""
        self._rows: dict[str, dict[str, Any]] = {}
        self._objects: dict[str, dict[str, Any]] = {}
        self._trunks: dict[str, trunk.Trunk] = {}
        """Id of a parent's port → its trunk."""
        self._read()

    def _read(self) -> list[str]:
        """Read SERVER, and return the ids of the ports that are new or changed."""
        text = self._source.read_text()
        if text == self._text:
            return []
        self._text = text
        self._revision += 1
        document = json.loads(text)
        self._known = document["version"]
        before, self._rows = self._rows, {row["id"]: row for row in document["ports"]}
        self._trunks = {row["parent"]: _trunk(row) for row in document["trunks"]}
        kinds: dict[str, dict[str, Any]] = {}
        for stored in _everything(document, self._revision):
            kinds.setdefault(stored.obj_name(), {})[stored.id] = stored
        self._objects = kinds
        return [key for key, row in self._rows.items() if before.get(key) != row]

    def notify(self) -> None:
        """Notify the agent of changed ports, as long as it runs."""
        while not threading.Event().wait(_POLL):
            before = self._subports()
            if changed := self._read():
                _push("Port", [self._objects["Port"][key] for key in changed], events.UPDATED)
            if self._known != self._told:
                self._report_version()
            now = self._subports()
            for event, ids in (
                (events.CREATED, now.keys() - before.keys()),
                (events.DELETED, before.keys() - now.keys()),
            ):
                for key in ids:
                    _push("SubPort", [(now if event == events.CREATED else before)[key]], event)

    def _report_version(self) -> None:
        self._source.with_suffix(".known").write_text(str(self._known))
        self._told = self._known

    def _subports(self) -> dict[str, trunk.SubPort]:
        """Return id → subport, of all trunks."""
        return {
            subport.port_id: subport
            for trunk in self._trunks.values()
            for subport in trunk.sub_ports
        }

    # Calls by the agent

    def has_alive_neutron_server(self, **_: Any) -> bool:
        """Return that a server is alive."""
        return True

    def report_state(self, **_: Any) -> str:
        """Return that the agent was known before, and was not considered dead."""
        return "alive"

    def get_network_details(self, network: str, **_: Any) -> dict[str, Any]:
        """Return a network whose segments never change."""
        return {"id": network}

    def update_device_list(
        self, devices_up: list[str], devices_down: list[str], **_: Any
    ) -> dict[str, list[Any]]:
        """Record ports that the agent has wired, or found down."""
        with self._report.open("a") as report:
            report.writelines(f"up {device}\n" for device in devices_up)
            report.writelines(f"down {device}\n" for device in devices_down)
        return {
            "devices_up": devices_up,
            "failed_devices_up": [],
            "devices_down": [{"device": device, "exists": True} for device in devices_down],
            "failed_devices_down": [],
        }

    def update_subport_bindings(self, subports: list[Any], **_: Any) -> dict[str, list[Any]]:
        """Return the ports of subports, which are bound to this host."""
        result: dict[str, list[Any]] = {}
        for subport in subports:
            port = {"id": subport.port_id, "mac_address": self._rows[subport.port_id]["mac"]}
            result.setdefault(subport.trunk_id, []).append(port)
        return result

    def update_trunk_status(self, **_: Any) -> None:
        """Ignore the status."""

    def update_device_down(self, device: str, **_: Any) -> dict[str, Any]:
        """Record one port that is down."""
        self.update_device_list([], [device])
        return {"device": device, "exists": True}

    def bulk_pull(self, resource_type: str, filter_kwargs: dict[str, Any], **_: Any) -> list[Any]:
        """Return objects of a type whose named attributes each have one of the given values."""

        def matches(stored: Any) -> bool:
            for name, wanted in filter_kwargs.items():
                value = getattr(stored, name)
                if not set(value if isinstance(value, set) else {value}) & set(wanted):
                    return False
            return True

        known = self._objects.get(resource_type, {}).values()
        return [stored.obj_to_primitive() for stored in known if matches(stored)]

    def pull(self, resource_type: str, resource_id: str, **_: Any) -> Any:
        """Return one object, or None if it does not exist; a trunk by its parent's port."""
        if resource_type == "Trunk":
            result = self._trunks.get(resource_id)
            return None if result is None else result.obj_to_primitive()
        stored = self._objects.get(resource_type, {}).get(resource_id)
        return None if stored is None else stored.obj_to_primitive()


def _push(kind: str, changed: list[Any], event: str) -> None:
    # A message is lost while the agent, which starts, has not subscribed to it.
    with contextlib.suppress(CallbackNotFound):
        registry.push(context.get_admin_context(), kind, changed, event)


class Client:
    """A stand-in for a message client: calls go to the server in this process."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def prepare(self, **_: Any) -> Client:
        """Return the same client."""
        return self

    def set_max_timeout(self, _: float) -> None:
        """Ignore the timeout: calls return at once."""

    def call(self, _: Any, method: str, **values: Any) -> Any:
        """Call the server's method, and return its answer."""
        return getattr(self._server, method)(**values)

    cast = call


class Consumer:
    """A stand-in for a message connection: the server calls the agent directly."""

    def create_consumer(self, *_: Any, **__: Any) -> None:
        """Ignore the consumer: no message arrives."""

    def consume_in_threads(self) -> list[Any]:
        """Return no thread."""
        return []

    def close(self) -> None:
        """Do nothing, because nothing is open."""


def main() -> None:
    """Run the agent."""
    objects.register_objects()
    server = Server(Path(sys.argv[1]), Path(sys.argv[2]))
    del sys.argv[1:3]
    neutron_lib.rpc.get_client = lambda *_, **__: Client(server)
    neutron_lib.rpc.Connection = Consumer
    for value in vars(privileged).values():
        if isinstance(value, PrivContext):
            value.set_client_mode(False)
    threading.Thread(target=server.notify, daemon=True).start()
    ovs_neutron_agent.main()


if __name__ == "__main__":
    main()
