"""Answers that are made once, and given again for as long as a record stays as it is.

A guest that boots asks some thirty things of one record, and programs in guests ask the same few
for ever.

Trust: paths are guests'. An answer is remembered by the parts of its path, however they are spelt,
and only where there is something: how many those are is the document's to say, so that no guest can
have an answer made anew, or make others' be forgotten, by spelling one path in many ways.
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
"""Bytes of answers that are kept of one record at most."""
PARSED: Final = 4
"""What a document takes, as a multiple of its text, about."""


class _Made:
    """What has been made of a record."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.document: Document = documents.from_record(record)
        self.answers: dict[str, Answer] = {}
        """By the parts of the path, with a slash between them; none has one in it."""
        self.size = len(record.userdata or b"") + (1 + PARSED) * len(record.metadata or "")
        self.room = ANSWERS


class Answers:
    """Answers of records, with their entity tags. Safe to use from several threads.

    :param settings: the same for all of them.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: Cache[_Made] = Cache()
        self._lock = threading.Lock()

    def answer(
        self, record: Record, segments: Sequence[str], request: GuestRequest
    ) -> Answer | None:
        """Answer a GET or HEAD with its entity tag; None for what is not there.

        304 where the guest has it already.

        :param segments: of the request's path; see :func:`dfmeta.store.guest.paths.split_path`.
        :param request: whose If-None-Match is looked at.
        :raises StoreError: the record's document is not a JSON object.
        """
        made = self._of(record)
        name = "/".join(segments)
        found = made.answers.get(name)
        if found is None:
            found = self._make(made, segments, name)
        return None if found is None else unless_known(found, request)

    def _make(self, made: _Made, segments: Sequence[str], name: str) -> Answer | None:
        found = dialects.answer(made.document, segments, self._settings)
        if found is None:
            return None
        found = tagged(found)
        self._keep(made, name, found)
        return found

    def _of(self, record: Record) -> _Made:
        with self._lock:
            entry = self._kept.get(record.id)
        # Nearly always it is the very object. One made of defaults is another one each time.
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
