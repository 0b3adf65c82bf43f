"""Which dialect a path is of, and what it answers. Pure functions.

Trust: the path is a guest's; it chooses among what its own document says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dfmeta.model import Answer
from dfmeta.store.guest import ec2, equinix, nocloud, openstack
from dfmeta.store.guest.documents import Document
from dfmeta.store.guest.need import ANY_HALF, METADATA_ALONE, USERDATA_ALONE, Need
from dfmeta.store.guest.paths import split_path

OPENSTACK: Final = "openstack"
NOCLOUD: Final = "nocloud"
EC2_TREES: Final = ("cloud-init", "equinix")
"""What ``/2009-04-04`` may give: Nova's form, which cloud-init crawls, or Equinix Metal's."""

NOT_FOUND: Final = Answer(404, b"404 Not Found\n")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the configuration says of answers."""

    ec2_tree: str = EC2_TREES[0]
    """One of :data:`EC2_TREES`."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Members that ``/metadata`` gets where the document has none; see
    :func:`dfmeta.store.guest.templates.filled`."""


def answer(document: Document, segments: Sequence[str], settings: Settings) -> Answer | None:
    """Answer a GET or HEAD; None for what is not there.

    :param segments: the path, decoded, without empty parts; see
        :func:`dfmeta.store.guest.paths.split_path`.
    """
    return _found(document, _without_prefix(segments), settings)


def need(path: str, settings: Settings) -> Need:
    """Return what has to be known of a record to answer a request for *path*, of any method.

    :param path: origin-form, a guest's words.
    """
    segments = split_path(path)
    if segments is None:
        return ANY_HALF
    match _without_prefix(segments):
        case [first, *rest] if first == OPENSTACK:
            return openstack.need(rest)
        case [first, *rest] if first == NOCLOUD:
            return nocloud.need(rest)
        case [first] if first == equinix.METADATA:
            return METADATA_ALONE
        case [first] if first == equinix.USERDATA:
            return USERDATA_ALONE
        case [first, *rest] if first == equinix.VERSION and settings.ec2_tree == "equinix":
            return equinix.need(rest)
    return ec2.need(segments)


def not_found(segments: Sequence[str], settings: Settings) -> Answer:
    """Return the 404 of a path, in the words of its dialect."""
    match _without_prefix(segments):
        case [first, *_] if first in (equinix.METADATA, equinix.USERDATA):
            return equinix.NOT_FOUND
        case [first, *_] if first == equinix.VERSION and settings.ec2_tree == "equinix":
            return equinix.NOT_FOUND
    return NOT_FOUND


def _without_prefix(segments: Sequence[str]) -> Sequence[str]:
    """Take ``/api/v1`` off the two paths that are there below it as well."""
    match segments:
        case ["api", "v1", name, *_] if name in (equinix.METADATA, equinix.USERDATA):
            return segments[2:]
    return segments


def _found(document: Document, segments: Sequence[str], settings: Settings) -> Answer | None:
    match segments:
        case [first, *rest] if first == OPENSTACK:
            return openstack.answer(document, rest)
        case [first, *rest] if first == NOCLOUD:
            return nocloud.answer(document, rest)
        case [first] if first == equinix.METADATA:
            return equinix.metadata(document, settings.templates)
        case [first] if first == equinix.USERDATA:
            return equinix.userdata(document)
        case [first, *rest] if first == equinix.VERSION and settings.ec2_tree == "equinix":
            return equinix.answer(document, rest)
    return ec2.answer(document, segments)
