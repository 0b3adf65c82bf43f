"""The table of dialects: the dialect of a path, its answer, and the answers that are kept.

A new dialect is a module beside :mod:`dfmeta.store.guest.nocloud`, and a row of :data:`DIALECTS`.
Answers are kept as long as a record does not change: a guest sends some thirty requests for one
record while it boots, and programs in guests repeat the same few requests indefinitely.

Trust: the path comes from a guest; it only selects from the guest's own document. An answer is kept
by the decoded segments of its path, and only if the path exists. The document limits the number of
such paths, so that a guest cannot cause an answer to be built again, or other guests' answers to be
evicted, by other spellings of a path.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dfmeta.model import Answer, GuestRequest
from dfmeta.store.db.cache import BYTES, ENTRY, LruCache
from dfmeta.store.db.record import ANY_HALF, Need, Record
from dfmeta.store.guest import documents, ec2, equinix, nocloud, openstack, requests
from dfmeta.store.guest.documents import AnswerContext, Document

EC2_TREES: Final = ("cloud-init", "equinix")
"""Forms of ``/2009-04-04``: Nova's form, which cloud-init crawls, or Equinix Metal's."""

NOT_FOUND: Final = Answer(404, b"404 Not Found\n")

ANSWERS: Final = 1024 * 1024
"""Maximum number of bytes of answers that are kept for one record."""
PARSED: Final = 4
"""Approximate size of a parsed document, as a multiple of its text."""


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """The configuration of answers."""

    ec2_tree: str = EC2_TREES[0]
    """One of :data:`EC2_TREES`."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Members that are added to ``/metadata`` if the document lacks them; see
    :func:`dfmeta.store.guest.equinix.filled`."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A form of metadata, below one path."""

    prefix: tuple[str, ...]
    """The first segments of its paths."""
    answer: Callable[[Document, Sequence[str], AnswerContext], Answer | None]
    """Answers a GET or HEAD; None if the path does not exist. Given the segments behind the
    prefix, which are decoded, not empty, and come from a guest."""
    parts: Callable[[Sequence[str]], Need]
    """Returns the parts of a record that the answer for such a path depends on, for any method."""
    not_found: Answer = NOT_FOUND
    ec2_tree: str = ""
    """The setting with which it exists; empty: it always does."""


_EQUINIX: Final = tuple(
    Dialect((*prefix, name), answer, parts, equinix.NOT_FOUND)
    for name, answer, parts in (
        ("metadata", equinix.metadata, equinix.need_of_metadata),
        ("userdata", equinix.userdata, equinix.need_of_userdata),
    )
    for prefix in ((), ("api", "v1"))
)
DIALECTS: Final = (
    Dialect((openstack.PREFIX,), openstack.answer, openstack.need),
    Dialect(("nocloud",), nocloud.answer, nocloud.need),
    *_EQUINIX,
    Dialect((equinix.VERSION,), equinix.answer, equinix.need, equinix.NOT_FOUND, EC2_TREES[1]),
)
EC2: Final = Dialect((), ec2.answer, ec2.need)
"""The dialect of all other paths."""


def select(segments: Sequence[str], settings: AnswerSettings) -> tuple[Dialect, Sequence[str]]:
    """Return the dialect of a path, and the segments behind its prefix.

    :param segments: see :func:`dfmeta.store.guest.requests.split_path`.
    """
    for dialect in DIALECTS:
        depth = len(dialect.prefix)
        if (*segments[:depth],) == dialect.prefix and dialect.ec2_tree in ("", settings.ec2_tree):
            return dialect, segments[depth:]
    return EC2, segments


def answer(
    document: Document, segments: Sequence[str], settings: AnswerSettings, *, mac: str = ""
) -> Answer | None:
    """Answer a GET or HEAD; None if the path does not exist.

    :param segments: see :func:`select`.
    :param mac: of the guest's port; empty: not known.
    """
    dialect, rest = select(segments, settings)
    return dialect.answer(document, rest, AnswerContext(mac, settings.templates))


def need(path: str, settings: AnswerSettings) -> Need:
    """Return the parts of a record that the answer for *path* depends on, for any method.

    :param path: origin-form, from a guest.
    """
    segments = requests.split_path(path)
    if segments is None:
        return ANY_HALF
    dialect, rest = select(segments, settings)
    return dialect.parts(rest)


def not_found(segments: Sequence[str], settings: AnswerSettings) -> Answer:
    """Return the 404 of a path, in the form of its dialect."""
    return select(segments, settings)[0].not_found


class _RecordAnswers:
    """The document and the answers that have been built from a record."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.document: Document = documents.from_record(record)
        self.answers: dict[tuple[str, ...], Answer] = {}
        """By the MAC of the port and the segments of the path: an instance with two ports has two
        MACs."""
        self.size = len(record.userdata or b"") + (1 + PARSED) * len(record.metadata or "")
        self.room = ANSWERS


class Answers:
    """Answers from records, with their entity tags. Safe to use from several threads.

    :param settings: configuration of all answers.
    """

    def __init__(self, settings: AnswerSettings) -> None:
        self._settings = settings
        self._kept: LruCache[str, _RecordAnswers] = LruCache(BYTES)

    def answer(
        self, record: Record, segments: Sequence[str], request: GuestRequest, *, mac: str = ""
    ) -> Answer | None:
        """Answer a GET or HEAD with its entity tag; None if the path does not exist.

        304 if the guest has the answer already.

        :param segments: of the request's path; see :func:`select`.
        :param request: the request, of which only If-None-Match is read.
        :param mac: of the guest's port; empty: not known.
        :raises StoreError: the record's document is not a JSON object.
        """
        entry = self._entry(record)
        key = (mac, *segments)
        kept = entry.answers.get(key)
        if kept is None:
            fresh = answer(entry.document, segments, self._settings, mac=mac)
            if fresh is None:
                return None
            kept = requests.tagged(fresh)
            self._keep(entry, key, kept)
        return requests.unless_known(kept, request)

    def _entry(self, record: Record) -> _RecordAnswers:
        entry = self._kept.get(record.id)
        # Nearly always it is the same object. A record made of defaults is a new one each time.
        if entry is None or (entry.record is not record and entry.record != record):
            entry = _RecordAnswers(record)
            self._kept.put(record.id, entry, size=ENTRY + entry.size)
        return entry

    def _keep(self, entry: _RecordAnswers, key: tuple[str, ...], answer: Answer) -> None:
        size = 0 if answer.body is entry.record.userdata else len(answer.body)
        if size <= entry.room:
            entry.answers[key] = answer
            entry.room -= size
            entry.size += size
            self._kept.put(entry.record.id, entry, size=ENTRY + entry.size)
