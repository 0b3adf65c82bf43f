"""Checks of the values that an operator gives for a record, and NoCloud seeds. Pure functions.

A check takes the option that the value came from, and returns the value in its stored form or
raises :class:`~dfmeta.errors.RecordError` with the option, the value and the remedy. An error of a
seed is a ValueError with a cause that does not quote user-data.
"""

import base64
import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dfmeta.devices import validate_in
from dfmeta.errors import DeviceError, RecordError, short
from dfmeta.store import strict, strictjson
from dfmeta.store.db.record import HTTP_TOKENS, Network, parse_network
from dfmeta.store.guest import documents, values
from dfmeta.store.guest.nocloud import METADATA, NETWORK_CONFIG, USERDATA, VENDOR_DATA

HOSTNAME_MAX: Final = 253
"""RFC 1123, 2.1 with RFC 1035, 2.3.4: 255 octets on the wire."""
TEXT_MAX: Final = 255
"""Characters; Nova's limit for names, zones and the keys of ``meta``."""
USERDATA_MAX: Final = 16 * 1024 * 1024
"""Bytes. Far more than guests need (EC2: 16 KiB), and less than an image given by mistake."""

_CLOUD_CONFIG: Final = "#cloud-config"
_CLOUD_INIT: Final = ("#", "Content-Type:", "MIME-Version:")
"""Beginnings of cloud-init's formats, except compressed ones (cloudinit/handlers/__init__.py)."""
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")
_KEY_TYPE: Final = re.compile(
    r"ssh-(rsa|dss|ed25519)|ecdsa-sha2-nistp(256|384|521)"
    r"|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com"
)
NOT_ONE_LINE: Final = "it has control characters in it, or is not UTF-8"
MEMBERS: Final = frozenset(
    {"id", "ipAddresses", "metadata", "userdata", "userdata_encoding", "http_tokens"}
)
"""Members of a body of the admin API."""
_LENGTH_BYTES: Final = 4
"""Size of the length before a string in an SSH key (RFC 4251, section 5)."""

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


def hostname(option: str, text: str) -> str:
    """Return a host name, with or without a domain (RFC 1123, 2.1). Empty stays empty."""
    labels = text.split(".")
    good = all(_LABEL.fullmatch(label) and len(label) <= documents.LABEL_MAX for label in labels)
    remedy = f"Use letters, digits and dashes, at most {documents.LABEL_MAX} between two dots"
    with _refusing(option, short(text), remedy):
        if text and (not good or len(text) > HOSTNAME_MAX):
            raise ValueError("it is not a host name")
    return text


def text_value(option: str, text: str, *, limit: int | None = TEXT_MAX) -> str:
    """Return one line of text without control characters. Empty stays empty."""
    with _refusing(option, short(text), "Use one line of text"):
        if not values.is_one_line(text):
            raise ValueError(NOT_ONE_LINE)
    with _refusing(option, short(text), f"Use at most {limit}"):
        if limit is not None and len(text) > limit:
            raise ValueError(f"it has {len(text)} characters")
    return text


def meta_item(option: str, text: str) -> tuple[str, str]:
    """Return key and value of ``k=v``; the value may be empty."""
    key, equals, value = text.partition("=")
    with _refusing(option, short(text), "Write key=value"):
        if not key or not equals:
            raise ValueError("it is not key=value")
    return text_value(option, key), text_value(option, value, limit=None)


def http_tokens(option: str, text: str) -> str | None:
    """Return a mode of http_tokens; None for ``default``, the configured mode."""
    with _refusing(option, short(text), f"Give one of {', '.join(HTTP_TOKENS)}, or default"):
        if text not in (*HTTP_TOKENS, "default"):
            raise ValueError("there is no such mode")
    return None if text == "default" else text


def userdata(option: str, content: bytes, *, name: str) -> bytes:
    """Return user-data as it is, unless it is too large.

    :param name: name of its file, which errors show instead of the content.
    """
    with _refusing(option, name, "Let the user-data download large files"):
        if len(content) > USERDATA_MAX:
            raise ValueError(f"it has more than {USERDATA_MAX} bytes")
    return content


def networks(option: str, texts: Sequence[str]) -> list[Network]:
    """Return addresses and blocks; empty texts are skipped."""
    parsed = []
    for text in filter(None, texts):
        with _refusing(option, short(text), "Write 192.0.2.7, 2001:db8::7 or 192.0.2.0/28"):
            try:
                parsed.append(parse_network(text))
            except ValueError:
                raise ValueError("it is neither an address nor a block of them") from None
    return parsed


