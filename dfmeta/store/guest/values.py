"""Read values of a document that any program may have written. Pure functions.

Trust: a document comes from the operator; its members may be any JSON. A value of an unexpected
type counts as absent.

Keys have names that are safe in listings. A text may have several lines in the form of OpenSSH,
each of which is a key, or one certificate (X.509), which Windows takes for the log-in over WinRM.
Other texts are no keys.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

DEPTH_MAX: Final = 32
"""Maximum number of levels of a value that is passed on unchanged: far more than vendor data and
networks have, and few enough for every writer of JSON and YAML."""

_UNPRINTABLE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode's categories of controls, surrogates, line and paragraph separators."""

KEY_NAME_MAX: Final = 64
Kind = Literal["ssh", "x509"]
"""Types of keys in Nova's meta_data.json."""
CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"
"""RFC 7468, 5.1."""
_OPENSSH: Final = re.compile(
    r"(?:[^#].*\s)?(?:sk-)?(?:ssh|ecdsa)-[a-z0-9-]+(?:@openssh\.com)?[ \t]+"
    r"[A-Za-z0-9+/]+={0,2}(?:[ \t]+(?P<comment>.*))?"
)
"""Options, type, base64 and comment (sshd(8), AUTHORIZED_KEYS FILE FORMAT)."""


def is_one_line(text: str) -> bool:
    """Whether a text is one line that UTF-8 can hold, without control characters."""
    return not any(unicodedata.category(character) in _UNPRINTABLE for character in text)


def text_of(value: object) -> str:
    """Return a one-line text without surrounding spaces, or an empty one for any other value."""
    return value.strip() if isinstance(value, str) and is_one_line(value) else ""


def first_text(values: Iterable[object]) -> str:
    """Return the first value that is a one-line text and not empty, or an empty text."""
    return next((text for text in map(text_of, values) if text), "")


def list_of(value: object) -> list[Any]:
    """Return a list as it is, or an empty one for any other value."""
    return value if isinstance(value, list) else []


def object_of(value: object) -> dict[str, Any]:
    """Return a JSON object as it is, or an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def plain(value: object, depth: int = DEPTH_MAX) -> Any:
    """Return a copy that any JSON reader accepts: infinities and too deep values become null.

    A number such as 1e999 is well-formed JSON, and infinite once it is read (RFC 8259, section 6).
    """
    match value:
        case dict():
            return (
                {name: plain(member, depth - 1) for name, member in value.items()}
                if depth
                else None
            )
        case list():
            return [plain(member, depth - 1) for member in value] if depth else None
        case float() if not math.isfinite(value):
            return None
    return value


@dataclass(frozen=True, slots=True)
class GuestKey:
    """A public key with a name that is safe in a listing and unique in its document."""

    name: str
    data: str
    """The whole OpenSSH line, without a line break; of a certificate the whole text."""
    kind: Kind = "ssh"


def keys_of(members: Mapping[str, object]) -> tuple[GuestKey, ...]:
    """Return the keys of a document, in its order. Texts that are no keys are left out.

    ``ssh_keys`` is a list of texts or of objects with a ``key`` and optionally a ``label``.
    ``public_keys``, which may be an object from names to texts, and ``keys``, a list of objects
    with ``name``, ``type`` and ``data``, are Nova's. Each adds the keys that those before it lack.
    """
    entries: dict[str, str] = {}
    for _place, label, text in _entries(members):
        for line in _keys_in(text):
            entries.setdefault(line, label)
    return name_keys((label, line) for line, label in entries.items())


def unusable(members: Mapping[str, object]) -> list[str]:
    """Return the places of texts that are no keys, or have a line that is none."""
    return [
        place
        for place, _label, text in _entries(members)
        if len(_lines(text)) > len(_keys_in(text)) and CERTIFICATE not in str(text)
    ]


def name_keys(entries: Iterable[tuple[str, str]]) -> tuple[GuestKey, ...]:
    """Give each key a unique name: letters, digits and ``. _ @ -``.

    cloud-init takes a listed name that ends in ``/`` for a directory, splits it at ``=`` and drops
    the second of two equal names (cloudinit/sources/helpers/ec2.py, ``_parse``).

    :param entries: label and text of each key; if the label is empty, the line's comment is used
        instead.
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
        keys.append(GuestKey(name, line, "x509" if CERTIFICATE in line else "ssh"))
    return tuple(keys)


def _entries(members: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    """Yield place, label and text of each entry of a document."""
    yield from _listed("ssh_keys", members.get("ssh_keys"))
    public = members.get("public_keys")
    if isinstance(public, list):
        yield from _listed("public_keys", public)
    else:
        for name, text in object_of(public).items():
            yield f"public_keys.{name}", name, text
    for index, key in enumerate(list_of(members.get("keys"))):
        # Another program may give this name to other objects than Nova's.
        if isinstance(key, dict) and key.get("type") in get_args(Kind):
            yield f"keys[{index}].data", first_text([key.get("name")]), key.get("data")


def _listed(member: str, value: object) -> Iterator[tuple[str, str, Any]]:
    for index, key in enumerate(list_of(value)):
        if isinstance(key, dict):
            label = first_text(key.get(name) for name in ("label", "name", "title"))
            yield f"{member}[{index}].key", label, key.get("key")
        else:
            yield f"{member}[{index}]", "", key


def _keys_in(text: object) -> list[str]:
    if isinstance(text, str) and text.lstrip().startswith(CERTIFICATE):
        return [text]
    return [line for line in _lines(text) if is_one_line(line) and _OPENSSH.fullmatch(line)]


def _lines(value: object) -> list[str]:
    """Return the lines of a text that are not empty and not comments."""
    lines = [line.strip() for line in value.splitlines()] if isinstance(value, str) else []
    return [line for line in lines if line and not line.startswith("#")]


def _comment(line: str) -> str:
    match = _OPENSSH.fullmatch(line)
    return match["comment"] or "" if match else ""
