"""The documents of the API of attachments: what a VM gets. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from dfmeta.attach.model import Attachment, Network, Status
from dfmeta.errors import AttachDriverError, AttachError
from dfmeta.model import Answer

JSON: Final = "application/json"
RETRY: Final = {429: "1", 503: "2"}
"""Status → seconds after which the request may be repeated (RFC 9110, 10.2.3)."""
DEFAULT_ROUTE: Final = "0.0.0.0/0"


class ApiRefusalError(Exception):
    """A request that is answered with an error; *answer* is that answer."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__(answer.status)


def encoded(document: object) -> bytes:
    """Return a document as it is sent."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def said(status: int, document: object, *headers: tuple[str, str]) -> Answer:
    """Return an answer with a JSON document."""
    return Answer(status, encoded(document), content_type=JSON, headers=headers)


def refusal(status: int, error: str, message: str, *headers: tuple[str, str]) -> Answer:
    """Return the answer to a refused request.

    :param error: word for programs, which stays the same for the same cause.
    :param message: sentence for people. It quotes nothing that the guest sent.
    """
    return said(status, {"error": error, "message": message}, *headers)


def refuse(status: int, error: str, message: str, *headers: tuple[str, str]) -> NoReturn:
    """Refuse a request with the answer of :func:`refusal`.

    :raises ApiRefusalError: always.
    """
    raise ApiRefusalError(refusal(status, error, message, *headers))


NOT_HERE: Final = refusal(404, "not_found", "There is nothing at this path")
"""For a VM without attachments. It does not tell whether other VMs have some."""
TOO_LARGE: Final = refusal(413, "too_large", "The request has too many bytes")


def failed(error: AttachError) -> Answer:
    """Return the answer for an error of the engine."""
    status = error.status
    retry = [("Retry-After", RETRY[status])] if status in RETRY else []
    return refusal(status, error.name.removeprefix("attach-"), error.told, *retry)


def attachment(
    row: Attachment, networks: Mapping[str, Network], *, parent_mac: str
) -> dict[str, Any]:
    """Return the document of an attachment.

    :param networks: the operator's networks. An attachment may be on one that has been removed: it
        keeps its address, without a route.
    """
    network = networks.get(row.network)
    gateway = network.gateway if network is not None else None
    length = network.subnet.prefixlen if network is not None else row.ip.max_prefixlen
    ip = {"address": f"{row.ip}/{length}"}
    routes = []
    if gateway is not None:
        ip["gateway"] = str(gateway)
        routes = [{"dst": DEFAULT_ROUTE, "gw": str(gateway)}]
    return {
        "id": row.id,
        "container": row.container,
        "ifname": row.ifname,
        "network": row.network,
        "owner": row.owner,
        "labels": dict(row.labels),
        "vid": row.vid,
        "mac": row.mac,
        **({"mtu": network.mtu} if network is not None else {}),
        "ips": [ip],
        "routes": routes,
        "dns": {"nameservers": list(network.dns)} if network is not None and network.dns else {},
        "port_id": row.port_id,
        "parent_mac": parent_mac,
        "boot_id": row.boot_id,
        "state": str(row.state),
    }


def status(now: Status) -> dict[str, Any]:
    """Return the document of a VM's status."""
    return {
        "ready": now.ready,
        **({} if now.ready else {"cause": AttachDriverError(cause=now.cause).told}),
        "used": now.used,
        "free": now.free,
        "quota": now.quota,
        "networks": [{"name": network.name, "mtu": network.mtu} for network in now.networks],
    }
