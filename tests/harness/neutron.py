"""A Keystone and a Neutron on the compute node, with faults that a test can set."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterable
from typing import Any

from tests.harness import netns
from tests.harness.closing import Closing
from tests.harness.neutron_server import PASSWORD
from tests.harness.poll import wait_for
from tests.harness.program import script

HOST = "compute-1"
PORT = 9696


def options(url: str = f"http://127.0.0.1:{PORT}", **more: object) -> dict[str, object]:
    """Return ``[neutron]`` for a server at *url*."""
    return {
        "host": HOST,
        "auth_type": "password",
        "auth_url": f"{url}/identity/v3",
        "username": "dfmeta",
        "password": PASSWORD,
        "project_name": "service",
        "user_domain_name": "Default",
        "project_domain_name": "Default",
        **more,
    }


def port(
    port_id: str,
    instance: str,
    project: str,
    *,
    host: str = HOST,
    owner: str = "compute:nova",
    network: str = "",
    mac: str = "",
    ips: Iterable[str] = (),
) -> dict[str, Any]:
    """Return a port as Neutron returns it."""
    return {
        "id": port_id,
        "device_id": instance,
        "device_owner": owner,
        "project_id": project,
        "tenant_id": project,
        "binding:host_id": host,
        "network_id": network,
        "mac_address": mac,
        "fixed_ips": [{"subnet_id": f"subnet of {ip}", "ip_address": ip} for ip in ips],
    }


class Neutron(Closing):
    """The server as a process of its own in a namespace; a context manager that ends it."""

    def __init__(self, namespace: netns.Namespace) -> None:
        self._namespace = namespace
        self._process = script("neutron_server", "--port", str(PORT), namespace=namespace)
        wait_for(self._listens, "Neutron to listen")

    def close(self) -> None:
        """End the program."""
        netns.end(self._process)

    def put(self, row: dict[str, Any]) -> None:
        """Add or replace a port."""
        self._ask("put", **row)

    def remove(self, port_id: str) -> None:
        """Remove a port."""
        self._ask("remove", id=port_id)

    def fault(self, service: str = "neutron", **values: object) -> None:
        """Set a fault of ``neutron``, ``keystone`` or ``both``: delay, status, close, raw."""
        self._ask("fault", service=service, **values)

    def mend(self) -> None:
        """Remove the fault."""
        self._ask("fault")

    def requests(self) -> list[str]:
        """Return the paths of all requests for ports."""
        return list(self._ask("requests"))

    def _listens(self) -> bool:
        with contextlib.suppress(OSError):
            self._ask("requests")
            return True
        return False

    def _ask(self, op: str, **values: object) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", PORT)
        with contextlib.closing(connection):
            connection.sock = self._namespace.connect("127.0.0.1", PORT)
            connection.request("POST", "/control", json.dumps({"op": op, **values}))
            return json.loads(connection.getresponse().read())["result"]
