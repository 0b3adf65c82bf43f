"""The one tree of dfmeta's errors.

Each class states one cause as a sentence with named fields; the fields stay on the instance, so
that a caller can act on the cause and a log line can name it without parsing text. Each has a name
too, which ends an operator's line and heads a section of doc/source/errors.rst: it stays.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

SHOWN: Final = 200
"""Characters of a value that an error repeats."""
_VALUES: Final = ("value", "rule")  # whoever types a command may fill these at any length


class DfmetaError(Exception):
    """Root of the tree.

    :param fields: the values that the class's ``sentence`` names; kept as ``self.fields`` and
        reachable as attributes. A field ``remedy`` says what to do, in the place of ``advice``.
    """

    name: ClassVar[str] = "failed"
    """What an operator can search for; each class has its own."""
    sentence: ClassVar[str] = "dfmeta failed"
    advice: ClassVar[str] = ""
    """What to do next where whoever raises it does not know better; a sentence without its dot."""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(self.sentence.format(**{**fields, **_shortened(fields)}))

    @property
    def remedy(self) -> str:
        """What to do about it; empty when nobody can say."""
        return str(self.fields.get("remedy") or self.advice)

    @property
    def line(self) -> str:
        """The one line for an operator: what is wrong, what to do next, and the error's name."""
        said = str(self).rstrip(".")
        if self.remedy and "{remedy}" not in self.sentence:
            said = f"{said}{'' if said.endswith('?') else '.'} {self.remedy}"
        return f"{printable(said)} [{self.name}]"

    def __getattr__(self, name: str) -> object:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)


def printable(text: str) -> str:
    """Return a text on one line, with what would move a terminal's cursor escaped."""
    line = " ".join(text.split())
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def _shortened(fields: dict[str, object]) -> dict[str, object]:
    texts = {name: str(fields[name]) for name in _VALUES if isinstance(fields.get(name), str)}
    return {name: f"{one[:SHOWN]}..." for name, one in texts.items() if len(one) > SHOWN}


class ConfigError(DfmetaError):
    """A value in the configuration is wrong; the daemon ends with exit status 2."""

    name = "wrong-option"
    sentence = "option {option} = {value!r} is wrong: {cause}. {remedy}"


class UnknownOptionError(DfmetaError):
    """A name in a configuration file is no option: a warning at start, and nothing else."""

    name = "unknown-option"
    sentence = "{file}: {what} is unknown to dfmeta, and is passed over"


class StartError(DfmetaError):
    """The host lacks something that the daemon cannot start without; exit status 2."""

    name = "cannot-start"
    sentence = "cannot start: {cause}. {remedy}"


class AlreadyRunningError(DfmetaError):
    """Another daemon already serves this bridge."""

    name = "already-running"
    sentence = "another dfmeta-agent already serves {bridge} (it holds {lock}). Stop it first"


class PacketError(DfmetaError):
    """A frame is not what its place in the pipeline promises."""

    name = "odd-packet"
    sentence = "{layer}: {cause}"


class PipelineError(DfmetaError):
    """A flow does something that its table does not declare; a programming error."""

    name = "wrong-flow"
    sentence = "table {table}: {cause}"


class KeyRangeError(DfmetaError):
    """An endpoint or a slot that has no key."""

    name = "no-key"
    sentence = "no key for ofport {ofport}, VID {vid}, slot {slot}: {cause}"
    advice = "Give it a lower number: ovs-vsctl set Interface PORT ofport_request=N"


class SwitchError(DfmetaError):
    """The switch refused a message."""

    name = "switch-refused"
    sentence = "the switch refused {what}: {cause}"
    advice = "See what ovs-vswitchd's log says of it, and that the bridge speaks OpenFlow13"


class SwitchTimeoutError(DfmetaError):
    """The switch did not confirm a batch in time."""

    name = "switch-slow"
    sentence = "the switch did not confirm {what} within {seconds} s"
    advice = "See whether ovs-vswitchd has a core to itself, and what its log says"


class NotConnectedError(DfmetaError):
    """There is no connection to the switch at the moment; a new one is being made."""

    name = "switch-away"
    sentence = "not connected to {bridge}"
    advice = "See that ovs-vswitchd runs; the connection is made again by itself"


class OvsdbError(DfmetaError):
    """A transaction on the Open vSwitch database failed."""

    name = "ovsdb"
    sentence = "OVSDB at {connection}: {cause}"
    advice = "Start Open vSwitch, or mend [df_metadata] ovsdb_connection"


class SourceError(DfmetaError):
    """An identity source could not say anything, which is not the same as knowing nothing."""

    name = "identity-source"
    sentence = "identity source {source}: {cause}"
    advice = "Mend it, or leave it out of [df_metadata] identity_sources; it is asked again"


