"""A cache of answers, which are reused as long as a record does not change.

A guest sends some thirty requests for one record while it boots, and programs in guests repeat the
same few requests indefinitely.

Trust: paths come from guests. An answer is cached by the decoded segments of its path, and only if
the path exists. The document limits the number of such paths, so that a guest cannot cause an
answer to be built again, or other guests' answers to be evicted, by other spellings of a path.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from dfmeta.model import Answer, GuestRequest
from dfmeta.store.db.cache import Cache
from dfmeta.store.db.record import Record
from dfmeta.store.guest import dialects, documents
from dfmeta.store.guest.dialects import Settings
from dfmeta.store.guest.documents import Document
from dfmeta.store.guest.etags import tagged, unless_known

ANSWERS: Final = 1024 * 1024
"""Maximum number of bytes of answers that are kept for one record."""
PARSED: Final = 4
"""Approximate size of a parsed document, as a multiple of its text."""


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

        :param segments: of the request's path; see :func:`dfmeta.store.guest.paths.split_path`.
        :param request: the request, of which only If-None-Match is read.
        :param mac: of the guest's port; empty: not known.
        :raises StoreError: the record's document is not a JSON object.
        """
        made = self._of(record)
        name = "/".join(segments)
        if segments[:1] == [dialects.OPENSTACK]:
            # An instance with two ports has two MACs.
            name = f"{mac}/{name}"
        found = made.answers.get(name)
        if found is None:
            found = self._make(made, segments, name, mac)
        return None if found is None else unless_known(found, request)

    def _make(self, made: _Made, segments: Sequence[str], name: str, mac: str) -> Answer | None:
        found = dialects.answer(made.document, segments, self._settings, mac=mac)
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
