"""What a guest is told, as one value: the same facts under every dialect. Pure functions.

Trust: a document is the operator's, but may have been written by another program. A member of
another type than expected, or with control characters in it, counts as not there; nothing in a
document can make a listing name what does not exist.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dfmeta.store.repository import Record, parse_document

RANDOM_SEED_BYTES: Final = 512
"""As many as Nova gives (nova/api/metadata/base.py)."""
USERDATA_TYPE: Final = "application/octet-stream"
"""Any bytes: gzip, MIME, scripts."""
KEY_NAME_MAX: Final = 64
LABEL_MAX: Final = 63
"""Longest label of a host name (RFC 1123, 2.1)."""

_UNPRINTABLE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode's categories of controls, surrogates, line and paragraph separators."""
_COMMENT_FIELD: Final = 2
"""An OpenSSH public key line: type, base64, comment (sshd(8), AUTHORIZED_KEYS FILE FORMAT)."""


@dataclass(frozen=True, slots=True)
class Key:
    """An SSH public key under a name that is safe in a listing and unique in its document."""

    name: str
    data: str
    """The whole OpenSSH line, without a line break."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a guest may learn of itself. Secrets stay out of its ``repr``."""

    instance_id: str
    hostname: str
    """Never empty."""
    name: str
    """Never empty."""
    zone: str
    """Availability zone; empty: not known."""
    project_id: str
    """Empty: not known."""
    keys: tuple[Key, ...]
    meta: Mapping[str, object]
    random_seed: bytes = field(repr=False)
    """The same for as long as the record lives; nobody can tell it from the instance's id."""
    userdata: bytes | None = field(repr=False)
    """None: there is none, which is not the same as empty."""
    password: bytes = field(repr=False)
    """Empty before the guest has set it."""


def from_record(record: Record) -> Document:
    """Return what a record's guest is told.

    :raises StoreError: the record's document is not a JSON object.
    """
    members = parse_document(record.id, record.metadata)
    name = _text(members.get("name"))
    hostname = _text(members.get("hostname")) or hostname_of(name) or record.id
    meta = members.get("meta")
    return Document(
        instance_id=record.id,
        hostname=hostname,
        name=name or hostname,
        zone=_text(members.get("availability_zone")),
        project_id=record.project_id or "",
        keys=name_keys(_lines(members.get("ssh_keys"))),
        meta=meta if isinstance(meta, dict) else {},
        random_seed=hashlib.shake_256(record.seed).digest(RANDOM_SEED_BYTES),
        userdata=record.userdata,
        password=record.password or b"",
    )


def hostname_of(name: str) -> str:
    """Return a host name made of a free-text name, or an empty string when nothing is left of it.

    Nova does the same with an instance's display name: blanks and underscores become dashes, what
    else a host name may not hold goes.
    """
    dashed = re.sub(r"[\s_]+", "-", name.lower())
    labels = [
        re.sub(r"[^a-z0-9-]", "", label)[:LABEL_MAX].strip("-") for label in dashed.split(".")
    ]
    return ".".join(label for label in labels if label)


def name_keys(lines: Iterable[str]) -> tuple[Key, ...]:
    """Give each key a name made of its comment: letters, digits and ``. _ @ -``, no two the same.

    cloud-init takes a listed name that ends in ``/`` for a folder, splits it at ``=`` and drops
    the second of two equal ones (cloudinit/sources/helpers/ec2.py, ``_parse``).
    """
    used: set[str] = set()
    keys = []
    for line in lines:
        fields = line.split(None, _COMMENT_FIELD)
        comment = fields[_COMMENT_FIELD] if len(fields) > _COMMENT_FIELD else ""
        base = re.sub(r"[^A-Za-z0-9._@-]+", "-", comment)[:KEY_NAME_MAX].strip("-") or "key"
        name, number = base, 1
        while name in used:
            number += 1
            name = f"{base}-{number}"
        used.add(name)
        keys.append(Key(name=name, data=line))
    return tuple(keys)


def is_one_line(text: str) -> bool:
    """Whether a text is one line that UTF-8 can hold, without control characters."""
    return not any(unicodedata.category(character) in _UNPRINTABLE for character in text)


def _text(value: object) -> str:
    """Return a one-line text, or an empty one for anything else."""
    return value.strip() if isinstance(value, str) and is_one_line(value) else ""


def _lines(value: object) -> list[str]:
    """Return the lines of a list of texts that are not empty and not comments."""
    texts = [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return [line for line in lines if line and is_one_line(line) and not line.startswith("#")]
