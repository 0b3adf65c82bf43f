"""All error classes of dfmeta, in one tree.

Each class states one cause as a sentence with named fields. The fields stay on the instance, so
that a caller can act on the cause and a log line can name it without parsing text. Each class also
has a name, which ends the line for the operator and does not change. doc/source/errors.rst is made
from this module.
"""

from typing import ClassVar, Final, Literal

SHOWN: Final = 200
"""Maximum number of characters of a value that an error repeats."""
_VALUES: Final = ("value", "rule")  # fields that come from a command line, of any length


class DfmetaError(Exception):
    """Root of the tree.

    :param fields: the values that the class's ``sentence`` names; kept as ``self.fields`` and
        available as attributes. A field ``remedy`` replaces ``advice``.
    """

    name: ClassVar[str] = "failed"
    """Identifier that an operator can search for; unique for each class."""
    sentence: ClassVar[str] = "dfmeta failed"
    advice: ClassVar[str] = ""
    """Remedy where the code that raises the error has none; a sentence without its final dot."""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        values = {name: short(str(fields[name])) for name in _VALUES if name in fields}
        super().__init__(self.sentence.format(**(fields | values)))

    @property
    def cause(self) -> str:
        """Return the field of that name; empty if the error has none."""
        return str(self.fields.get("cause", ""))

    @property
    def remedy(self) -> str:
        """Return the next step for the operator; empty if there is no known remedy."""
        return str(self.fields.get("remedy") or self.advice)

    @property
    def line(self) -> str:
        """Return one line for the operator: the fault, the remedy, and the error's name."""
        text = str(self).rstrip(".")
        if self.remedy and "{remedy}" not in self.sentence:
            text = f"{text}{'' if text.endswith('?') else '.'} {self.remedy}"
        return f"{printable(text)} [{self.name}]"

    def __getattr__(self, name: str) -> object:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)


def printable(text: str) -> str:
    """Return *text* on one line, with characters that could move a terminal's cursor escaped."""
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def short(text: str) -> str:
    """Return a value in the length that an error may repeat."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


class ConfigError(DfmetaError):
    """A value in the configuration is wrong; exit status 2. A reload keeps the values in force."""

    name = "wrong-option"
    sentence = "option {option} = {value!r} is wrong: {cause}. {remedy}"


class UnknownOptionError(DfmetaError):
    """A name in a configuration file is not an option and is ignored; a warning at start only."""

    name = "unknown-option"
    sentence = "{file}: {what} is unknown to dfmeta and is ignored"


class StartError(DfmetaError):
    """The host lacks something that the daemon needs to start, after startup_timeout; status 2."""

    name = "cannot-start"
    sentence = "cannot start: {cause}. {remedy}"


class AlreadyRunningError(DfmetaError):
    """Another daemon serves this bridge, or has not finished its shutdown; nothing was changed."""

    name = "already-running"
    sentence = "another dfmeta-agent already serves {bridge} (it holds {lock}). Stop it first"


class PacketError(DfmetaError):
    """A frame does not match the flow that sent it to the controller; it is dropped and counted."""

    name = "odd-packet"
    sentence = "{layer}: {cause}"


class PipelineError(DfmetaError):
    """A flow does something that its table does not declare; a programming error."""

    name = "wrong-flow"
    sentence = "table {table}: {cause}"


class KeyRangeError(DfmetaError):
    """An endpoint or a slot is outside the range that has keys; ``dfmeta ports`` lists the port."""

    name = "no-key"
    sentence = "no key for ofport {ofport}, VID {vid}, slot {slot}: {cause}"
    advice = "Give the port a lower number: ovs-vsctl set Interface PORT ofport_request=N"


class SwitchError(DfmetaError):
    """The switch refused a flow or a bundle of flows. The daemon reconciles and tries again."""

    name = "switch-refused"
    sentence = "the switch refused {what}: {cause}"
    advice = "Read ovs-vswitchd's log, and check that the bridge speaks OpenFlow13"


class SwitchTimeoutError(DfmetaError):
    """The switch did not confirm a batch in time. The daemon reconciles and tries again."""

    name = "switch-slow"
    sentence = "the switch did not confirm {what} within {seconds} s"
    advice = "Check that ovs-vswitchd gets enough CPU time, and read its log"


class NotConnectedError(DfmetaError):
    """There is no connection to the switch at the moment; its flows serve known guests."""

    name = "switch-away"
    sentence = "not connected to {bridge}"
    advice = "Check that ovs-vswitchd runs; dfmeta reconnects automatically"


class OvsdbError(DfmetaError):
    """Open vSwitch's database does not answer, or refuses a change; known guests are served."""

    name = "ovsdb"
    sentence = "OVSDB at {connection}: {cause}"
    advice = "Start Open vSwitch, or correct [df_metadata] ovsdb_connection"


