"""Validation of requests to the admin API, and the changes of devices that they ask for. Pure.

Errors have the words of hollow-metadataservice, one for each invalid member, in the order of its
fields. Trust: none; a client that may push can still push anything. The results are stored without
further checks. A device is validated together with those that the document has already, which may
come from another program and be of any type (specification 002, "REST API impact").
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dfmeta.devices import validate, validate_in
from dfmeta.devices.schema import ADDRESSES, NONE, SCHEMA
from dfmeta.errors import ApiError, DeviceError
from dfmeta.store import strict, strictjson
from dfmeta.store.db.record import (
    HTTP_TOKENS,
    KEEP,
    Address,
    Content,
    Keep,
    Kind,
    Network,
    Push,
    parse_address,
    parse_network,
)
from dfmeta.store.guest.values import unusable

ADDRESSES_MAX: Final = 1024
"""Maximum number of addresses of an instance; writing more would block the database for long."""
ENCODINGS: Final = ("plain", "base64")
"""Values of ``userdata_encoding``; the first is the default."""

SELECTORS: Final = ("mac", "serial", "address", "path", "devname")
"""Query parameters that select devices."""
TYPES: Final = ("nic", "disk")
"""Values of the query parameter ``type``, which may accompany a selector."""

INVALID: Final = "Invalid request"
INVALID_BODY: Final = "invalid request body"

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MAC: Final = re.compile(SCHEMA["$defs"]["mac"]["pattern"])
_LINE_BREAKS: Final = str.maketrans("", "", "\r\n")

MEMBER: Final = "devices"
_KNOWN_BY: Final = (("mac", "devname"), ("serial", "path"), ("path",))
"""Members that identify a device without an address: all members of the first tuple whose first
member the device has. A container's NICs may have one MAC and differ by name (specification 002,
the LXC example)."""


def parse_push(kind: Kind, body: bytes) -> Push:
    """Return the push in a body; its id is in lower case.

    :raises ApiError: 400, with an error for each invalid member.
    """
    try:
        members = strictjson.loads(body)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        raise ApiError(status=400, message=INVALID_BODY)
    return push_of(kind, members)


def push_of(kind: Kind, members: Mapping[str, Any], *, check_keys: bool = True) -> Push:
    """Return the push in the members of a body; its id is in lower case.

    :param check_keys: refuse keys that guests cannot use. Else guests do not get them.
    :raises ApiError: 400, with an error for each invalid member.
    """
    errors: list[str] = []
    record_id = _record_id(members.get("id"), errors)
    content: Content
    if kind is Kind.METADATA:
        content = _document(members.get("metadata"), errors, check_keys=check_keys)
    else:
        content = _userdata(members.get("userdata"), members.get("userdata_encoding"), errors)
    networks = _networks(members.get("ipAddresses"), errors)
    http_tokens = _http_tokens(members.get("http_tokens", KEEP), errors)
    if errors:
        raise ApiError(status=400, message=INVALID, errors=errors)
    return Push(
        kind=kind,
        record_id=record_id,
        content=content,
        networks=networks,
        http_tokens=http_tokens,
    )


def parse_line(line: bytes) -> list[Push]:
    """Return the pushes in a body of the admin API: of one half, or of both halves in one body.

    :raises ValueError: the body is invalid; the message says why.
    """
    body = strict.parse_object(line.strip())
    kinds = [kind for kind in Kind if kind.value in body]
    if not kinds:
        raise ValueError("it has neither metadata nor userdata")
    try:
        return [push_of(kind, body, check_keys=False) for kind in kinds]
    except ApiError as error:
        raise ValueError(f"it is invalid: {', '.join(error.errors)}") from None


def body_of(push: Push) -> dict[str, object]:
    """Return the body of a push for the admin API."""
    networks = () if push.networks is KEEP else push.networks
    body: dict[str, object] = {"id": push.record_id, "ipAddresses": [*map(str, networks)]}
    if isinstance(push.content, bytes):
        body["userdata"] = base64.b64encode(push.content).decode()
        body["userdata_encoding"] = "base64"
    else:
        body["metadata"] = dict(push.content)
    if push.http_tokens is not KEEP:
        body["http_tokens"] = push.http_tokens
    return body


def parse_id(text: str) -> str | None:
    """Return an instance's id in lower case; None if *text* is not a UUID with dashes."""
    return text.lower() if _UUID.fullmatch(text) else None


