"""The one tree of dfmeta's errors.

Each class states one cause as a sentence with named fields; the fields stay on the instance, so
that a caller can act on the cause and a log line can name it without parsing text.
"""

from __future__ import annotations

from typing import ClassVar


class DfmetaError(Exception):
    """Root of the tree.

    :param fields: the values that the class's ``sentence`` names; kept as ``self.fields`` and
        reachable as attributes.
    """

    sentence: ClassVar[str] = "dfmeta failed"

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(self.sentence.format(**fields))

    def __getattr__(self, name: str) -> object:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)


class ConfigError(DfmetaError):
    """A value in the configuration is wrong; the daemon ends with exit status 2."""

    sentence = "option {option} = {value!r} is wrong: {cause}. {remedy}"


class StartError(DfmetaError):
    """The host lacks something that the daemon cannot start without; exit status 2."""

    sentence = "cannot start: {cause}. {remedy}"


class AlreadyRunningError(DfmetaError):
    """Another daemon already serves this bridge."""

    sentence = "another dfmeta-agent already serves {bridge} (it holds {lock}). Stop it first"


class PacketError(DfmetaError):
    """A frame is not what its place in the pipeline promises."""

    sentence = "{layer}: {cause}"


class PipelineError(DfmetaError):
    """A flow does something that its table does not declare; a programming error."""

    sentence = "table {table}: {cause}"


class KeyRangeError(DfmetaError):
    """An endpoint or a slot that has no key."""

    sentence = "no key for ofport {ofport}, VID {vid}, slot {slot}: {cause}"


class SwitchError(DfmetaError):
    """The switch refused a message."""

    sentence = "the switch refused {what}: {cause}"


class SwitchTimeoutError(DfmetaError):
    """The switch did not confirm a batch in time."""

    sentence = "the switch did not confirm {what} within {seconds} s"


class NotConnectedError(DfmetaError):
    """There is no connection to the switch at the moment; a new one is being made."""

    sentence = "not connected to {bridge}"


class OvsdbError(DfmetaError):
    """A transaction on the Open vSwitch database failed."""

    sentence = "OVSDB at {connection}: {cause}"


class SourceError(DfmetaError):
    """An identity source could not say anything, which is not the same as knowing nothing."""

    sentence = "identity source {source}: {cause}"


class DomainError(DfmetaError):
    """A file is not a libvirt domain's XML, or not one that may be read."""

    sentence = "not a libvirt domain: {cause}"


class DeviceError(DfmetaError):
    """A document of devices, or what one was to be made of, breaks a rule; nothing was changed."""

    sentence = "devices: {path}: {cause}"

    path: str
    """Where in the document, such as ``devices[0].tags[1]``."""
    cause: str


class TagRuleError(DfmetaError):
    """A rule that gives a tag to a device is none, or there is not one device that it means."""

    sentence = "--tag {rule!r}: {cause}"

    cause: str


class HostError(DfmetaError):
    """The kernel refused an address, a rule or a route."""

    sentence = "{what} on {device}: {cause}"


class BackendError(DfmetaError):
    """The backend gave no answer that could be passed on.

    A field ``remedy``, a sentence that says what an operator can do, may come along; it is not
    part of the sentence.
    """

    sentence = "{backend}: {cause}"

    @property
    def remedy(self) -> str:
        """What to do about it; empty when nobody can say."""
        return str(self.fields.get("remedy", ""))


class BackendUnreachableError(BackendError):
    """No byte of the request can have been acted on: it may be sent again."""


class BackendTimeoutError(BackendError):
    """The request was sent and the answer did not come in time."""


class BackendAnswerError(BackendError):
    """What was answered cannot be passed on: it is not HTTP, ambiguous or too large."""


class BackendUpstreamError(BackendError):
    """Whoever the store asks for what it does not have answers nonsense: a guest gets 502."""