class SourceError(DfmetaError):
    """The query to an identity source failed; ports that only this source knows have to wait."""

    name = "identity-source"
    sentence = "identity source {source}: {cause}"
    advice = "Fix it, or remove it from [df_metadata] identity_sources; dfmeta retries"


class DomainError(DfmetaError):
    """A file is not the XML of a libvirt domain, or is not acceptable as one."""

    name = "not-a-domain"
    sentence = "not a libvirt domain: {cause}"
    advice = "Give a file that virsh dumpxml wrote"


class DeviceError(DfmetaError):
    """A document of devices, or its source, breaks a rule; nothing was changed."""

    name = "wrong-devices"
    sentence = "devices: {path}: {cause}"
    advice = "Correct it: doc/source/devices.rst has the rules for devices"

    path: str
    """Path of the faulty value in the document, such as ``devices[0].tags[1]``."""


class TagRuleError(DfmetaError):
    """A rule that gives a tag to a device is invalid, or does not match exactly one device."""

    name = "wrong-tag"
    sentence = "--tag {rule!r}: {cause}"
    advice = "dfmeta devices from-libvirt --help shows how to write a rule"


class HostError(DfmetaError):
    """The kernel refused an address, a rule, a route or a setting. The daemon tries again."""

    name = "host-network"
    sentence = "{what} on {device}: {cause}"
    advice = "Check that dfmeta has CAP_NET_ADMIN and that nothing else manages the device"


class BackendError(DfmetaError):
    """The backend gave no answer that can be forwarded to the guest; the log has the cause."""

    name = "backend"
    sentence = "{backend}: {cause}"


class BackendUnreachableError(BackendError):
    """The backend cannot have processed any byte of the request, so it may be sent again."""

    name = "backend-unreachable"


class BackendTimeoutError(BackendError):
    """The request was sent, and the answer did not arrive in time."""

    name = "backend-slow"


class BackendAnswerError(BackendError):
    """The answer cannot be forwarded: it is not HTTP, ambiguous or too large."""

    name = "backend-answer"


class BackendUpstreamError(BackendError):
    """The upstream store gave an answer that cannot be used; the guest gets 502."""

    name = "backend-upstream"


class UpstreamError(DfmetaError):
    """An HTTP exchange with a backend's server failed. It becomes one of the errors of backends."""

    name = "exchange"
    sentence = "{cause}"


class UpstreamAwayError(UpstreamError):
    """No connection could be made, so no byte of the request was sent."""

    name = "exchange-away"


class UpstreamLostError(UpstreamError):
    """The connection ended before the answer was complete."""

    name = "exchange-lost"


class UpstreamStaleError(UpstreamLostError):
    """A kept-alive connection ended before the first byte of the answer."""

    name = "exchange-stale"


class UpstreamAnswerError(UpstreamError):
    """The received bytes are not an answer that can be forwarded."""

    name = "exchange-answer"


class HaproxyError(DfmetaError):
    """haproxy failed; the daemon starts another one. ``haproxy:`` begins its lines of the log."""

    name = "haproxy-failed"
    sentence = "haproxy failed: {cause}"


HeadFault = Literal["malformed", "request_line", "header", "header_lines", "header_timeout"]
BodyFault = Literal["body", "chunks", "body_timeout"]


class BadRequestError(DfmetaError):
    """A guest sent an invalid request, or one that is too large; close its connection.

    ``cause`` is a sentence for the guest and for the log. It quotes nothing that the guest sent.
    """

    name = "bad-request"
    sentence = "refused with {status}: {cause}"

    status: int
    """Status of the answer (RFC 9110, 15.5)."""
    reason: HeadFault | BodyFault
    """Value of the metric's label."""

    def __init__(self, *, status: int, reason: HeadFault | BodyFault, cause: str) -> None:
        super().__init__(status=status, reason=reason, cause=cause)


class ForwardedForError(DfmetaError):
    """The X-Forwarded-For of a trusted proxy cannot be parsed. The error quotes none of it."""

    name = "forwarded-for"
    sentence = "X-Forwarded-For: {cause}"