def parse_query(values: list[str]) -> Address:
    """Return the address in the query parameter ``ip_address``.

    :param values: all values of the parameter.
    :raises ApiError: 400 unless there is exactly one value, an address.
    """
    if not any(values):
        raise invalid("ip_address", "required")
    try:
        (text,) = values
        return parse_address(text)
    except ValueError:
        raise invalid("ip_address", "ip_addr") from None


def parse_after(values: list[str]) -> str:
    """Return the id in the query parameter ``after``, in lower case; empty: the first page.

    :param values: all values of the parameter.
    :raises ApiError: 400 unless there is no value, or exactly one, a UUID.
    """
    after = parse_id(values[0]) if len(values) == 1 else None
    if values and after is None:
        raise invalid("after", "uuid")
    return after or ""


def parse_device(body: bytes) -> dict[str, Any]:
    """Return the device in a body. Its members are not validated.

    :raises ApiError: 400 unless the body is a JSON object.
    """
    try:
        return strictjson.loads_object(body)
    except ValueError:
        raise ApiError(status=400, message=INVALID_BODY) from None


def parse_selector(query: Mapping[str, list[str]]) -> Selector:
    """Return the selector of devices in a query.

    :param query: the whole query; ``address`` is ``BUS:ADDRESS``.
    :raises ApiError: 400 unless the query has one of :data:`SELECTORS`, once, at most one ``type``
        out of :data:`TYPES`, and nothing else: it should be clear which devices are removed.
    """
    types = query.get("type", [])
    given = [(name, text) for name, texts in query.items() if name != "type" for text in texts]
    bus, _, address = query.get("address", [""])[0].partition(":")
    kind = {"type": types[0]} if types else {}
    match given:
        case _ if types and not (len(types) == 1 and types[0] in TYPES):
            failed = ("type", "oneof")
        case [("mac", text)] if _MAC.search(text):
            return Selector({**kind, "mac": text.lower()})
        case [("address", _)] if bus != NONE and re.fullmatch(ADDRESSES.get(bus, "(?!)"), address):
            return Selector({**kind, "bus": bus, "address": address})
        case [("serial" | "path" | "devname" as name, text)] if text:
            return Selector({**kind, name: text})
        case [("mac", text)] if text:
            failed = ("mac", "mac")
        case [("address", text)] if text:
            failed = ("address", "bus:address")
        case _:
            failed = ("mac|serial|address|path|devname", "oneof")
    raise invalid(*failed)


def invalid(path: str, condition: str) -> ApiError:
    """Return the 400 for a request that breaks a condition."""
    return ApiError(status=400, message=INVALID, errors=[_failed(path, condition)])


def _failed(path: str, condition: str) -> str:
    return f"validation failed on {path}, condition: {condition}"


def _record_id(value: Any, errors: list[str]) -> str:
    if value is None or value == "":
        errors.append(_failed("id", "required"))
        return ""
    record_id = parse_id(value) if isinstance(value, str) else None
    if record_id is None:
        errors.append(_failed("id", "uuid"))
    return record_id or ""


def _document(value: Any, errors: list[str], *, check_keys: bool) -> Mapping[str, object]:
    """Return the document, which is an object, or a string that contains one.

    The member ``devices`` is validated, because guests make udev rules of it, and so are keys, of
    which they make lines of authorized_keys.
    """
    if value is None or value == "":
        errors.append(_failed("metadata", "required"))
        return {}
    if isinstance(value, str):
        try:
            value = strictjson.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, dict):
        errors.append(_failed("metadata", "json"))
        return {}
    try:
        validate_in(value)
    except DeviceError as error:
        errors.append(_failed(f"metadata.{error.path}", "device"))
    if check_keys:
        errors += (_failed(f"metadata.{place}", "ssh_key|x509") for place in unusable(value))
    return value


