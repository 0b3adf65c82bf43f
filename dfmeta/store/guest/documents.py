"""The facts for a guest as one value, the same for all dialects. Pure functions.

Trust: a document comes from the operator, but another program may have written it. A member of an
unexpected type, or with control characters in it, counts as absent; no content of a document can
make a listing name an item that does not exist. doc/source/store-documents.rst lists the use of
each member.

The program that finds device roles is added to the operator's vendor data: cloud-init handles the
parts of a MIME message one by one, by the beginning of each (cloudinit/user_data.py,
``UserDataProcessor``).
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from email import message_from_string
from email.errors import MessageError
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from typing import Any, Final

from dfmeta.devices import validate
from dfmeta.errors import DeviceError
from dfmeta.guest import snippet
from dfmeta.store.db.repository import Record, parse_document
from dfmeta.store.guest import links, netconfig
from dfmeta.store.guest.values import (
    GuestKey,
    first_text,
    keys_of,
    list_of,
    object_of,
    plain,
    text_of,
)
from dfmeta.store.strict import parse_mapping

RANDOM_SEED_BYTES: Final = 512
"""As many as in Nova (nova/api/metadata/base.py)."""
USERDATA_TYPE: Final = "application/octet-stream"
"""Any bytes: gzip, MIME, scripts."""
LABEL_MAX: Final = 63
"""Longest label of a host name (RFC 1123, 2.1)."""
LAUNCH_INDEX_MAX: Final = 2**31 - 1
EC2_ID_DIGITS: Final = 17
"""Hexadecimal digits of an EC2 instance id (EC2 user guide, "Resource IDs")."""
CLOUD_INIT: Final = "cloud-init"
"""The member of vendor data that cloud-init reads."""

DEVICES_KEPT: Final = 256
"""Maximum number of device lists with a cached check: two devices take a millisecond."""

_TAG_KEY: Final = re.compile(r"(?!\.{1,2}$|_index$)[A-Za-z0-9+.,_:@-]{1,128}")
"""Tag keys that EC2 allows in instance metadata, without ``=``: cloud-init takes a listed ``0=x``
for an SSH key."""

MIME: Final = "mime-version:"
"""Marks a text as a MIME message for cloud-init, in lower or upper case, near its start."""
_START: Final = 4096
"""Characters in which cloud-init looks for it (cloudinit/user_data.py, ``convert_string``)."""
_BOUNDARY: Final = 40
"""Digits of a boundary; it has 70 characters at most (RFC 2046, section 5.1.1)."""

MEMBERS: Final = ("network", "network_data", "network_config")
"""Members of a document that have its network, each of them in any form."""
TEXT_MAX: Final = 16384
"""Characters of a YAML text that is read: a kilobyte takes 5 ms."""
_DEVICES: Final = ("ethernets", "wifis", "bonds", "bridges", "vlans", "tunnels")
"""Members of version 2 that have devices."""


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """The facts beside a document that an answer may depend on."""

    mac: str = ""
    """MAC of the guest's port; empty: not known."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """See :attr:`dfmeta.store.guest.dialects.AnswerSettings.templates`."""


@dataclass(frozen=True, slots=True)
class Document:
    """The facts that a guest may read about itself. Secrets are not in its ``repr``.

    Texts are one line, and empty if the document has none.
    """

    instance_id: str
    """Never empty."""
    ec2_id: str
    """Id in EC2's tree. Never empty."""
    hostname: str
    """Never empty."""
    name: str
    """Never empty."""
    zone: str
    """Availability zone."""
    region: str
    instance_type: str
    project_id: str
    launch_index: int | None
    keys: tuple[GuestKey, ...]
    """Keys for ``authorized_keys``."""
    certificates: tuple[GuestKey, ...]
    addresses: tuple[Address, ...]
    instance_tags: Mapping[str, str]
    """Tags that the guest may read; the keys are safe in a listing."""
    created_at: datetime
    random_seed: bytes = field(repr=False)
    """Constant for the lifetime of the record; it cannot be derived from the instance's id."""
    userdata: bytes | None = field(repr=False)
    """None: no user-data, which is not the same as empty user-data."""
    password: bytes = field(repr=False)
    """Empty before the guest has set it."""
    text: str | None = field(repr=False)
    """The document as it was written; None: the record has user-data alone."""
    members: Mapping[str, Any] = field(repr=False)
    """Members of the document, of any type; ``{}`` if there is no document."""
    networks: Mapping[str, dict[str, Any]] = field(repr=False)
    """Name of a member → the network in it: :func:`~dfmeta.store.guest.documents.networks_in`."""


