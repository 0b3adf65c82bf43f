"""A Keystone and a Neutron on one port, with the parts that dfmeta uses, and with faults."""

import json
import urllib.parse
from collections.abc import Iterable
from typing import Any

from tests.harness.netns import Namespace
from tests.harness.other_store import NOT_FOUND, Asked, OtherStore, reply

PASSWORD = "the password of the tests"
HOST = "compute-1"
PORT = 9696
_PORTS = "/network/v2.0/ports"


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


class Neutron(OtherStore):
    """The server. ``ports`` are by id, ``faults`` what a service says in place of its answers."""

    def __init__(self, namespace: Namespace | None = None) -> None:
        super().__init__(self.say, namespace=namespace, port=PORT if namespace else 0)
        self.ports: dict[str, dict[str, Any]] = {}
        self.faults: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.issued = 0

    def put(self, row: dict[str, Any]) -> None:
        """Add or replace a port."""
        self.ports[row["id"]] = row

    def remove(self, port_id: str) -> None:
        """Remove a port."""
        self.ports.pop(port_id, None)

    def requests(self) -> list[str]:
        """Return the paths of all requests for ports."""
        return [target for target in self.targets() if target.startswith(_PORTS)]

    def say(self, asked: Asked) -> bytes:
        """Answer requests for Keystone's discovery, for tokens and for Neutron's ports."""
        url = urllib.parse.urlsplit(asked.target)
        if asked.method == "POST":
            return self.faults["keystone"] if "keystone" in self.faults else self._token(asked)
        if url.path.rstrip("/") == "/identity/v3":
            link = {"rel": "self", "href": f"{self.url}/identity/v3/"}
            return reply({"version": {"id": "v3.14", "status": "stable", "links": [link]}})
        if url.path != _PORTS:
            return NOT_FOUND
        if "neutron" in self.faults:
            return self.faults["neutron"]
        if asked.headers.get("x-auth-token") not in self.tokens:
            return reply({"error": {"message": "no such token", "code": 401}}, status=401)
        return reply({"ports": self._rows(urllib.parse.parse_qs(url.query))})

    def _token(self, asked: Asked) -> bytes:
        given = json.loads(asked.body)["auth"]["identity"]["password"]["user"]["password"]
        if given != PASSWORD:
            return reply({"error": {"message": "wrong password", "code": 401}}, status=401)
        self.issued += 1
        token = f"token-{self.issued}"
        self.tokens.add(token)
        endpoint = {"interface": "internal", "region": "one", "region_id": "one"}
        network = {
            "type": "network",
            "name": "neutron",
            "endpoints": [{**endpoint, "id": "e", "url": f"{self.url}/network"}],
        }
        document = {
            "methods": ["password"],
            "expires_at": "2099-01-01T00:00:00.000000Z",
            "issued_at": "2020-01-01T00:00:00.000000Z",
            "user": {"id": "u", "name": "dfmeta", "domain": {"id": "d", "name": "Default"}},
            "project": {"id": "p", "name": "service", "domain": {"id": "d", "name": "Default"}},
            "catalog": [network],
            "roles": [],
        }
        return reply({"token": document}, status=201, headers=(f"X-Subject-Token: {token}",))

    def _rows(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        rows = list(self.ports.values())
        for name in ("id", "binding:host_id", "network_id", "device_owner"):
            if name in query:
                rows = [row for row in rows if row.get(name) in query[name]]
        fields = query.get("fields")
        return [{k: v for k, v in row.items() if not fields or k in fields} for row in rows]
