"""The documents of the API of attachments: requests of VMs, and the answers to them. No I/O.

Trust: none in a request. Each value is checked for its form, its size and its number; the errors
name the member and quote nothing of it. Container ids have the form of the CNI specification
(1.1.0, "Parameters"), and names of devices that of the kernel (dev_valid_name of net/core/dev.c).
"""

import json
import re
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address
from typing import Any, Final, NoReturn, TypeVar

from dfmeta import errors, model
from dfmeta.attach.model import Attachment, AttachmentRequest, AttachmentStatus, Network
from dfmeta.store import strictjson

JSON: Final = "application/json"
RETRY: Final = {429: "1", 503: "2"}
"""Status → seconds after which the request may be repeated (RFC 9110, 10.2.3)."""
DEFAULT_ROUTE: Final = "0.0.0.0/0"


class ApiRefusalError(Exception):
    """A request that is answered with an error; *answer* is that answer."""

    def __init__(self, answer: model.Answer) -> None:
        self.answer = answer
        super().__init__(answer.status)


def encoded(document: object) -> bytes:
    """Return a document as it is sent."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def json_answer(status: int, document: object, *headers: tuple[str, str]) -> model.Answer:
    """Return an answer with a JSON document."""
    return model.Answer(status, encoded(document), content_type=JSON, headers=headers)


def refusal(status: int, error: str, message: str, *headers: tuple[str, str]) -> model.Answer:
    """Return the answer to a refused request.

    :param error: word for programs, which stays the same for the same cause.
    :param message: sentence for people. It quotes nothing that the guest sent.
    """
    return json_answer(status, {"error": error, "message": message}, *headers)


def refuse(status: int, error: str, message: str, *headers: tuple[str, str]) -> NoReturn:
    """Refuse a request with the answer of :func:`refusal`.

    :raises ApiRefusalError: always.
    """
    raise ApiRefusalError(refusal(status, error, message, *headers))


NOT_HERE: Final = refusal(404, "not_found", "There is nothing at this path")
"""For a VM without attachments. It does not tell whether other VMs have some."""
TOO_LARGE: Final = refusal(413, "too_large", "The request has too many bytes")


def failed(error: errors.AttachError) -> model.Answer:
    """Return the answer for an error of the engine."""
    status = error.status
    retry = [("Retry-After", RETRY[status])] if status in RETRY else []
    return refusal(status, error.name.removeprefix("attach-"), error.vm_text, *retry)


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


def status(now: AttachmentStatus) -> dict[str, Any]:
    """Return the document of a VM's status."""
    return {
        "ready": now.ready,
        **({} if now.ready else {"cause": errors.AttachDriverError(cause=now.cause).vm_text}),
        "used": now.used,
        "free": now.free,
        "quota": now.quota,
        "networks": [{"name": network.name, "mtu": network.mtu} for network in now.networks],
    }


CONTAINER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
IFNAME: Final = re.compile(r"[!-$&-.0-9;-~]{1,15}", re.ASCII)
"""Visible characters except / : and %, with which the kernel numbers devices. IFNAMSIZ of
linux/if.h is 16, with the final NUL."""
NETWORK: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)
BOOT_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
AVOID_MAX: Final = 64
"""VLAN ids that one request may exclude."""
LABELS_MAX: Final = 16
LABELS_BYTES: Final = 1024
"""Bytes of the names and values of all labels of an attachment: each list has them all."""
OWNER_MAX: Final = 128
LABEL_NAME_MAX: Final = 63
LABEL_MAX: Final = 256
IP_MAX: Final = 15
"""Characters of an IPv4 address."""
BODY_MAX: Final = 8192
"""Bytes of a request that makes an attachment."""
ENTRY_MAX: Final = 256
"""Bytes of an entry of a garbage collection's list: more than any valid one has."""

_WANTED: Final = frozenset({"network", "boot_id", "mac", "ip", "avoid", "owner", "labels"})
_COLLECT: Final = frozenset({"network", "owner", "valid"})
_ENTRY: Final = frozenset({"container", "ifname"})

T = TypeVar("T")


def is_container(text: str) -> bool:
    """Return whether *text* can be a container's id."""
    return CONTAINER.fullmatch(text) is not None


def is_ifname(text: str) -> bool:
    """Return whether *text* can be the name of a network device."""
    return IFNAME.fullmatch(text) is not None and text not in (".", "..")


