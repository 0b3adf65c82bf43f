"""A VM of a compute node whose runtime gives containers their network by dfmeta-cni."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

from tests.harness.guest import METADATA_IP, Guest, Ids, uuid_of
from tests.harness.netns import Namespace, tx_off
from tests.harness.ovs import OpenvSwitch
from tests.harness.vm_api import allowed, is_ready
from tests.host.e2e.cni_vm import BRIDGE, Runtime, path


class ContainerVm(Runtime):
    """A VM that may have attachments; its interface is a port of a bridge in it, with all VLANs."""

    def __init__(self, host: OpenvSwitch, name: str, address: str) -> None:
        ids = Ids(
            iface_id=uuid_of(f"port {name}"),
            vm_uuid=uuid_of(f"instance {name}"),
            extra={"dfmeta-attachments": "true"},
        )
        with contextlib.ExitStack() as stack:
            self.guest = stack.enter_context(Guest(host, name, address=address, ids=ids))
            self.inside = self.guest.namespace
            inner = OpenvSwitch(bridges=(BRIDGE,), namespace=self.inside)
            self.switch = stack.enter_context(inner)
            nic = self.guest.device
            self.inside.ip(f"addr flush dev {nic}")
            self.switch.vsctl(
                *("set", "Bridge", BRIDGE, f'other_config:hwaddr="{self.guest.mac}"'),
                *("--", "add-port", BRIDGE, nic),
            )
            self.inside.ip(
                f"link set {BRIDGE} up",
                f"addr add {address} dev {BRIDGE}",
                f"route add {METADATA_IP} dev {BRIDGE}",
            )
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Remove everything."""
        self._stack.close()

    def environment(self, verb: str, container: str, there: str, ifname: str) -> dict[str, str]:
        """Return the variables of a call; a pod has the name of its container."""
        arguments = f"IgnoreUnknown=1;K8S_POD_NAME={container}"
        return {**super().environment(verb, container, there, ifname), "CNI_ARGS": arguments}

    def attachments(self) -> list[dict[str, Any]]:
        """Return the VM's attachments as the host lists them."""
        with allowed(self.inside) as connection:
            return list(json.loads(connection.ask("GET", "/attachments").body)["attachments"])

    def ready(self) -> bool:
        """Return whether the host gives the VM attachments."""
        return is_ready(self.inside)


class Pod(Namespace):
    """The namespace of a container; :meth:`add` gives it a device by the plugin."""

    def __init__(self, vm: ContainerVm, name: str, network: str) -> None:
        super().__init__(name)
        self.vm, self.id, self.network = vm, name, network
        self.result: dict[str, Any] = {}

    def call(self, verb: str, **more: Any) -> Any:
        """Run the plugin as the VM's runtime does; return its status and its document."""
        return self.vm.call(verb, self.id, path(self), network=self.network, **more)

    def add(self) -> Pod:
        """Call ADD."""
        status, self.result = self.call("ADD")
        assert status == 0, self.result
        # The userspace datapath completes no checksums.
        tx_off(self, "eth0")
        return self

    @property
    def address(self) -> str:
        """Its address."""
        return str(self.result["ips"][0]["address"]).partition("/")[0]

    def reaches(self, other: Pod, *, timeout: float = 30) -> bool:
        """Return whether a TCP connection to *other* is made."""
        with other.open_socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((other.address, 8080))
            listener.listen()
            try:
                self.connect(other.address, 8080, timeout=timeout).close()
            except OSError:
                return False
            return True

    def get(self, target: str, *options: str) -> str:
        """Return the output of curl for a request to the metadata service."""
        command = ["curl", "-sS", "--noproxy", "*", *options, f"http://{METADATA_IP}{target}"]
        return self.run(command).stdout
