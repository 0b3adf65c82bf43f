"""VMs with Open vSwitch in them, and the calls of a runtime for their containers."""

import contextlib
import json
import subprocess
import sys
from typing import Any

from tests.harness import cni_file, netns
from tests.harness.closing import Closing
from tests.harness.netns import Namespace
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.attach_api import ADDRESS, Service

PARENT_MAC = "fa:16:3e:0a:00:01"
BRIDGE, TRUNK, NETWORK = "gbr", "tbr", "nbr"


def command() -> list[str]:
    """Return that of the plugin."""
    return [sys.executable, "-I", "-S", str(cni_file.packed())]


class Runtime(Closing):
    """A container runtime in a VM with Open vSwitch, as far as it calls the plugin."""

    switch: OpenvSwitch
    """The VM's own."""
    inside: Namespace
    """The VM's namespace."""

    def config(self, **members: Any) -> dict[str, Any]:
        """Return a network configuration; a member that is None is left out."""
        made = {
            "cniVersion": "1.1.0",
            "name": "cluster",
            "type": "dfmeta-cni",
            "network": "pods",
            "link": "ovs",
            "bridge": BRIDGE,
            "db": self.switch.ovsdb_connection,
            "timeout": 60,
            **members,
        }
        return {name: value for name, value in made.items() if value is not None}

    def environment(self, verb: str, container: str, there: str, ifname: str) -> dict[str, str]:
        """Return the variables of a call."""
        return {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": there,
            "CNI_IFNAME": ifname,
            "CNI_PATH": "/opt/cni/bin",
            "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0",
        }

    def start(
        self,
        verb: str,
        container: str = "c1",
        there: str = "",
        *,
        ifname: str = "eth0",
        **more: Any,
    ) -> subprocess.Popen[bytes]:
        """Start the plugin as a runtime does."""
        process = self.inside.spawn(
            command(),
            env=self.environment(verb, container, there, ifname),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self.config(**more)).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def call(self, verb: str, container: str = "c1", there: str = "", **more: Any) -> Any:
        """Run the plugin to its end; return its status and the document that it prints."""
        return ended(self.start(verb, container, there, **more))

    def plugin(
        self, verb: str, there: str = "", container: str = "c1", **container_options: object
    ) -> Any:
        """Run the plugin as netavark does, for a container of the network; see :meth:`call`."""
        config = self.config(name=None, type=None, cniVersion=None, timeout="60")
        network = {"name": "pods", "id": "0" * 64, "driver": "dfmeta", "options": config}
        document = {
            "container_id": container,
            "container_name": "web-0",
            "port_mappings": [],
            "network": network,
            "network_options": {"interface_name": "eth0", **container_options},
        }
        raw = json.dumps(network if verb == "create" else document).encode()
        words = [verb, there] if there else [verb]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.inside.spawn([*command(), *words], **streams)
        return ended(process, raw)

    def traces(self) -> tuple[list[str], list[str]]:
        """Return the ports and the devices that containers have in the VM."""
        devices = self.inside.ip("link show")
        names = [line.split()[1] for line in devices.splitlines() if ": dfc" in line]
        ports = [port for port in self.switch.ports(BRIDGE) if port.startswith("dfc")]
        return ports, names


class Vm(Runtime):
    """The VM's namespace is Open vSwitch's; *host* has the service.

    Patch ports stand for the host's trunk: each VLAN of the VM's bridge leads to one network.
    """

    def __init__(self) -> None:
        with contextlib.ExitStack() as stack:
            self.switch = stack.enter_context(OpenvSwitch(bridges=(BRIDGE, TRUNK, NETWORK)))
            self.inside = self.switch.namespace
            self.host = stack.enter_context(Namespace("api"))
            netns.veth(
                self.host,
                "vm",
                self.inside,
                "eth0",
                mac=PARENT_MAC,
                then=["addr add 169.254.10.2/16 dev eth0"],
            )
            self.host.ip(f"addr add {ADDRESS}/16 dev vm")
            self.patch(BRIDGE, "trunk", TRUNK, "parent")
            self.service = stack.enter_context(
                Service(self.host, parent_mac=PARENT_MAC, made=self._wire, unmade=self._unwire)
            )
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Remove everything."""
        self._stack.close()

    def patch(self, first: str, name: str, second: str, peer: str, *words: str) -> None:
        """Connect two bridges."""
        self.switch.vsctl(
            *("add-port", first, name, *words, "--", "set", "Interface", name, "type=patch"),
            *(f"options:peer={peer}", "--", "add-port", second, peer),
            *("--", "set", "Interface", peer, "type=patch", f"options:peer={name}"),
            wait=False,
        )

    def _wire(self, attachment: dict[str, Any]) -> None:
        vid = attachment["vid"]
        self.patch(TRUNK, f"spt{vid}", NETWORK, f"spi{vid}", f"tag={vid}", "vlan_mode=access")

    def _unwire(self, attachment: dict[str, Any]) -> None:
        vid = attachment["vid"]
        self.switch.vsctl(
            *("--if-exists", "del-port", f"spt{vid}", "--", "--if-exists", "del-port"),
            f"spi{vid}",
            wait=False,
        )


def ended(process: subprocess.Popen[bytes], raw: bytes | None = None) -> Any:
    """Return the status of the plugin and its document; nothing may be on stderr."""
    out, err = process.communicate(raw)
    assert err == b"", err
    return process.returncode, json.loads(out) if out else None


def path(container: Namespace) -> str:
    """Return the path of a container's namespace."""
    return f"/run/netns/{container.name}"
