"""A VM's side of the API of attachments, with an engine that keeps what it was asked."""

import json
from collections.abc import Set
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from dfmeta.attach.api import Access, ApiCall, AttachmentApi
from dfmeta.attach.model import (
    Attachment,
    AttachmentRequest,
    AttachmentState,
    AttachmentStatus,
    Network,
    Parent,
)
from dfmeta.errors import AttachError
from dfmeta.model import Answer, GuestRequest, Port, PortKind
from dfmeta.proxy.tokens import AttachmentTokens

INSTANCE = "11111111-2222-3333-4444-555555555555"
PROJECT = "b9a3d2f07c7e4f4b8f4f7f0a1c2d3e4f"
PORT = Port(
    "tpi-1",
    "row-1",
    4,
    iface_id="port-1",
    mac="fa:16:3e:00:00:01",
    instance_id=INSTANCE,
    project_id=PROJECT,
    kind=PortKind.PARENT,
)
PARENT = Parent(
    port_id="port-1",
    port_name="tpi-1",
    instance_id=INSTANCE,
    project_id=PROJECT,
    mac="fa:16:3e:00:00:01",
)
NETWORKS = {
    "pods": Network(
        name="pods",
        subnet=IPv4Network("10.20.0.0/24"),
        gateway=IPv4Address("10.20.0.1"),
        mtu=1400,
        dns=("192.0.2.53",),
    ),
    "bare": Network(name="bare", subnet=IPv4Network("10.21.0.0/24")),
}
ONE = Attachment(
    id="a-1",
    parent="port-1",
    host="h",
    container="c1",
    ifname="eth0",
    network="pods",
    owner="",
    vid=5,
    mac="02:00:00:00:00:05",
    ip=IPv4Address("10.20.0.5"),
    port_id="p-1",
    boot_id="",
    state=AttachmentState.ACTIVE,
    created=0.0,
    changed=0.0,
)
DOCUMENT = {
    "id": "a-1",
    "container": "c1",
    "ifname": "eth0",
    "network": "pods",
    "owner": "",
    "labels": {},
    "vid": 5,
    "mac": "02:00:00:00:00:05",
    "mtu": 1400,
    "ips": [{"address": "10.20.0.5/24", "gateway": "10.20.0.1"}],
    "routes": [{"dst": "0.0.0.0/0", "gw": "10.20.0.1"}],
    "dns": {"nameservers": ["192.0.2.53"]},
    "port_id": "p-1",
    "parent_mac": "fa:16:3e:00:00:01",
    "boot_id": "",
    "state": "active",
}
PATH = "/attachments/c1/eth0"
BODY = {"network": "pods"}
BOOT = "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"


@dataclass
class FakeEngine:
    there: list[Attachment] = field(default_factory=lambda: [ONE])
    new: bool = True
    error: AttachError | None = None
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def attach(self, parent: Parent, wanted: AttachmentRequest) -> tuple[Attachment, bool]:
        self._note(parent, wanted)
        return ONE, self.new

    def get(self, parent: Parent, container: str, ifname: str) -> Attachment | None:
        self._note(parent)
        return next(
            (attachment for attachment in self.there if attachment.container == container), None
        )

    def listed(self, parent: Parent) -> list[Attachment]:
        self._note(parent)
        return self.there

    def detach(self, parent: Parent, container: str, ifname: str, *, gone: bool) -> None:
        self._note(parent, container, ifname, gone)

    def collect(self, parent: Parent, network: str, owner: str, valid: Set[tuple[str, str]]) -> int:
        self._note(parent, network, owner, set(valid))
        return len(valid)

    def status(self, parent: Parent) -> AttachmentStatus:
        self._note(parent)
        return AttachmentStatus(
            ready=self.new,
            cause="" if self.new else "no trunk",
            used=1,
            free=9,
            quota=10,
            networks=tuple(NETWORKS.values()),
        )

    def _note(self, parent: Parent, *values: object) -> None:
        assert parent == PARENT
        self.asked.append(values)
        if self.error is not None:
            raise self.error


class Side:
    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.tokens = AttachmentTokens(bytes(32))
        self.pause = 0
        self.api = AttachmentApi(
            self.engine,
            self.tokens,
            NETWORKS,
            access=Access(frozenset({INSTANCE})),
            quota=10,
            wait=lambda _port: self.pause,
        )

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        port: Port = PORT,
        source: int = 700,
        token: str | None = None,
        forwarded: bool = False,
        **headers: str,
    ) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        token = self.tokens.issue(port, 60) if token is None else token
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        path, _mark, query = path.partition("?")
        request = GuestRequest(
            method, f"/dfmeta/v1{path}", query, {"x-dfmeta-token": token, **named}, data
        )
        call = ApiCall(request=request, port=port, source_port=source, forwarded=forwarded)
        return self.api.refuse(call) or self.api.answer(call)