class StoreError(DfmetaError):
    """The store could not complete a request."""

    name = "store"
    sentence = "store: {cause}"
    advice = "Check [store] connection, and check the disk or the server that it names"


class NoRecordError(StoreError):
    """The record, or the requested part of it, does not exist; nothing was changed."""

    name = "no-record"
    advice = "dfmeta store list shows the records"


class NoTokenError(StoreError):
    """No token has that name."""

    name = "no-token"
    advice = "dfmeta token list shows the tokens"


class ImportIncompleteError(StoreError):
    """Some records could not be imported; the lines before this one name them."""

    name = "import-incomplete"
    advice = "Correct the entries that the lines above name, and import them again"


class BackupError(StoreError):
    """A backup cannot be written to, or restored from, the given file; nothing was changed."""

    name = "backup"


class StoreDamagedError(StoreError):
    """The file of the database is not as dfmeta or SQLite wrote it; guests get 503, not 404."""

    name = "store-damaged"
    advice = "Restore a backup: dfmeta store restore FILE, or move the file away for an empty store"


class StoreReadOnlyError(StoreError):
    """The database can be read but not written: a read-only disk, or a standby of PostgreSQL."""

    name = "store-read-only"
    advice = "Check that its disk is mounted for writing, and that the server accepts writes"


class StoreFullError(StoreError):
    """The disk of the database is full: this write was not stored, earlier data is intact."""

    name = "store-full"
    advice = "Make room on the disk of the database, and try again"


class StoreBusyError(StoreError):
    """Another program uses the database for more than five seconds; nothing was changed."""

    name = "store-busy"
    advice = "Try again; if it persists, find the programs that use the file: fuser -v FILE"


class StoreGoneError(StoreError):
    """The database's file was removed while open: 503 until it is back, and never a new file."""

    name = "store-gone"
    advice = "Restore it with dfmeta store restore FILE, or restart for an empty store"


class StoreAccessError(StoreError):
    """This user may not use the database's file, directory or tables, or it is no regular file."""

    name = "store-access"
    advice = "Run it as the file's owner, or set another file in [store] connection"


class StoreSchemaError(StoreError):
    """A newer dfmeta has upgraded the schema of the database; nothing was changed."""

    name = "store-schema"
    advice = "Install the newer dfmeta that wrote it, or restore a backup"


class StoreAwayError(StoreError):
    """The database, or the admin API at ``--url``, does not answer. A daemon tries again."""

    name = "store-away"
    advice = "Start the server, or correct its address, user and password in [store] connection"


class StoreRefusedError(StoreError):
    """The admin API at ``--url`` refuses the token: 401, unknown or expired; 403, no scope."""

    name = "store-refused"
    advice = "Give a token that may do this: --token-file FILE, or DFMETA_TOKEN"


class NoApiError(StoreError):
    """The server at ``--url`` is not a store's admin API, or the URL has a path."""

    name = "no-api"
    advice = "Give the [df_metadata] admin_listen of a dfmeta with backend = store, without a path"


class RecordError(StoreError):
    """A value of a command or of a record is wrong; nothing was changed. Exit status 2."""

    name = "wrong-value"
    sentence = "{what} = {value!r} is wrong: {cause}. {remedy}"


class TokenFileError(StoreError):
    """The token file is invalid or open to other users; a running daemon keeps its tokens."""

    name = "token-file"
    sentence = "{path}: {cause}. {remedy}"


class Unauthorized(DfmetaError):  # noqa: N818  # the status' own name
    """The client is not authenticated: 401 (RFC 9110, 15.5.2). ``message`` is sent to it."""

    name = "unauthorized"
    sentence = "{message}"

    message: str


class Forbidden(DfmetaError):  # noqa: N818  # the status' own name
    """The token is valid but lacks the scope: 403 (RFC 9110, 15.5.4). ``message`` is sent to it."""

    name = "forbidden"
    sentence = "{message}"

    message: str
    client: str
    """The client's name, for the log."""


class AuthUnavailable(DfmetaError):  # noqa: N818  # beside the two above
    """A token cannot be verified at the moment: 503. ``cause`` is for the log only."""

    name = "auth-unavailable"
    sentence = "{message}: {cause}"
    advice = "Check that the issuer of [store] oidc_issuer answers"

    message: str


class IssuerError(DfmetaError):
    """The issuer of tokens gave no usable keys; requests with its tokens get 503 until it does."""

    name = "token-issuer"
    sentence = "{url}: {cause}"
    advice = "Check that [store] oidc_issuer or oidc_jwks_url is correct, and that it answers"