class DomainError(DfmetaError):
    """A file is not a libvirt domain's XML, or not one that may be read."""

    name = "not-a-domain"
    sentence = "not a libvirt domain: {cause}"
    advice = "Name a file that virsh dumpxml wrote"


class DeviceError(DfmetaError):
    """A document of devices, or what one was to be made of, breaks a rule; nothing was changed."""

    name = "wrong-devices"
    sentence = "devices: {path}: {cause}"
    advice = "Mend it: doc/source/devices.rst says what devices may be"

    path: str
    """Where in the document, such as ``devices[0].tags[1]``."""
    cause: str


class TagRuleError(DfmetaError):
    """A rule that gives a tag to a device is none, or there is not one device that it means."""

    name = "wrong-tag"
    sentence = "--tag {rule!r}: {cause}"
    advice = "See dfmeta devices from-libvirt --help for how a rule is written"

    cause: str


class HostError(DfmetaError):
    """The kernel refused an address, a rule or a route."""

    name = "host-network"
    sentence = "{what} on {device}: {cause}"
    advice = "See that it has CAP_NET_ADMIN, and that nothing else manages the device"


class BackendError(DfmetaError):
    """The backend gave no answer that could be passed on."""

    name = "backend"
    sentence = "{backend}: {cause}"


class BackendUnreachableError(BackendError):
    """No byte of the request can have been acted on: it may be sent again."""

    name = "backend-unreachable"


class BackendTimeoutError(BackendError):
    """The request was sent and the answer did not come in time."""

    name = "backend-slow"


class BackendAnswerError(BackendError):
    """What was answered cannot be passed on: it is not HTTP, ambiguous or too large."""

    name = "backend-answer"


class BackendUpstreamError(BackendError):
    """Whoever the store asks for what it does not have answers nonsense: a guest gets 502."""

    name = "backend-upstream"


class UpstreamError(DfmetaError):
    """An exchange with a backend's server came to nothing."""

    name = "exchange"
    sentence = "{cause}"


class UpstreamAwayError(UpstreamError):
    """There is no connection to be had: no byte of the request was sent."""

    name = "exchange-away"


class UpstreamLostError(UpstreamError):
    """The connection ended before the whole answer had come."""

    name = "exchange-lost"


class UpstreamStaleError(UpstreamLostError):
    """A connection that had been kept ended before the first byte of the answer."""

    name = "exchange-stale"


class UpstreamAnswerError(UpstreamError):
    """What came is no answer that can be passed on."""

    name = "exchange-answer"


HeadFault = Literal["malformed", "request_line", "header", "header_lines", "header_timeout"]
BodyFault = Literal["body", "chunks", "body_timeout"]


class BadRequestError(DfmetaError):
    """A guest has sent what is no request, or too much of one; its connection is to be closed.

    ``cause`` is a sentence for the guest and for the log, and quotes nothing that the guest sent.
    """

    name = "bad-request"
    sentence = "refused with {status}: {cause}"

    status: int
    """Of the answer (RFC 9110, 15.5)."""
    reason: HeadFault | BodyFault
    """The label of a metric."""
    cause: str

    def __init__(self, *, status: int, reason: HeadFault | BodyFault, cause: str) -> None:
        super().__init__(status=status, reason=reason, cause=cause)


class ForwardedForError(DfmetaError):
    """What a trusted proxy says of whom it asks for cannot be read; nothing of it is quoted."""

    name = "forwarded-for"
    sentence = "X-Forwarded-For: {cause}"


class StoreError(DfmetaError):
    """The store could not do what it was asked."""

    name = "store"
    sentence = "store: {cause}"
    advice = "See what [store] connection names, and whether its disk or server is well"


class NoRecordError(StoreError):
    """There is no such record, or it does not have what was asked for; nothing was changed."""

    name = "no-record"
    advice = "dfmeta store list shows what there is"


class NoTokenError(StoreError):
    """No token has that name."""

    name = "no-token"
    advice = "dfmeta token list shows what there is"


class ImportIncompleteError(StoreError):
    """Something of what was to be imported was not; the rest was."""

    name = "import-incomplete"
    advice = "Mend what the lines above name, and import that again"


class BackupError(StoreError):
    """A file cannot be a back-up, or nothing can be restored from it; nothing was changed."""

    name = "backup"


class StoreDamagedError(StoreError):
    """What is in the database's file is not what dfmeta, or SQLite, wrote there."""

    name = "store-damaged"
    advice = "Restore a back-up: dfmeta store restore FILE, or move it away to begin anew"


class StoreReadOnlyError(StoreError):
    """The database can be read and not written."""

    name = "store-read-only"
    advice = "See that its disk is mounted for writing, and that the server takes writes"


