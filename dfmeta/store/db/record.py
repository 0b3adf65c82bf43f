"""A record as a value, its document as JSON, its networks, and the halves that an answer needs.

Imports no database.

A document uses the member names of specification 003 where that has a name (``hostname``,
``ssh_keys``), so that documents put from the command line and documents pushed over HTTP look the
same.
"""

from __future__ import annotations

import enum
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

from dfmeta.errors import StoreError
from dfmeta.runtime import clock

REQUIRED: Final = "required"
HTTP_TOKENS: Final = ("off", "optional", REQUIRED)
"""Values of a record's ``http_tokens`` (see ``[store] http_tokens``)."""

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Content = Mapping[str, object] | bytes
"""A document, or user-data."""
_IPV4_BITS = 32
_MAPPED_BITS = 96
"""Bits before the IPv4 address in an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2)."""


def parse_network(text: str) -> Network:
    """Return the network that a text names: an address or a CIDR, with the host bits masked.

    An IPv4-mapped IPv6 network is returned as an IPv4 network.

    :raises ValueError: the text is neither.
    """
    if "%" in text:
        raise ValueError("an address with a zone is valid on one host only")
    network = ip_network(text, strict=False)
    if isinstance(network, IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


def parse_address(text: str) -> Address:
    """Return the address that a text names; an IPv4-mapped IPv6 address as an IPv4 address.

    :raises ValueError: the text is not an address.
    """
    if "%" in text:
        raise ValueError("an address with a zone is valid on one host only")
    address = ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def containing(address: Address) -> list[str]:
    """Return all networks that contain *address*, as :func:`str` writes them, longest first."""
    number, width = int(address), address.max_prefixlen
    family = socket.AF_INET if width == _IPV4_BITS else socket.AF_INET6
    networks = []
    for prefix in range(width, -1, -1):
        number = number >> (width - prefix) << (width - prefix)
        # The C library is 10 times as fast, but writes some IPv6 addresses with an IPv4 part.
        if family == socket.AF_INET6 and number >> _IPV4_BITS in (0, 0xFFFF):
            text = str(type(address)(number))
        else:
            text = socket.inet_ntop(family, number.to_bytes(width // 8, "big"))
        networks.append(f"{text}/{prefix}")
    return networks


class Keep(enum.Enum):
    """Type of :data:`KEEP`."""

    KEEP = enum.auto()


KEEP: Final = Keep.KEEP
"""Leaves a value unchanged, where None removes it."""


class Kind(enum.StrEnum):
    """The two halves of a record, each pushed and removed separately."""

    METADATA = "metadata"
    USERDATA = "userdata"

    @property
    def other(self) -> Kind:
        """Return the other half."""
        return Kind.USERDATA if self is Kind.METADATA else Kind.METADATA


@dataclass(frozen=True, slots=True)
class Record:
    """One instance in the store. Its ``repr`` contains no secrets."""

    id: str
    """The instance id, in lower case."""
    seed: bytes = field(repr=False)
    """Random bytes, created with the record."""
    created_at: datetime
    updated_at: datetime
    project_id: str | None = None
    metadata: str | None = field(default=None, repr=False)
    """The document, a JSON object as text. None: the instance has no document."""
    userdata: bytes | None = field(default=None, repr=False)
    """The user-data. None: the instance has no user-data, which differs from empty user-data."""
    password: bytes | None = field(default=None, repr=False)
    """The password that the guest posted; guests encrypt it, but dfmeta does not enforce that."""
    http_tokens: str | None = None
    """One of :data:`HTTP_TOKENS`; None: as configured."""
    metadata_fetched_at: datetime | None = None
    """When the document came from upstream; None: it was pushed, or does not exist."""
    userdata_fetched_at: datetime | None = None
    """When the user-data came from upstream; None: it was pushed, or does not exist."""
    derived: bool = False
    """Its document is made of a container's attachment, and is not in the store."""

    @property
    def empty(self) -> bool:
        """Return whether it has neither document nor user-data: it does not count as a record."""
        return self.metadata is None and self.userdata is None

    def fetched_at(self, kind: Kind) -> datetime | None:
        """Return when a half came from upstream; None: it was pushed, or does not exist."""
        return self.metadata_fetched_at if kind is Kind.METADATA else self.userdata_fetched_at

    def has(self, kind: Kind) -> bool:
        """Return whether the record has that half; an empty half counts."""
        return (self.metadata if kind is Kind.METADATA else self.userdata) is not None

    def pushed(self, kind: Kind) -> bool:
        """Return whether the record has that half, and it was pushed."""
        return self.has(kind) and self.fetched_at(kind) is None


@dataclass(frozen=True, slots=True)
class Summary:
    """A record without its large and secret values."""

    id: str
    updated_at: datetime
    project_id: str | None
    metadata: str | None = field(repr=False)
    userdata_bytes: int | None
    password_set: bool


@dataclass(frozen=True, slots=True)
class Whole:
    """A document that replaces the stored one, where a plain mapping is merged into it."""

    document: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """One half of a record, which replaces the stored one. The other half stays."""

    kind: Kind
    record_id: str
    """In lower case."""
    content: Content = field(repr=False)
    """A document for METADATA, bytes for USERDATA. Validated by the caller."""
    networks: Sequence[Network] | Keep = KEEP
    """All addresses of the record, in order; repeated ones count once. They replace the stored
    ones. KEEP: an answer of an upstream store has no ``ipAddresses``."""
    http_tokens: str | Keep | None = KEEP

    def names(self, address: Address) -> bool:
        """Return whether the record has an address."""
        return self.networks is not KEEP and any(address in network for network in self.networks)


@dataclass(frozen=True, slots=True)
class PutResult:
    """Result of a put."""

    created: bool
    changed: tuple[str, ...]
    """Names of the changed members of the document, and of ``project_id``, ``userdata``,
    ``http_tokens`` and ``addresses`` if they have changed."""
    compared: bool = True
    """False: the previous record is not known, and ``changed`` names all written values."""


def parse_document(record_id: str, text: str | None) -> dict[str, Any]:
    """Return a record's document; ``{}`` if it has no document.

    :raises StoreError: the text is not a JSON object (RFC 8259: without NaN and Infinity).
    """
    if text is None:
        return {}
    try:
        parsed = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise StoreError(cause=f"the document of record {record_id} is not a JSON object")
    return parsed


def merge_patch(target: object, patch: Mapping[str, object]) -> dict[str, object]:
    """Return ``target`` with a JSON merge patch applied that is an object (RFC 7396, section 2)."""
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            merged[name] = merge_patch(merged.get(name), value)
        else:
            merged[name] = value
    return merged


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def dump_document(document: Mapping[str, object]) -> str:
    """Return a document as the text that is stored.

    :raises StoreError: it contains a value that JSON in UTF-8 cannot hold (a lone surrogate, NaN).
    """
    try:
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(cause="the document is not JSON that can be stored") from error
    return text


def is_older(document: Mapping[str, object], stored: str) -> bool:
    """Return whether a document's ``updated_at`` is before that of the stored document.

    Two timestamps (RFC 3339) are compared as times, other strings as text. If either is not a
    string, the document is not older.
    """
    try:
        before = json.loads(stored).get("updated_at")
    except (ValueError, AttributeError, RecursionError):
        return False
    new = document.get("updated_at")
    if not isinstance(before, str) or not isinstance(new, str):
        return False
    try:
        return datetime.fromisoformat(new) < datetime.fromisoformat(before)
    except (ValueError, TypeError):
        # Not timestamps, or only one of them has a time zone.
        return new < before


def changed_columns(
    before: Record, *, patch: Mapping[str, object] | Whole, columns: Mapping[str, object]
) -> tuple[dict[str, Any], list[str]]:
    """Return the columns to write, and the names of the members and columns that change."""
    old = parse_document(before.id, before.metadata)
    if isinstance(patch, Whole):
        new = dict(patch.document)
        named: Mapping[str, object] = {**new, **old}
    else:
        new, named = merge_patch(old, patch), patch
    changed = [name for name in named if old.get(name) != new.get(name)]
    values: dict[str, Any] = {}
    if changed or before.empty:
        values |= {"metadata": dump_document(new), "metadata_fetched_at": None}
    for name, value in columns.items():
        if value is not KEEP and value != getattr(before, name):
            values[name] = value
            changed.append(name)
    if "userdata" in values:
        values["userdata_fetched_at"] = None
    return values, changed


def half_columns(before: Record, push: Push, *, fetched: bool) -> dict[str, Any] | None:
    """Return the columns that replace a half of a record; None if the stored half is newer."""
    value: str | bytes
    if isinstance(push.content, bytes):
        value = push.content
    elif before.metadata is not None and is_older(push.content, before.metadata):
        return None
    else:
        value = dump_document(push.content)
    now, name = stamp(), f"{push.kind}_fetched_at"
    return {push.kind.value: value, name: now if fetched else None, "updated_at": now}


def stamp() -> datetime:
    """Return the time of writing."""
    return datetime.fromtimestamp(clock.wall(), UTC)


@dataclass(frozen=True, slots=True)
class Need:
    """The parts of a record that have to be known before a path can be answered."""

    halves: tuple[Kind, ...] = ()
    """Halves of which the answer shows the contents or absence, in the order of lookups."""
    record: bool = False
    """Whether the path exists for every record: if the record has none of ``halves``, the answer
    still depends on the existence of the other half."""


HERE: Final = Need()
"""The parts that are here are sufficient."""
ANY_HALF: Final = Need(record=True)
"""Of a path that shows neither half: the existence of the record is sufficient."""
METADATA: Final = Need((Kind.METADATA,), record=True)
USERDATA: Final = Need((Kind.USERDATA,), record=True)
METADATA_ALONE: Final = Need((Kind.METADATA,))
"""Of a path that does not exist for a record without metadata."""
USERDATA_ALONE: Final = Need((Kind.USERDATA,))
BOTH: Final = Need((Kind.METADATA, Kind.USERDATA))
