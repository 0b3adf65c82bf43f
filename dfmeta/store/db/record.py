"""A record as a value, and its document as JSON.

A document has the member names that specification 003 uses where it has one (``hostname``,
``ssh_keys``), so that what is put from the command line and what is pushed over HTTP read the same.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from dfmeta.exceptions import StoreError
from dfmeta.store.db.networks import Network


class Keep(enum.Enum):
    """Type of :data:`KEEP`."""

    KEEP = enum.auto()


KEEP: Final = Keep.KEEP
"""Leaves a value as it is, where None removes it."""


class Kind(enum.StrEnum):
    """The two halves of a record, which are pushed and removed each by itself."""

    METADATA = "metadata"
    USERDATA = "userdata"

    @property
    def other(self) -> Kind:
        """The half that this one is not."""
        return Kind.USERDATA if self is Kind.METADATA else Kind.METADATA


@dataclass(frozen=True, slots=True)
class Record:
    """All that the store has of one instance. Secrets stay out of its ``repr``."""

    id: str
    """Lower case."""
    seed: bytes = field(repr=False)
    """Random bytes, made when the record was."""
    created_at: datetime
    updated_at: datetime
    project_id: str | None = None
    metadata: str | None = field(default=None, repr=False)
    """The document, a JSON object as text. None: the instance has none."""
    userdata: bytes | None = field(default=None, repr=False)
    """None: the instance has none, which is not the same as empty."""
    password: bytes | None = field(default=None, repr=False)
    """What the guest posted; guests encrypt it, but nothing makes them."""
    http_tokens: str | None = None
    """One of :data:`~dfmeta.store.db.schema.HTTP_TOKENS`; None: as configured."""
    metadata_fetched_at: datetime | None = None
    """When the document came from upstream; None: it was pushed, or there is none."""
    userdata_fetched_at: datetime | None = None
    """The same of the user-data."""

    @property
    def empty(self) -> bool:
        """Whether it has neither document nor user-data, and so counts as no record."""
        return self.metadata is None and self.userdata is None

    def fetched_at(self, kind: Kind) -> datetime | None:
        """When a half came from upstream; None: it was pushed, or there is none."""
        return self.metadata_fetched_at if kind is Kind.METADATA else self.userdata_fetched_at

    def has(self, kind: Kind) -> bool:
        """Whether it has that half; an empty one is one."""
        return (self.metadata if kind is Kind.METADATA else self.userdata) is not None

    def pushed(self, kind: Kind) -> bool:
        """Whether it has that half, and not from upstream."""
        return self.has(kind) and self.fetched_at(kind) is None


@dataclass(frozen=True, slots=True)
class Summary:
    """A record without what is large or secret."""

    id: str
    updated_at: datetime
    project_id: str | None
    metadata: str | None = field(repr=False)
    userdata_bytes: int | None
    password_set: bool


@dataclass(frozen=True, slots=True)
class Whole:
    """A document that takes the place of the one before, where a mapping changes it."""

    document: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """One half of a record with all of its addresses, to take the place of what there is."""

    kind: Kind
    """Which half. The other one stays."""
    record_id: str
    content: Mapping[str, object] | bytes = field(repr=False)
    """A document for METADATA, bytes for USERDATA. Validated by the caller."""
    networks: Sequence[Network]
    """In their order; one that is there twice counts once."""
    http_tokens: str | Keep | None = KEEP
    fetched: bool = False
    """It was asked for upstream, not pushed."""


@dataclass(frozen=True, slots=True)
class PutResult:
    """What a put did."""

    created: bool
    changed: tuple[str, ...]
    """The document's members, ``project_id``, ``userdata``, ``http_tokens`` and ``addresses``,
    where they are not as before."""
    compared: bool = True
    """False: what was there before is not known; ``changed`` is what was written."""


def parse_document(record_id: str, text: str | None) -> dict[str, Any]:
    """Return a record's document; ``{}`` when it has none.

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
    """Return ``target`` changed by a JSON merge patch that is an object (RFC 7396, section 2)."""
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
    """Return a document as it is stored.

    :raises StoreError: something in it is no JSON that UTF-8 can hold (a lone surrogate, NaN).
    """
    try:
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(cause="the document is not JSON that can be stored") from error
    return text


def is_older(document: Mapping[str, object], stored: str) -> bool:
    """Whether a document's ``updated_at`` is before the stored one's; no strings: it is not.

    Moments are compared (RFC 3339) where both are, texts otherwise.
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
        # Not moments, or one of them without its zone.
        return new < before