def from_record(record: Record) -> Document:
    """Return the facts in a record for its guest.

    :raises StoreError: the record's document is not a JSON object.
    """
    members = parse_document(record.id, record.metadata)
    name = text_of(members.get("name"))
    hostname = text_of(members.get("hostname")) or hostname_of(name) or record.id
    own_id = text_of(members.get("id"))
    keys, networks = keys_of(members), networks_in(members)
    # In the form of EC2's, which CirrOS waits for; the same for each request.
    made_id = f"i-{hashlib.sha256(record.id.encode()).hexdigest()[:EC2_ID_DIGITS]}"
    return Document(
        instance_id=own_id or record.id,
        ec2_id=own_id or text_of(members.get("ec2_instance_id")) or made_id,
        hostname=hostname,
        name=name or hostname,
        zone=first_text((members.get("availability_zone"), members.get("facility"))),
        region=first_text((members.get("region"), members.get("metro"))),
        instance_type=first_text((members.get("plan"), members.get("class"))),
        project_id=record.project_id or text_of(members.get("project_id")),
        launch_index=_launch_index(members.get("launch_index")),
        keys=tuple(key for key in keys if key.kind == "ssh"),
        certificates=tuple(key for key in keys if key.kind == "x509"),
        addresses=addresses(networks),
        instance_tags=_tags(members.get("instance_tags")),
        created_at=record.created_at,
        random_seed=hashlib.shake_256(record.seed).digest(RANDOM_SEED_BYTES),
        userdata=record.userdata,
        password=record.password or b"",
        text=record.metadata,
        members=members,
        networks=networks,
    )


def hostname_of(name: str) -> str:
    """Return a host name made of a free-text name, or an empty string if nothing remains of it.

    Nova does the same with an instance's display name: spaces and underscores become dashes, and
    other characters that a host name may not have are removed.
    """
    dashed = re.sub(r"[\s_]+", "-", name.lower())
    labels = [
        re.sub(r"[^a-z0-9-]", "", label)[:LABEL_MAX].strip("-") for label in dashed.split(".")
    ]
    return ".".join(label for label in labels if label)


def meta_of(document: Document) -> dict[str, Any]:
    """Return the member ``meta``, the operator's own values for the guest; any names and values."""
    return object_of(plain(document.members.get("meta")))


def devices_of(document: Document) -> list[dict[str, Any]]:
    """Return the tagged devices as in Nova's meta_data.json; none if they break a rule, because the
    guest makes udev rules of them."""
    given = document.members.get("devices")
    try:
        return list_of(given) if given and _are_devices(json.dumps(given)) else []
    except (ValueError, RecursionError):
        return []


def dedicated_cpus_of(document: Document) -> list[int]:
    """Return the host's CPUs that the instance has alone, by their numbers."""
    given = list_of(document.members.get("dedicated_cpus"))
    return [number for number in given if type(number) is int and number >= 0]


@functools.lru_cache(maxsize=DEVICES_KEPT)
def _are_devices(text: str) -> bool:
    try:
        validate({"devices": json.loads(text)})
    except DeviceError:
        return False
    return True


def vendor_data_of(document: Document) -> dict[str, Any]:
    """Return the vendor data in OpenStack's form: a text becomes the member ``cloud-init``.

    With ``tag_devices``, it includes the program that finds a guest's device roles.
    """
    vendor_data = _vendor_data(document.members.get("vendor_data"))
    if document.members.get("tag_devices") is True:
        return {**vendor_data, CLOUD_INIT: with_roles(vendor_data.get(CLOUD_INIT))}
    return vendor_data


def vendor_data2_of(document: Document) -> dict[str, Any]:
    """Return the second vendor data, which only OpenStack has."""
    return _vendor_data(document.members.get("vendor_data2"))


def network_data_of(document: Document, mac: str = "") -> dict[str, list[dict[str, Any]]] | None:
    """Return the network in the form of Nova's network_data.json: three lists of objects.

    It is the document's ``network_data``, else derived from its ``network`` or ``network_config``,
    else DHCP on the device with that MAC: Nova has the file for each instance, and Talos repeats a
    request that is answered with 404 for three minutes. None if nothing of this is known: with
    three empty lists, cloud-init would leave the guest without a network.

    :param mac: of the guest's port; empty: not known.
    """
    given = object_of(plain(document.members.get("network_data")))
    lists = {
        name: [item for item in list_of(given.get(name)) if object_of(item)]
        for name in ("links", "networks", "services")
    }
    if any(lists.values()):
        return lists
    for name in ("network", "network_config"):
        if made := netconfig.derived(document.networks[name]):
            return made
    return links.with_dhcp(mac) if mac else None


def network_config_of(document: Document) -> str | dict[str, Any]:
    """Return the network in cloud-init's form, as YAML or as an object; empty: there is none.

    It is the document's ``network_config``, else its ``network`` if that has cloud-init's form,
    else made of ``network`` or ``network_data``.
    """
    given = document.members.get("network_config")
    if written := given if isinstance(given, str) else object_of(plain(given)):
        return written
    network = document.networks["network"]
    if netconfig.has_version(network):
        return object_of(plain(network))
    for name in ("network", "network_data"):
        with suppress(links.UnfitError):
            return links.version2(netconfig.read(document.networks[name]))
    return {}


