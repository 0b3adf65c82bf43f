"""A program that interprets network configurations with cloud-init's own code.

:mod:`tests.harness.netjson` starts it, on the interpreter that has cloud-init's modules. Each line
of stdin is a configuration, each line of stdout its meaning, in JSON.
"""

from __future__ import annotations

import ipaddress
import json
import sys
import types
from typing import Any

from cloudinit.net import netplan as renderer  # type: ignore[import-not-found]  # not in this venv
from cloudinit.net import network_state
from cloudinit.sources.helpers import openstack  # type: ignore[import-not-found]  # as above

# For each device cloud-init makes YAML of all that it knows, and drops the text. That takes most of
# its time.
network_state.safeyaml = types.SimpleNamespace(dumps=lambda *_arguments, **_options: "")
DYNAMIC = ("ipv6_slaac", "ipv6_dhcpv6-stateless", "ipv6_dhcpv6-stateful")


def meaning(config: dict[str, Any]) -> dict[str, Any]:
    """Return the meaning of a configuration, without the names in it."""
    state = network_state.parse_net_config_data(config, skip_broken=False)
    interfaces = {interface["name"]: interface for interface in state.iter_interfaces()}
    links, routes = {}, set(map(route, state.iter_routes()))
    servers = set(state.dns_nameservers)
    for name, interface in interfaces.items():
        result = links[" ".join(key(name, interfaces))] = {
            "mac": mac(name, interfaces),
            "mtu": interface.get("mtu"),
            "addresses": [],
            "bond": bond(interface),
        }
        for subnet in interface.get("subnets", []):
            kind = subnet["type"].replace("dhcp4", "dhcp")
            if "dhcp" in kind or kind in DYNAMIC:
                result["addresses"].append(kind)
            elif "address" in subnet:
                address = f"{subnet['address'].partition('/')[0]}/{subnet['prefix']}"
                result["addresses"].append(address)
            if "gateway" in subnet:
                everywhere = "::/0" if ":" in subnet["gateway"] else "0.0.0.0/0"
                routes.add(f"{everywhere} {subnet['gateway']}")
            routes.update(map(route, subnet.get("routes", [])))
            servers.update(subnet.get("dns_nameservers") or [])
        result["addresses"].sort()
        servers.update(interface.get("dns", {}).get("nameservers", []))
    return {"links": links, "routes": sorted(routes), "servers": sorted(servers)}


def key(name: str, interfaces: dict[str, Any]) -> list[str]:
    """Return words that identify a device by MACs and VLAN ids."""
    interface = interfaces[name]
    if interface["type"] == "vlan":
        below = key(interface["vlan-raw-device"], interfaces)
        return ["vlan", str(interface["vlan_id"]), "on", *below]
    if interface["type"] == "bond":
        return ["bond", "of", *members(name, interfaces)]
    return [mac(name, interfaces)]


def members(name: str, interfaces: dict[str, Any]) -> list[str]:
    """Return the MACs of a bond's devices."""
    return [
        mac(interface, interfaces)
        for interface in interfaces
        if interfaces[interface].get("bond-master") == name
    ]


def mac(name: str, interfaces: dict[str, Any]) -> str:
    """Return the MAC of a device, or the MAC that the kernel assigns."""
    interface = interfaces[name]
    if interface.get("mac_address"):
        return str(interface["mac_address"]).lower()
    if interface["type"] == "vlan":
        return mac(interface["vlan-raw-device"], interfaces)
    return members(name, interfaces)[0]


def bond(interface: dict[str, Any]) -> dict[str, str]:
    """Return a bond's parameters, as they are spelled in sysfs."""
    result = {}
    for name, value in interface.items():
        spelled = name.replace("-", "_").replace("bond_", "")
        if name.startswith("bond") and spelled not in ("slaves", "master"):
            result[spelled] = str(value)
    return result


def route(route_: dict[str, Any]) -> str:
    """Return a route in canonical form."""
    network = ipaddress.ip_network(f"{route_['network']}/{route_['prefix']}")
    return f"{network} {route_['gateway']}"


def netplan(config: dict[str, Any]) -> str:
    """Return the configuration in the form of netplan."""
    state = network_state.parse_net_config_data(config, skip_broken=False)
    text = renderer.Renderer({})._render_content(state)
    return str(text)


def main() -> None:
    """Answer until stdin ends."""
    for line in sys.stdin:
        question = json.loads(line)
        config = question["config"]
        if question["macs"] is not None:
            config = openstack.convert_net_json(config, known_macs=question["macs"])
        result = netplan(config) if question["netplan"] else meaning(config)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