class StoreFullError(StoreError):
    """The database's disk has no room; what was being written is not there."""

    name = "store-full"
    advice = "Make room on the disk that it is on, and do it again"


class StoreBusyError(StoreError):
    """Another program is writing to the database for too long; nothing was changed."""

    name = "store-busy"
    advice = "Try again; if it stays so, see who has the file open: fuser -v FILE"


class StoreGoneError(StoreError):
    """The database's file was there when it was opened, and is not there any more."""

    name = "store-gone"
    advice = "Put it back with dfmeta store restore FILE, or restart for an empty store"


class StoreAccessError(StoreError):
    """This user may not use the database's file, its folder, or the server's tables."""

    name = "store-access"
    advice = "Run it as the file's owner, or name another file in [store] connection"


class StoreSchemaError(StoreError):
    """A newer dfmeta has written the database; nothing was changed."""

    name = "store-schema"
    advice = "Install the newer dfmeta that wrote it, or restore a back-up"


class StoreAwayError(StoreError):
    """The database does not answer; it is asked again by whatever needs it next."""

    name = "store-away"
    advice = "Start the server, or mend its address, user and password in [store] connection"


class StoreRefusedError(StoreError):
    """A store elsewhere does not let whoever asks do this, whatever record it is."""

    name = "store-refused"
    advice = "Give a token that may do this: --token-file FILE, or DFMETA_TOKEN"


class NoApiError(StoreError):
    """What answers at a URL is no admin API of a store."""

    name = "no-api"
    advice = "Give the [df_metadata] admin_listen of a dfmeta with backend = store, and no path"


class RecordError(StoreError):
    """A record that was offered to the store is not acceptable; nothing was changed."""

    name = "wrong-value"
    sentence = "{what} = {value!r} is wrong: {cause}. {remedy}"


class TokenFileError(StoreError):
    """The file of tokens cannot be used as it is; nothing was changed."""

    name = "token-file"
    sentence = "{path}: {cause}. {remedy}"


class Unauthorized(DfmetaError):  # noqa: N818  # the status' own name
    """Nobody knows who asks: 401 (RFC 9110, 15.5.2). ``message`` is for the client to read."""

    name = "unauthorized"
    sentence = "{message}"

    message: str


class Forbidden(DfmetaError):  # noqa: N818  # the status' own name
    """The client's token is valid and has not the scope: 403 (RFC 9110, 15.5.4).

    ``message`` is for the client.
    """

    name = "forbidden"
    sentence = "{message}"

    message: str
    client: str
    """Its name, for the log."""


class AuthUnavailable(DfmetaError):  # noqa: N818  # beside the two above
    """Whether a token is good cannot be said now: 503. ``cause`` is for the log alone."""

    name = "auth-unavailable"
    sentence = "{message}: {cause}"
    advice = "See that the issuer of [store] oidc_issuer answers"

    message: str
    cause: str


class IssuerError(DfmetaError):
    """The issuer of tokens gave no keys that can be used."""

    name = "token-issuer"
    sentence = "{url}: {cause}"
    advice = "See that [store] oidc_issuer or oidc_jwks_url is right, and that it answers"

    cause: str


class LookupAwayError(StoreAwayError):
    """Upstream is slow, away or fails: whether it has a record is not known, and asked again later.

    A field ``whole`` says whom it concerns: True, everybody who would ask; False, nobody else.
    """

    name = "lookup-away"
    sentence = "store: look-up at {upstream}: {cause}"
    advice = "See that [store] lookup_base_url answers, within lookup_timeout"


class LookupAnswerError(StoreError):
    """What upstream answers is nothing that can be stored or passed on."""

    name = "lookup-answer"
    sentence = "store: look-up at {upstream}: {cause}"
    advice = "See that [store] lookup_base_url is a store with GET /device-metadata"


class ApiError(DfmetaError):
    """A request to the store's admin API is refused. All of it is for the client to read."""

    name = "api"
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

    name = "not-running"
    sentence = "dfmeta-agent does not answer at {address}: {cause}. {remedy}"


class UsageError(DfmetaError):
    """A command line that the program cannot read; nothing was done."""

    name = "wrong-usage"
    sentence = "{cause}"


class RefusedBySystemError(DfmetaError):
    """The operating system refuses a file, a socket or memory."""

    name = "system"
    sentence = "{what}: {cause}"
    advice = "See that this user may use it, and that its disk is well"


class UnexpectedError(DfmetaError):
    """Something that nobody has thought of: an error in dfmeta."""

    name = "unexpected"
    sentence = "{kind} in {place}: {cause}"
    advice = (
        "An error in dfmeta: report it to its maintainers, with what DFMETA_DEBUG=1 has it print"
    )