class LookupAwayError(StoreAwayError):
    """The upstream store is slow, unreachable or fails; whether it has the record is unknown.

    The lookup is repeated later; guests that need it get 503. The field ``whole`` is True if all
    lookups would fail in the same way, False if only this one is affected.
    """

    name = "lookup-away"
    sentence = "store: lookup at {upstream}: {cause}"
    advice = "Check that [store] lookup_base_url answers within lookup_timeout"


class LookupAnswerError(StoreError):
    """The upstream store gave an answer that cannot be stored or forwarded; the guest gets 502."""

    name = "lookup-answer"
    sentence = "store: lookup at {upstream}: {cause}"
    advice = "Check that [store] lookup_base_url is a store with GET /device-metadata"


class ApiError(DfmetaError):
    """A request to the store's admin API is refused. All fields are sent to the client."""

    name = "api"
    sentence = "refused with {status}: {message}"

    status: int
    message: str

    @property
    def errors(self) -> tuple[str, ...]:
        """Return the individual faults; empty if ``message`` is sufficient."""
        faults = self.fields.get("errors", ())
        return tuple(faults) if isinstance(faults, list | tuple) else ()


class SubportListError(DfmetaError):
    """The list of subports in a port's row cannot be read, or would be too long."""

    name = "subport-list"
    sentence = "external_ids:dfmeta-subports cannot be used: {cause}"
    advice = (
        "Correct it, or remove it with `ovs-vsctl remove Interface <port> external_ids "
        "dfmeta-subports`"
    )


class AttachError(DfmetaError):
    """A request of a VM for the attachments of its containers failed; the VM gets the cause."""

    name = "attach"
    sentence = "attachment: {cause}"
    advice = "Try again; dfmeta doctor on the host shows the cause"
    status: ClassVar[int] = 500
    """Status of the answer (RFC 9110, 15)."""
    public: ClassVar[bool] = False
    """Whether the cause names only what the VM has or has sent, so that the VM may be told it."""

    @property
    def vm_text(self) -> str:
        """Return the text for the VM. It names nothing that is the host's alone."""
        if self.public:
            return f"{self.cause}. {self.remedy}"
        return f"The host cannot change the networks of this VM's containers now. {self.advice}"


class AttachConflictError(AttachError):
    """409: the container has this interface on another network; nothing was changed."""

    name = "attach-conflict"
    advice = "Delete the attachment first, or use another interface name"
    status, public = 409, True


class AttachNetworkError(AttachError):
    """422: the network is unknown, or does not have the requested address or MAC."""

    name = "attach-network"
    advice = "GET /dfmeta/v1/status lists the networks"
    status, public = 422, True


class AttachQuotaError(AttachError):
    """429: the VM has as many attachments as it may have."""

    name = "attach-quota"
    advice = "Delete attachments that no container uses"
    status, public = 429, True


class AttachRateError(AttachQuotaError):
    """429: the VM asks for new attachments too quickly."""

    name = "attach-rate"
    advice = "Try again in a second"


class AttachDriverError(AttachError):
    """503: the data plane or the database did not do its part. The request can be repeated."""

    name = "attach-driver"
    status = 503


class AttachFullError(AttachError):
    """507: no VLAN id of the VM, or no address of the network, is free."""

    name = "attach-full"
    advice = "Delete attachments that no container uses, or enlarge the range"
    status, public = 507, True


class NotRunningError(DfmetaError):
    """A command needs the daemon, and no daemon answers at ``admin_listen``."""

    name = "not-running"
    sentence = "dfmeta-agent does not answer at {address}: {cause}. {remedy}"


class UsageError(DfmetaError):
    """The command line cannot be parsed; nothing was done."""

    name = "wrong-usage"
    sentence = "{cause}"


class RefusedBySystemError(DfmetaError):
    """The operating system refuses access to a file, a socket or memory."""

    name = "system"
    sentence = "{what}: {cause}"
    advice = "Check that this user may use it, and that its disk works"


class UnexpectedError(DfmetaError):
    """An exception that dfmeta does not handle: an error in dfmeta; exit status 1.

    A daemon also ends so when one of its essential threads has ended: readiness reports
    ``threads``, running requests end as after SIGTERM, and flows and listener stay.
    """

    name = "unexpected"
    sentence = "{kind} in {place}: {cause}"
    advice = (
        "This is an error in dfmeta: report it to its maintainers, with the traceback that "
        "DFMETA_DEBUG=1 prints"
    )
