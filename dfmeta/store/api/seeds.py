"""Parse the input of an import: NoCloud seeds, and bodies of the admin API. Pure functions.

Each function raises ValueError with a cause that does not quote user-data.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dfmeta.errors import ApiError
from dfmeta.store import strict, strictjson
from dfmeta.store.api.requests import push_of
from dfmeta.store.db.record import KEEP, Kind, Push

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
    metadata = files.get(METADATA, b"").strip()
    content = _named(METADATA, strict.parse_mapping, metadata) if metadata else {}
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


def _named(name: str, read: Any, value: Any) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


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
        value = left.pop()
        if isinstance(value, dict):
            left += [*value.keys(), *value.values()]
            if not all(isinstance(name, str) for name in value):
                raise ValueError("a name in it is not a string")
        elif isinstance(value, list):
            left += value
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError("a number in it is infinite or not a number")
        elif value is not None and not isinstance(value, str | int | float):
            raise ValueError(f"it has a {type(value).__name__} in it: put that value in quotes")
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