def document(option: str, content: bytes, *, name: str) -> dict[str, Any]:
    """Return a whole document.

    :param name: name of its file, which errors show instead of the content.
    """
    with _refusing(option, name, "Name a file with one JSON object"):
        members = strict.parse_object(content)
    of_body = "Give the value of its member metadata, or put it on one line of a file for dfmeta "
    with _refusing(option, name, f"{of_body}store import"):
        if "id" in members and "metadata" in members and members.keys() <= MEMBERS:
            body = "it is a body of the admin API"
            raise ValueError(f"{body}, and a guest would find its metadata one level too deep")
    with _refusing(option, name, "See doc/source/devices.rst for the rules"):
        try:
            validate_in(members)
        except DeviceError as error:
            raise ValueError(f"{error.path}: {error.cause}") from None
    with _refusing(option, name, "Give lines of .pub files, or a certificate in PEM form"):
        if places := values.unusable(members):
            raise ValueError(f"{places[0]} is neither an OpenSSH public key nor a certificate")
    return members


def network_config(option: str, content: bytes, *, name: str) -> str:
    """Return a network configuration of cloud-init as it is written: a YAML or JSON mapping."""
    with _refusing(option, name, "Name a file that begins with version: 2, or with network:"):
        return _mapping_text(content)


def vendor_data(option: str, content: bytes, *, name: str) -> str | dict[str, Any]:
    """Return vendor data: an object, or a text that cloud-init accepts as user-data, too.

    The first line of such a text names its format; a cloud-config has to be a mapping.
    """
    remedy = f"Name a file with a JSON object, or one that begins with {_CLOUD_CONFIG} or #!"
    with _refusing(option, name, remedy):
        text = strict.decode(content)
        if text.lstrip().startswith("{"):
            return strict.parse_object(text)
        if not text.startswith(_CLOUD_INIT):
            raise ValueError("its first line does not name a format of cloud-init")
        if text.startswith(_CLOUD_CONFIG):
            strict.parse_mapping(text)
        strictjson.check(text)
    return text


def ssh_keys(option: str, text: str, *, name: str = "") -> list[str]:
    """Return the OpenSSH public keys in a text, one per line; empty lines and comments are skipped.

    :param name: name of its file, which errors show instead of the content: that may be a private
        key, given by mistake.
    """
    with _refusing(option, short(text), "Give one key for each --ssh-key, or @FILE"):
        if not name and "\n" in text.strip() and "PRIVATE KEY" not in text:
            raise ValueError("it has a line break in it, and a key is one line")
    # Not splitlines(): a key's comment may contain its other line boundaries.
    lines = [line.strip() for line in text.split("\n")]
    keys = [line for line in lines if line and not line.startswith("#")]
    for key in keys:
        _check_key(option, key, shown=name)
    with _refusing(option, name, "Name a .pub file"):
        if name and not keys:
            raise ValueError("it contains no key")
    return keys


def _check_key(option: str, line: str, *, shown: str) -> None:
    """Raise unless a line is a type, the base64 of such a key, and optionally a comment."""
    kind, blob, *_ = [*line.split(None, 2), ""]
    cause = ""
    if "PRIVATE KEY" in line:
        cause, shown = "it is a private key", shown or "(not shown)"
    elif not values.is_one_line(line):
        cause = NOT_ONE_LINE
    elif not _KEY_TYPE.fullmatch(kind):
        cause = "it does not begin with a type of key, such as ssh-ed25519"
    elif not _blob_is_of(kind, blob):
        cause = f"the text after {kind} is not the base64 of such a key; it may be cut off"
    with _refusing(option, shown or short(line), "Give a line of a .pub file, or @FILE"):
        if cause:
            raise ValueError(cause)


def _blob_is_of(kind: str, text: str) -> bool:
    """Whether a key's base64 decodes to complete strings, the first of them its type."""
    try:
        blob = base64.b64decode(text, validate=True)
    except ValueError:
        return False
    strings = []
    while blob:
        length = int.from_bytes(blob[:_LENGTH_BYTES], "big")
        strings.append(blob[_LENGTH_BYTES : _LENGTH_BYTES + length])
        if len(strings[-1]) != length or not length:
            return False
        blob = blob[_LENGTH_BYTES + length :]
    return len(strings) > 1 and strings[0] == kind.encode()


@contextlib.contextmanager
def _refusing(option: str, shown: str, remedy: str) -> Iterator[None]:
    """Turn a ValueError about a value into our error."""
    try:
        yield
    except ValueError as error:
        raise RecordError(what=option, value=shown, cause=error, remedy=remedy) from None


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

    :param files: content of each file by name (``NAMES`` of nocloud.py); meta-data or user-data has
        to be there.
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
    if files.get(NETWORK_CONFIG, b"").strip():
        document["network_config"] = _named(NETWORK_CONFIG, _mapping_text, files[NETWORK_CONFIG])
    _named(METADATA, _storable, document)
    return Seed(
        instance_id=_text(content, "instance-id"),
        hostname=hostname,
        document=document,
        userdata=files.get(USERDATA),
        left_out=tuple(str(name) for name in content if name not in _IGNORED),
    )


def _named(name: str, read: Any, value: Any) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _mapping_text(data: bytes) -> str:
    """Return a YAML or JSON mapping as it is written."""
    text = strict.decode(data)
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
