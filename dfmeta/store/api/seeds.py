"""What an import reads: seeds of cloud-init's NoCloud, and bodies of the admin API. Pure functions.

Each raises ValueError with a cause that quotes no user-data.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dfmeta.devices import validate_in
from dfmeta.exceptions import DeviceError
from dfmeta.store import strict, strictjson
from dfmeta.store.db.networks import Network, parse_network
from dfmeta.store.db.record import KEEP, Keep, Kind, Push
from dfmeta.store.db.schema import HTTP_TOKENS

METADATA: Final = "meta-data"
USERDATA: Final = "user-data"
VENDOR_DATA: Final = "vendor-data"
NETWORK_CONFIG: Final = "network-config"
FILES: Final = (METADATA, USERDATA, VENDOR_DATA, NETWORK_CONFIG)
"""A seed's (https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html)."""

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_KEYS: Final = ("public-keys", "public_keys")
_COPIED: Final = {
    "availability-zone": "availability_zone",
    "availability_zone": "availability_zone",
    "region": "region",
    "launch-index": "launch_index",
    "meta": "meta",
}
"""A seed's member and the document's that says the same."""
_IGNORED: Final = frozenset(
    {"instance-id", "local-hostname", "hostname", "dsmode", *_KEYS, *_COPIED}
)


def uuid_of(text: str) -> str:
    """Return a UUID with dashes in lower case; empty for anything else."""
    lowered = text.lower()
    return lowered if _UUID.fullmatch(lowered) else ""


@dataclass(frozen=True, slots=True)
class Seed:
    """A NoCloud seed as a record has it."""

    instance_id: str
    """As the seed has it; empty: it has none."""
    hostname: str
    document: dict[str, Any] = field(repr=False)
    userdata: bytes | None = field(repr=False)
    """None: there is no such file, which is not the same as an empty one."""
    left_out: tuple[str, ...]
    """Members of its meta-data that the store has no place for."""


def parse_seed(files: Mapping[str, bytes]) -> Seed:
    """Read a seed's files, by name; of :data:`FILES` at least meta-data or user-data is there.

    :raises ValueError: naming the file.
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
    """Read a body of the admin API's: of /device-metadata, of /device-userdata, or both in one.

    :raises ValueError: saying what is wrong with it.
    """
    body = strict.parse_object(line.strip())
    record_id = uuid_of(body["id"]) if isinstance(body.get("id"), str) else ""
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
    """Return what the admin API takes as that push."""
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
    """See that YAML has made nothing that JSON does not have, such as a date."""
    left = [document]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += [*one.keys(), *one.values()]
            if not all(isinstance(name, str) for name in one):
                raise ValueError("a name in it is no text")
        elif isinstance(one, list):
            left += one
        elif isinstance(one, float) and not math.isfinite(one):
            raise ValueError("a number in it is none")
        elif one is not None and not isinstance(one, str | int | float):
            raise ValueError(f"it has a {type(one).__name__} in it: put that between quotes")
    strictjson.check(document)


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return str(value).strip() if isinstance(value, str | int) else ""


def _lines(value: object) -> list[str]:
    """Return keys, which cloud-init takes as a text, a list, or lists and texts by name."""
    if isinstance(value, str):
        return [line.strip() for line in value.splitlines() if line.strip()]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [line for part in parts for line in _lines(part)]


def _document(value: object) -> Mapping[str, object]:
    if isinstance(value, str):
        try:
            value = strict.parse_object(value)
        except ValueError as error:
            raise ValueError(f"its metadata, a text: {error}") from None
    if isinstance(value, dict):
        _check_devices(value)
        return value
    raise ValueError("its metadata is no JSON object")


def _check_devices(document: Mapping[str, object]) -> None:
    try:
        validate_in(document)
    except DeviceError as error:
        raise ValueError(f"in its metadata, {error.path}: {error.cause}") from None


def _userdata(value: object, encoding: object) -> bytes:
    if encoding not in (None, "plain", "base64"):
        raise ValueError("its userdata_encoding is neither plain nor base64")
    if value is not None and not isinstance(value, str):
        raise ValueError("its userdata is no text")
    text = value or ""
    if encoding != "base64":
        return text.encode()
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("its userdata is no base64") from None


def _networks(value: object) -> tuple[Network, ...]:
    if value is not None and not isinstance(value, list):
        raise ValueError("its ipAddresses are no list")
    networks = []
    for position, text in enumerate(value or []):
        try:
            networks.append(parse_network(text if isinstance(text, str) else ""))
        except ValueError:
            raise ValueError(f"its ipAddresses[{position}] is no address and no block") from None
    return tuple(networks)


def _http_tokens(value: object) -> str | Keep:
    if value is None:
        return KEEP
    if value not in HTTP_TOKENS:
        raise ValueError(f"its http_tokens is none of {', '.join(HTTP_TOKENS)}")
    return str(value)
