"""Select the dialect of a path, and answer. Pure functions.

Trust: the path comes from a guest; it only selects from the guest's own document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dfmeta.model import Answer
from dfmeta.store.guest import ec2, equinix, nocloud, openstack
from dfmeta.store.guest.documents import Document
from dfmeta.store.guest.paths import split_path
from dfmeta.store.guest.record_parts import ANY_HALF, METADATA_ALONE, USERDATA_ALONE, Need

OPENSTACK: Final = "openstack"
NOCLOUD: Final = "nocloud"
EC2_TREES: Final = ("cloud-init", "equinix")
"""Forms of ``/2009-04-04``: Nova's form, which cloud-init crawls, or Equinix Metal's."""

NOT_FOUND: Final = Answer(404, b"404 Not Found\n")


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of answers."""

    ec2_tree: str = EC2_TREES[0]
    """One of :data:`EC2_TREES`."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Members that are added to ``/metadata`` if the document lacks them; see
    :func:`dfmeta.store.guest.equinix.filled`."""


def answer(
    document: Document, segments: Sequence[str], settings: Settings, *, mac: str = ""
) -> Answer | None:
    """Answer a GET or HEAD; None if the path does not exist.

    :param segments: the path, decoded, without empty parts; see
        :func:`dfmeta.store.guest.paths.split_path`.
    :param mac: of the guest's port, of which only OpenStack's dialect makes use; empty: not known.
    """
    return _found(document, _without_prefix(segments), settings, mac)


def need(path: str, settings: Settings) -> Need:
    """Return the parts of a record that the answer for *path* depends on, for any method.

    :param path: origin-form, from a guest.
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
    """Return the 404 of a path, in the form of its dialect."""
    match _without_prefix(segments):
        case [first, *_] if first in (equinix.METADATA, equinix.USERDATA):
            return equinix.NOT_FOUND
        case [first, *_] if first == equinix.VERSION and settings.ec2_tree == "equinix":
            return equinix.NOT_FOUND
    return NOT_FOUND


def _without_prefix(segments: Sequence[str]) -> Sequence[str]:
    """Remove ``/api/v1`` from the two paths that also exist below it."""
    match segments:
        case ["api", "v1", name, *_] if name in (equinix.METADATA, equinix.USERDATA):
            return segments[2:]
    return segments


def _found(
    document: Document, segments: Sequence[str], settings: Settings, mac: str
) -> Answer | None:
    match segments:
        case [first, *rest] if first == OPENSTACK:
            return openstack.answer(document, rest, mac=mac)
        case [first, *rest] if first == NOCLOUD:
            return nocloud.answer(document, rest)
        case [first] if first == equinix.METADATA:
            return equinix.metadata(document, settings.templates)
        case [first] if first == equinix.USERDATA:
            return equinix.userdata(document)
        case [first, *rest] if first == equinix.VERSION and settings.ec2_tree == "equinix":
            return equinix.answer(document, rest)
    return ec2.answer(document, segments)