class UpstreamError(DfmetaError):
    """An exchange with a backend's server came to nothing; ``remedy`` says what to do, if known."""

    sentence = "{cause}"

    @property
    def remedy(self) -> str:
        """What to do about it; empty when nobody can say."""
        return str(self.fields.get("remedy", ""))


class UpstreamAwayError(UpstreamError):
    """There is no connection to be had: no byte of the request was sent."""


class UpstreamLostError(UpstreamError):
    """The connection ended before the whole answer had come."""


class UpstreamStaleError(UpstreamLostError):
    """A connection that had been kept ended before the first byte of the answer."""


class UpstreamAnswerError(UpstreamError):
    """What came is no answer that can be passed on."""


class BadRequestError(DfmetaError):
    """A guest has sent what is no request, or too much of one; its connection is to be closed.

    ``cause`` is a sentence for the guest and for the log, and quotes nothing that the guest sent.
    """

    sentence = "refused with {status}: {cause}"

    status: int
    """Of the answer (RFC 9110, 15.5)."""
    reason: str
    """One of :data:`dfmeta.proxy.http1.REASONS`; the label of a metric."""
    cause: str


class ForwardedForError(DfmetaError):
    """What a trusted proxy says of whom it asks for cannot be read; nothing of it is quoted."""

    sentence = "X-Forwarded-For: {cause}"


class StoreError(DfmetaError):
    """The store could not do what it was asked."""

    sentence = "store: {cause}"


class StoreAwayError(StoreError):
    """The database does not answer; it is asked again by whatever needs it next."""


class StoreRefusedError(StoreError):
    """A store elsewhere does not let whoever asks do this, whatever record it is."""


class RecordError(StoreError):
    """A record that was offered to the store is not acceptable; nothing was changed."""

    sentence = "{what} = {value!r} is wrong: {cause}. {remedy}"


class TokenFileError(StoreError):
    """The file of tokens cannot be used as it is; nothing was changed."""

    sentence = "{path}: {cause}. {remedy}"


class Unauthorized(DfmetaError):  # noqa: N818  # the status' own name
    """Nobody knows who asks: 401 (RFC 9110, 15.5.2). ``message`` is for the client to read."""

    sentence = "{message}"

    message: str


class Forbidden(DfmetaError):  # noqa: N818  # the status' own name
    """Who asks is known and may not: 403 (RFC 9110, 15.5.4). ``message`` is for the client."""

    sentence = "{message}"

    message: str


class AuthUnavailable(DfmetaError):  # noqa: N818  # beside the two above
    """Whether a token is good cannot be said now: 503. ``cause`` is for the log alone."""

    sentence = "{message}: {cause}"

    message: str
    cause: str


class IssuerError(DfmetaError):
    """The issuer of tokens gave no keys that can be used."""

    sentence = "{url}: {cause}"

    cause: str


class LookupAwayError(StoreAwayError):
    """Upstream is slow, away or fails: whether it has a record is not known, and asked again later.

    A field ``whole`` says whom it concerns: True, everybody who would ask; False, nobody else.
    """

    sentence = "store: look-up at {upstream}: {cause}"


class LookupAnswerError(StoreError):
    """What upstream answers is nothing that can be stored or passed on."""

    sentence = "store: look-up at {upstream}: {cause}"


class ApiError(DfmetaError):
    """A request to the store's admin API is refused. All of it is for the client to read.

    A field ``errors``, one text for each member of the body that is wrong, may come along.
    """

    sentence = "refused with {status}: {message}"

    status: int
    message: str

    @property
    def errors(self) -> tuple[str, ...]:
        """What is wrong, one by one; empty where ``message`` says all."""
        found = self.fields.get("errors", ())
        return tuple(found) if isinstance(found, list | tuple) else ()


class NotRunningError(DfmetaError):
    """A command needs the daemon, and there is none."""

    sentence = "dfmeta-agent does not answer at {address}: {cause}. {remedy}"