def addresses_of(document: Document, version: int, *, public: bool) -> list[str]:
    """Return the addresses of one IP version, public or private, in the document's order."""
    return [
        address.text
        for address in document.addresses
        if address.version == version and address.public == public
    ]


def _vendor_data(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        return {CLOUD_INIT: value} if value else {}
    return object_of(plain(value))


def _launch_index(value: object) -> int | None:
    # bool is a subclass of int, and is refused.
    return value if type(value) is int and 0 <= value <= LAUNCH_INDEX_MAX else None


def _tags(value: object) -> dict[str, str]:
    return {
        key: text_of(text)
        for key, text in object_of(value).items()
        if _TAG_KEY.fullmatch(key) and isinstance(text, str) and text_of(text) == text.strip()
    }


@dataclass(frozen=True, slots=True)
class Address:
    """An address of the guest, from its document."""

    text: str
    version: int
    """4 or 6."""
    public: bool


def addresses(networks: Mapping[str, Mapping[str, Any]]) -> tuple[Address, ...]:
    """Return the static addresses of a document, in its order.

    They are those of ``network``, else those of ``network_data``, else those of
    ``network_config``. Only Equinix Metal's form says which ones are public.

    :param networks: the result of :func:`networks_in`.
    """
    for name in MEMBERS:
        values = _values(networks[name])
        if listed := [
            address for value, public in values for address in _address(value, public=public)
        ]:
            return tuple(listed)
    return ()


def networks_in(members: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the network in each of :data:`MEMBERS`, an object or YAML; empty if there is none.

    Reading YAML takes long: it is done once for a document, and not for each path.
    """
    return {name: _network_in(members.get(name)) for name in MEMBERS}


def _network_in(given: object) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = parse_mapping(given) if len(given) <= TEXT_MAX else None
        except ValueError:
            given = None
    network = object_of(given)
    # cloud-init takes its versions also below one more member.
    return object_of(network.get("network")) or network


def _values(network: Mapping[str, Any]) -> Iterator[tuple[object, bool]]:
    """Yield what stands in the places of addresses, and whether it is marked as public."""
    for item in map(object_of, list_of(network.get("addresses"))):
        # There, a text with a prefix is a block.
        if "/" not in (text := text_of(item.get("address"))):
            yield text, item.get("public") is True
    for item in map(object_of, list_of(network.get("networks"))):
        yield item.get("ip_address"), False
    for item in map(object_of, list_of(network.get("config"))):
        for subnet in map(object_of, list_of(item.get("subnets"))):
            yield subnet.get("address"), False
    for kind in _DEVICES:
        for item in map(object_of, object_of(network.get(kind)).values()):
            for text in list_of(item.get("addresses")):
                # An object has options of its one address.
                yield next(iter(text), None) if isinstance(text, dict) else text, False


def _address(value: object, *, public: bool) -> Iterator[Address]:
    text = text_of(value).partition("/")[0]
    try:
        version = ipaddress.ip_address(text).version
    except ValueError:
        return
    yield Address(text=text, version=version, public=public)


def with_roles(vendor_data: object) -> object:
    """Return vendor data that runs the program, after the operator's vendor data.

    :param own: the member ``cloud-init``: a text, a list of texts, or None. Any other value means
        nothing to cloud-init, and is replaced.
    """
    if isinstance(vendor_data, list):
        return [*vendor_data, _program()]
    if isinstance(vendor_data, str) and vendor_data:
        return together(vendor_data, _program())
    return _program()


@functools.cache
def _program() -> str:
    return snippet.vendor_data()


def together(*texts: str) -> str:
    """Return texts as one MIME message, which cloud-init splits again.

    A single text is returned as it is, and no text as an empty one. A text that is a MIME message
    itself becomes a part as a message: cloud-init would not look for its parts inside a text.
    """
    if len(texts) < 2:
        return "".join(texts)
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()
    # The boundary is the same each time, so that the answer and its entity tag are the same. It
    # occurs in none of the texts.
    message = MIMEMultipart(boundary=f"=-dfmeta-{digest[:_BOUNDARY]}-=")
    for text in texts:
        message.attach(_part(text))
    return message.as_string()


def _part(text: str) -> Message:
    # Characters that UTF-8 cannot hold become question marks, as in a single text.
    text = text.encode("utf-8", "replace").decode()
    if MIME in text[:_START].lower():
        message = message_from_string(text)
        # A message with odd line ends in its header can be read, but not written.
        with suppress(MessageError):
            message.as_string()
            return message
    return MIMEText(text, "plain", "utf-8")