def wanted(container: str, ifname: str, body: bytes) -> AttachmentRequest:
    """Return the attachment that a VM asks for.

    :raises ApiRefusalError: when a value has not its form.
    """
    document = _document(body, _WANTED)
    mac = _member(document, "mac", _text(17), "").lower()
    if mac and not model.is_unicast(mac):
        bad("mac", "a unicast MAC address with colons")
    boot_id = _member(document, "boot_id", _text(36), "").lower()
    if boot_id and not BOOT_ID.fullmatch(boot_id):
        bad("boot_id", "a UUID, as /proc/sys/kernel/random/boot_id has it")
    return AttachmentRequest(
        container=container,
        ifname=ifname,
        network=_network(document),
        owner=_member(document, "owner", _text(OWNER_MAX), ""),
        boot_id=boot_id,
        mac=mac,
        ip=_member(document, "ip", _ip, None),
        avoid=_member(document, "avoid", _avoid, frozenset()),
        labels=_member(document, "labels", _labels, {}),
    )


def collection(body: bytes) -> tuple[str, str, frozenset[tuple[str, str]]]:
    """Return the network, the owner and the attachments that stay, of a garbage collection.

    :raises ApiRefusalError: when a value is missing or has not its form.
    """
    document = _document(body, _COLLECT)
    for name in sorted(_COLLECT - document.keys()):
        bad(name, "in the body: nothing is removed without it")
    return (
        _network(document),
        _member(document, "owner", _text(OWNER_MAX), ""),
        _member(document, "valid", _valid, frozenset()),
    )


def bad(name: str, form: str) -> NoReturn:
    """Refuse a request because of one of its values.

    :param form: the form that it has to have.
    :raises ApiRefusalError: always.
    """
    refuse(400, "bad_request", f"{name} has to be {form}")


def _document(body: bytes, members: frozenset[str]) -> Mapping[str, Any]:
    try:
        document = strictjson.loads_object(body)
    except ValueError as error:
        refuse(400, "bad_request", f"The body is wrong: {error}")
    if not document.keys() <= members:
        names = ", ".join(sorted(members))
        refuse(400, "bad_request", f"The body has an unknown member; the members are {names}")
    return document


def _member(document: Mapping[str, Any], name: str, read: Callable[[Any], T], default: T) -> T:
    """Return a member of the document, read by *read*, which raises ValueError with the form."""
    value = document.get(name)
    if value is None:
        return default
    try:
        return read(value)
    except ValueError as error:
        bad(name, str(error))


def _network(document: Mapping[str, Any]) -> str:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not NETWORK.fullmatch(value):
            raise ValueError("the name of a network")
        return value

    name = _member(document, "network", read, "")
    return name or bad("network", "the name of a network")


def _text(longest: int) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or len(value) > longest or not value.isprintable():
            raise ValueError(f"printable text of at most {longest} characters")
        return value

    return read


def _ip(value: Any) -> IPv4Address:
    if isinstance(value, str) and len(value) <= IP_MAX:
        try:
            return IPv4Address(value)
        except ValueError:
            pass
    raise ValueError("an IPv4 address")


def _avoid(value: Any) -> frozenset[int]:
    if isinstance(value, list) and len(value) <= AVOID_MAX and all(map(_is_vid, value)):
        return frozenset(value)
    raise ValueError(f"a list of at most {AVOID_MAX} VLAN ids from 1 to {model.VID_MAX}")


def _is_vid(value: Any) -> bool:
    return type(value) is int and 1 <= value <= model.VID_MAX


def _labels(value: Any) -> dict[str, str]:
    if (
        isinstance(value, dict)
        and len(value) <= LABELS_MAX
        and all(1 <= len(name) <= LABEL_NAME_MAX and name.isprintable() for name in value)
        and all(_is_label(text) for text in value.values())
        and sum(len(text.encode()) for pair in value.items() for text in pair) <= LABELS_BYTES
    ):
        return value
    raise ValueError(
        f"an object of at most {LABELS_MAX} printable texts, with names of at most "
        f"{LABEL_NAME_MAX} characters and values of at most {LABEL_MAX}, of at most "
        f"{LABELS_BYTES} bytes together"
    )


def _is_label(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= LABEL_MAX and text.isprintable()


def _valid(value: Any) -> frozenset[tuple[str, str]]:
    if not isinstance(value, list) or not all(map(_is_entry, value)):
        raise ValueError("a list of objects, each with container and ifname")
    return frozenset((entry["container"], entry["ifname"]) for entry in value)


def _is_entry(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == _ENTRY
        and all(isinstance(text, str) for text in value.values())
        and is_container(value["container"])
        and is_ifname(value["ifname"])
    )