def _userdata(value: Any, encoding: Any, errors: list[str]) -> bytes:
    """Return the bytes of the user-data; absent user-data is the same as empty user-data."""
    text = "" if value is None else value
    if not isinstance(text, str):
        errors.append(_failed("userdata", "string"))
    encoding = ENCODINGS[0] if encoding is None else encoding
    if encoding not in ENCODINGS:
        errors.append(_failed("userdata_encoding", "oneof"))
    if not isinstance(text, str) or encoding not in ENCODINGS:
        return b""
    if encoding == "plain":
        return text.encode()
    try:
        return base64.b64decode(text.translate(_LINE_BREAKS), validate=True)
    except ValueError:
        errors.append(_failed("userdata", "base64"))
        return b""


def _networks(value: Any, errors: list[str]) -> tuple[Network, ...]:
    """Return all addresses in their order, each once."""
    if value is None:
        return ()
    if not isinstance(value, list):
        errors.append(_failed("ipAddresses", "array"))
        return ()
    if len(value) > ADDRESSES_MAX:
        errors.append(_failed("ipAddresses", "max"))
        return ()
    networks: dict[Network, None] = {}
    for index, text in enumerate(value):
        try:
            # ipaddress accepts a number as an address, too.
            networks[parse_network(text if isinstance(text, str) else "")] = None
        except ValueError:
            errors.append(_failed(f"ipAddresses[{index}]", "ip_addr|cidr"))
    return tuple(networks)


def _http_tokens(value: Any, errors: list[str]) -> str | Keep | None:
    if isinstance(value, Keep) or value is None:
        return value
    if isinstance(value, str) and value in HTTP_TOKENS:
        return value
    errors.append(_failed("http_tokens", "oneof"))
    return KEEP


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects the devices that have all of these members. MACs are in lower case."""

    members: Mapping[str, str]

    def means(self, device: object) -> bool:
        """Whether a device is selected."""
        return isinstance(device, dict) and all(
            _member(device, name) == value for name, value in self.members.items()
        )


def devices_in(document: Mapping[str, Any]) -> list[Any]:
    """Return a document's devices as they are stored; empty if they are not a list."""
    devices = document.get(MEMBER)
    return devices if isinstance(devices, list) else []


def attach(document: Mapping[str, Any], device: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with *device* added, or in the place of the same device.

    The same device has the same type, bus and address; without an address the same MAC and name,
    or the same serial and path, or the same path. A device without any of these is added, unless
    the document has an equal one: it is unknown which device it would replace.

    :raises DeviceError: the devices break a rule; ``path`` is the place in the new list.
    """
    before = document.get(MEMBER, [])
    # A value that is not a list is passed on as it is, and the validation refuses it.
    devices = _with(before, device) if isinstance(before, list) else before
    validate({MEMBER: devices})
    return {**document, MEMBER: devices}


def detach(document: Mapping[str, Any], selector: Selector) -> dict[str, Any] | None:
    """Return a document without the selected devices; None if it has none of them.

    :raises DeviceError: the selected devices are of several types, and the selector has no type.
        A bus numbers NICs and disks separately: Xen's vif 0 and vbd 0 are two devices.
    """
    before = devices_in(document)
    meant = [device for device in before if selector.means(device)]
    if not meant:
        return None
    types = [device.get("type") for device in meant]
    if "type" not in selector.members and any(kind != types[0] for kind in types):
        raise DeviceError(path=MEMBER, cause="devices of several types are selected")
    return {**document, MEMBER: [device for device in before if not selector.means(device)]}


def dump_devices(devices: list[Any]) -> bytes:
    """Return devices as JSON."""
    return json.dumps(devices, ensure_ascii=False, separators=(",", ":")).encode()


def _with(before: list[Any], device: Mapping[str, Any]) -> list[Any]:
    identity = _identity(device)
    if identity is None:
        return before if device in before else [*before, device]
    same = [number for number, other in enumerate(before) if _identity(other) == identity]
    if not same:
        return [*before, device]
    kept = [other for number, other in enumerate(before) if number not in same[1:]]
    kept[same[0]] = device
    return kept


def _identity(device: object) -> object:
    """Return a value that is equal for the same device, or None. *device* is not validated."""
    if not isinstance(device, Mapping):
        return None
    for names in (("address",), *_KNOWN_BY):
        values = [_member(device, name) for name in names]
        if values[0] and (names[0], values[0]) != ("address", NONE):
            return device.get("type"), device.get("bus"), names, values
    return None


def _member(device: Mapping[str, Any], name: str) -> object:
    value = device.get(name)
    return value.lower() if name == "mac" and isinstance(value, str) else value
