"""SSH public keys of a document, with names that are safe in listings. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dfmeta.store.guest.values import first_text, is_one_line, list_of, object_of

KEY_NAME_MAX: Final = 64
_COMMENT_FIELD: Final = 2
"""An OpenSSH public key line: type, base64, comment (sshd(8), AUTHORIZED_KEYS FILE FORMAT)."""


@dataclass(frozen=True, slots=True)
class Key:
    """An SSH public key with a name that is safe in a listing and unique in its document."""

    name: str
    data: str
    """The whole OpenSSH line, without a line break."""


def keys_of(members: Mapping[str, object]) -> tuple[Key, ...]:
    """Return the keys of a document, in its order.

    ``ssh_keys`` is a list of texts or of objects with a ``key`` and optionally a ``label``;
    ``public_keys`` is such a list as well, or an object from names to texts as in Nova's
    meta_data.json, and adds the keys that ``ssh_keys`` lacks.
    """
    entries = [*_listed(members.get("ssh_keys"))]
    there = {line for _label, line in entries}
    public = members.get("public_keys")
    more = _listed(public) if isinstance(public, list) else _named(object_of(public))
    entries.extend((label, line) for label, line in more if line not in there)
    return name_keys(entries)


def name_keys(entries: Iterable[tuple[str, str]]) -> tuple[Key, ...]:
    """Give each key a unique name: letters, digits and ``. _ @ -``.

    cloud-init takes a listed name that ends in ``/`` for a directory, splits it at ``=`` and drops
    the second of two equal names (cloudinit/sources/helpers/ec2.py, ``_parse``).

    :param entries: label and OpenSSH line of each key; if the label is empty, the line's comment is
        used instead.
    """
    used: set[str] = set()
    # For equal names: the search for a free number continues where the previous one ended.
    numbers: dict[str, int] = {}
    keys = []
    for label, line in entries:
        base = re.sub(r"[^A-Za-z0-9._@-]+", "-", label or _comment(line))
        base = base[:KEY_NAME_MAX].strip("-") or "key"
        name, number = base, numbers.get(base, 1)
        while name in used:
            number += 1
            name = f"{base}-{number}"
        numbers[base] = number
        used.add(name)
        keys.append(Key(name=name, data=line))
    return tuple(keys)


def _listed(value: object) -> Iterator[tuple[str, str]]:
    for one in list_of(value):
        if isinstance(one, dict):
            label = first_text(one.get(name) for name in ("label", "name", "title"))
            yield from ((label, line) for line in _lines(one.get("key")))
        else:
            yield from (("", line) for line in _lines(one))


def _named(value: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, text in value.items():
        yield from ((name, line) for line in _lines(text))


def _lines(value: object) -> list[str]:
    """Return the lines of a text that are not empty and not comments."""
    lines = [line.strip() for line in value.splitlines()] if isinstance(value, str) else []
    return [line for line in lines if line and is_one_line(line) and not line.startswith("#")]


def _comment(line: str) -> str:
    fields = line.split(None, _COMMENT_FIELD)
    return fields[_COMMENT_FIELD] if len(fields) > _COMMENT_FIELD else ""
