"""Parse the input of an import: NoCloud seeds, and bodies of the admin API. Pure functions.

Each function raises ValueError with a cause that does not quote user-data.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dfmeta.devices import validate_in
from dfmeta.errors import DeviceError
from dfmeta.store import strict, strictjson
from dfmeta.store.api.requests import parse_id
from dfmeta.store.db.record import HTTP_TOKENS, KEEP, Keep, Kind, Network, Push, parse_network

METADATA: Final = "meta-data"
USERDATA: Final = "user-data"
VENDOR_DATA: Final = "vendor-data"
NETWORK_CONFIG: Final = "network-config"
FILES: Final = (METADATA, USERDATA, VENDOR_DATA, NETWORK_CONFIG)
"""Files of a seed (https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html)."""

_KEYS: Final = ("public-keys", "public_keys")
_COPIED: Final = {
    "availability-zone": "availability_zone",
    "availability_zone": "availability_zone",
    "region": "region",
    "launch-index": "launch_index",
    "meta": "meta",
}
"""Member of a seed's meta-data → member of the document with the same meaning."""
_IGNORED: Final = frozenset(
    {"instance-id", "local-hostname", "hostname", "dsmode", *_KEYS, *_COPIED}
)


@dataclass(frozen=True, slots=True)
class Seed:
    """A NoCloud seed in the form of a record."""

    instance_id: str
    """As in the seed; empty: the seed has none."""
    hostname: str
    document: dict[str, Any] = field(repr=False)
    userdata: bytes | None = field(repr=False)
    """None: the seed has no such file, which is not the same as an empty file."""
    left_out: tuple[str, ...]
    """Members of its meta-data that the store cannot keep."""


def parse_seed(files: Mapping[str, bytes]) -> Seed:
    """Return the seed in files.

    :param files: content of each of :data:`FILES` by name; meta-data or user-data has to be there.
    :raises ValueError: a file is invalid; the message names it.
    """
    content = _named(METADATA, _metadata, files.get(METADATA, b""))
    document: dict[str, Any] = {}
    hostname = _text(content, "local-hostname") or _text(content, "hostname")
    if hostname:
        document["hostname"] = hostname
    if keys := [line for name in _KEYS for line in _lines(content.get(name))]:
        document["ssh_keys"] = keys
    for name, member in _COPIED.items():
        if content.get(name) is not None:
            document[member] = content[name]
    if vendor_data := _named(VENDOR_DATA, strict.decode, files.get(VENDOR_DATA, b"")):
        document["vendor_data"] = vendor_data
    if network_config := _named(NETWORK_CONFIG, _network_config, files.get(NETWORK_CONFIG, b"")):
        document["network_config"] = network_config
    _named(METADATA, _storable, document)
    return Seed(
        instance_id=_text(content, "instance-id"),
        hostname=hostname,
        document=document,
        userdata=files.get(USERDATA),
        left_out=tuple(str(name) for name in content if name not in _IGNORED),
    )


def parse_line(line: bytes) -> list[Push]:
    """Return the pushes in a body of the admin API: of one half, or of both halves in one body.

    :raises ValueError: the body is invalid; the message says why.
    """
    body = strict.parse_object(line.strip())
    record_id = parse_id(body["id"]) if isinstance(body.get("id"), str) else None
    if not record_id:
        raise ValueError("its id is not a UUID with dashes")
    contents: dict[Kind, Mapping[str, object] | bytes] = {}
    if "metadata" in body:
        contents[Kind.METADATA] = _document(body["metadata"])
    if "userdata" in body:
        contents[Kind.USERDATA] = _userdata(body["userdata"], body.get("userdata_encoding"))
    if not contents:
        raise ValueError("it has neither metadata nor userdata")
    networks, tokens = _networks(body.get("ipAddresses")), _http_tokens(body.get("http_tokens"))
    return [
        Push(kind=kind, record_id=record_id, content=one, networks=networks, http_tokens=tokens)
        for kind, one in contents.items()
    ]


def body_of(push: Push) -> dict[str, object]:
    """Return the body of a push for the admin API."""
    body: dict[str, object] = {
        "id": push.record_id,
        "ipAddresses": [str(network) for network in push.networks],
    }
    if isinstance(push.content, bytes):
        body["userdata"] = base64.b64encode(push.content).decode()
        body["userdata_encoding"] = "base64"
    else:
        body["metadata"] = dict(push.content)
    if push.http_tokens is not KEEP:
        body["http_tokens"] = push.http_tokens
    return body


def _named(name: str, read: Any, value: Any) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _metadata(data: bytes) -> dict[str, Any]:
    return strict.parse_mapping(data) if data.strip() else {}


def _network_config(data: bytes) -> str:
    text = strict.decode(data)
    if not text.strip():
        return ""
    strict.parse_mapping(text)
    strictjson.check(text)
    return text


def _storable(document: object) -> None:
    """Check that YAML has produced no value that JSON does not have, such as a date."""
    left = [document]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += [*one.keys(), *one.values()]
            if not all(isinstance(name, str) for name in one):
                raise ValueError("a name in it is not a string")
        elif isinstance(one, list):
            left += one
        elif isinstance(one, float) and not math.isfinite(one):
            raise ValueError("a number in it is infinite or not a number")
        elif one is not None and not isinstance(one, str | int | float):
            raise ValueError(f"it has a {type(one).__name__} in it: put that value in quotes")
    strictjson.check(document)


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return str(value).strip() if isinstance(value, str | int) else ""


def _lines(value: object) -> list[str]:
    """Return SSH keys; cloud-init accepts a text, a list, or an object of texts and lists."""
    if isinstance(value, str):
        return [line.strip() for line in value.splitlines() if line.strip()]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [line for part in parts for line in _lines(part)]


def _document(value: object) -> Mapping[str, object]:
    if isinstance(value, str):
        try:
            value = strict.parse_object(value)
        except ValueError as error:
            raise ValueError(f"its metadata, a string: {error}") from None
    if isinstance(value, dict):
        _check_devices(value)
        return value
    raise ValueError("its metadata is not a JSON object")


def _check_devices(document: Mapping[str, object]) -> None:
    try:
        validate_in(document)
    except DeviceError as error:
        raise ValueError(f"in its metadata, {error.path}: {error.cause}") from None


def _userdata(value: object, encoding: object) -> bytes:
    if encoding not in (None, "plain", "base64"):
        raise ValueError("its userdata_encoding is neither plain nor base64")
    if value is not None and not isinstance(value, str):
        raise ValueError("its userdata is not a string")
    text = value or ""
    if encoding != "base64":
        return text.encode()
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        raise ValueError("its userdata is not base64") from None


def _networks(value: object) -> tuple[Network, ...]:
    if value is not None and not isinstance(value, list):
        raise ValueError("its ipAddresses is not a list")
    networks = []
    for position, text in enumerate(value or []):
        try:
            networks.append(parse_network(text if isinstance(text, str) else ""))
        except ValueError:
            cause = f"its ipAddresses[{position}] is neither an address nor a block"
            raise ValueError(cause) from None
    return tuple(networks)


def _http_tokens(value: object) -> str | Keep:
    if value is None:
        return KEEP
    if value not in HTTP_TOKENS:
        raise ValueError(f"its http_tokens is not one of {', '.join(HTTP_TOKENS)}")
    return str(value)
