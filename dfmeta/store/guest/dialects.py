"""Select the dialect of a path, answer, and keep the answers as long as a record does not change.

A guest sends some thirty requests for one record while it boots, and programs in guests repeat the
same few requests indefinitely.

Trust: the path comes from a guest; it only selects from the guest's own document. An answer is kept
by the decoded segments of its path, and only if the path exists. The document limits the number of
such paths, so that a guest cannot cause an answer to be built again, or other guests' answers to be
evicted, by other spellings of a path.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dfmeta.model import Answer, GuestRequest
from dfmeta.store.db.cache import Cache
from dfmeta.store.db.record import ANY_HALF, METADATA_ALONE, USERDATA_ALONE, Need, Record
from dfmeta.store.guest import documents, ec2, equinix, nocloud, openstack
from dfmeta.store.guest.documents import Document
from dfmeta.store.guest.requests import split_path, tagged, unless_known

OPENSTACK: Final = "openstack"
NOCLOUD: Final = "nocloud"
EC2_TREES: Final = ("cloud-init", "equinix")
"""Forms of ``/2009-04-04``: Nova's form, which cloud-init crawls, or Equinix Metal's."""

NOT_FOUND: Final = Answer(404, b"404 Not Found\n")

ANSWERS: Final = 1024 * 1024
"""Maximum number of bytes of answers that are kept for one record."""
PARSED: Final = 4
"""Approximate size of a parsed document, as a multiple of its text."""


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
        :func:`dfmeta.store.guest.requests.split_path`.
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


class _Made:
    """The document and the answers that have been built from a record."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.document: Document = documents.from_record(record)
        self.answers: dict[str, Answer] = {}
        """By the segments of the path, joined by slashes; no segment contains a slash. In
        OpenStack's dialect the MAC of the port comes first."""
        self.size = len(record.userdata or b"") + (1 + PARSED) * len(record.metadata or "")
        self.room = ANSWERS


class Answers:
    """Answers from records, with their entity tags. Safe to use from several threads.

    :param settings: configuration of all answers.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: Cache[_Made] = Cache()
        self._lock = threading.Lock()

    def answer(
        self, record: Record, segments: Sequence[str], request: GuestRequest, *, mac: str = ""
    ) -> Answer | None:
        """Answer a GET or HEAD with its entity tag; None if the path does not exist.

        304 if the guest has the answer already.

        :param segments: of the request's path; see :func:`dfmeta.store.guest.requests.split_path`.
        :param request: the request, of which only If-None-Match is read.
        :param mac: of the guest's port; empty: not known.
        :raises StoreError: the record's document is not a JSON object.
        """
        made = self._of(record)
        name = "/".join(segments)
        if segments[:1] == [OPENSTACK]:
            # An instance with two ports has two MACs.
            name = f"{mac}/{name}"
        found = made.answers.get(name)
        if found is None:
            found = self._make(made, segments, name, mac)
        return None if found is None else unless_known(found, request)

    def _make(self, made: _Made, segments: Sequence[str], name: str, mac: str) -> Answer | None:
        found = answer(made.document, segments, self._settings, mac=mac)
        if found is None:
            return None
        found = tagged(found)
        self._keep(made, name, found)
        return found

    def _of(self, record: Record) -> _Made:
        with self._lock:
            entry = self._kept.get(record.id)
        # Nearly always it is the same object. A record made of defaults is a new one each time.
        if entry is not None and (entry[0] is record or entry[0] == record):
            return entry[1]
        made = _Made(record)
        self._put(made)
        return made

    def _keep(self, made: _Made, name: str, answer: Answer) -> None:
        size = 0 if answer.body is made.record.userdata else len(answer.body)
        if size <= made.room:
            made.answers[name] = answer
            made.room -= size
            made.size += size
            self._put(made)

    def _put(self, made: _Made) -> None:
        with self._lock:
            self._kept.put(made.record.id, made.record, made, size=made.size)
