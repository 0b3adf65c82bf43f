"""Client of a remote store's admin API, for the command line.

It has the methods of :class:`~dfmeta.store.db.repository.Repository` that the API can serve. A
record is read, changed and written again: of two clients that change it at the same time, the last
one wins. Metadata and user-data are two requests; the first change stays when the second request
fails.

Trust: the operator chooses the server, which receives the operator's token. No other server
receives it: redirects are not followed. Text of an answer is shown only if it is one line.
"""

import base64
import json
import socket
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from dfmeta.errors import (
    NoApiError,
    RecordError,
    StoreAwayError,
    StoreError,
    StoreFullError,
    StoreRefusedError,
    UpstreamAnswerError,
    UpstreamError,
    UpstreamLostError,
    short,
)
from dfmeta.http.client import TIMEOUT, HttpClient, UrlRequest, client_context
from dfmeta.runtime import clock
from dfmeta.store import strict
from dfmeta.store.api import representations, requests
from dfmeta.store.db.record import (
    KEEP,
    Content,
    Keep,
    Kind,
    Network,
    Push,
    PutResult,
    Record,
    Whole,
    changed_columns,
    dump_document,
    parse_document,
    parse_network,
)
from dfmeta.store.guest.values import is_one_line

UNKNOWN: Final = datetime.min.replace(tzinfo=UTC)
"""Stands for times that the API does not report."""
_PATHS: Final = {Kind.METADATA: "device-metadata", Kind.USERDATA: "device-userdata"}
_LIST: Final = "records"
_REFUSED: Final = frozenset({401, 403})
_REMEDIES: Final = {
    401: StoreRefusedError.advice,
    403: StoreRefusedError.advice,
    507: "Free space on the disk of its database, and repeat the command",
    413: "Raise [store] max_body on that host: it is the largest body that its API accepts",
}
_READS: Final = (
    "put keeps the parts that are not given, so it reads the record first: give a token with the "
    "scopes read and write (dfmeta token create --scope read --scope write). With write alone, "
    "give the whole record: --json or --user-data, and --address"
)
_ITS_LOG: Final = "See its log for the cause"
_LISTENS: Final = (
    "Check that dfmeta-store or dfmeta-agent runs there, and that its [df_metadata] admin_listen "
    "is an address that other hosts can reach"
)
_NO_RECORD: Final = "resource not found"
"""Message of the 404 for a missing record; the 404 for an unknown path has another one."""
_AWAY: Final = frozenset({502, 503, 504})


class StoreClient:
    """Records behind an admin API. Every method raises StoreError when the exchange fails.

    :param url: ``http://HOST[:PORT][/PATH]``, or https.
    :param token: sent as a bearer token (RFC 6750, 2.1); empty: none.
    :param ca_file: file with the only certificates (PEM) that are trusted; empty: the system's
        authorities, see :func:`dfmeta.http.client.client_context`.
    :raises RecordError: the URL is invalid, or *ca_file* has no certificate.
    """

    def __init__(self, url: str, *, token: str = "", ca_file: str = "") -> None:
        self._base = _checked(url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = HttpClient(context=_context(ca_file) if ca_file else None)

    def ping(self) -> None:
        """Check that the store and its database answer."""
        self._ask("GET", "healthz/readiness")

    def get(self, record_id: str) -> Record | None:
        """Return a record as far as the API shows it: no project, no password, no times."""
        record, _networks = self._read(record_id)
        return record

    def addresses(self, record_id: str) -> tuple[str, ...]:
        """Return the networks of a record in their order."""
        return tuple(str(network) for network in self._read(record_id)[1])

    def put(
        self,
        record_id: str,
        *,
        document: Mapping[str, object] | Whole | None = None,
        userdata: bytes | Keep | None = KEEP,
        project_id: str | Keep | None = KEEP,
        http_tokens: str | Keep | None = KEEP,
        networks: Sequence[Network] | Keep = KEEP,
    ) -> PutResult:
        """Create a record, or change the given parts of it; see ``Repository.put``.

        :raises RecordError: the API cannot set one of the given values.
        """
        if project_id is not KEEP:
            raise _local("--project", project_id)
        if http_tokens is None:
            raise _local("--http-tokens", "default")
        try:
            before, had = self._read(record_id)
        except StoreRefusedError as error:
            if error.fields["status"] != HTTPStatus.FORBIDDEN:
                raise
            if networks is KEEP or not (whole := _whole(document, userdata)):
                raise StoreRefusedError(**{**error.fields, "remedy": _READS}) from error
            # The token may write but not read.
            self._push(record_id, whole, networks=networks, http_tokens=http_tokens)
            given = whole.get(Kind.METADATA, {})
            names = [Kind.USERDATA.value] if Kind.USERDATA in whole else []
            changed = [*(given if isinstance(given, Mapping) else ()), *names, "addresses"]
            return PutResult(created=False, changed=tuple(changed), compared=False)
        wanted = had if networks is KEEP else tuple(networks)
        stored = before or Record(record_id, b"", UNKNOWN, UNKNOWN)
        columns = {"userdata": userdata, "http_tokens": http_tokens}
        values, changed = changed_columns(stored, patch=document or {}, columns=columns)
        changed += ["addresses"] if wanted != had else []
        new = parse_document(record_id, values.get("metadata", stored.metadata))
        contents = _halves(before, new, changed, userdata=userdata)
        self._push(record_id, contents, networks=wanted, http_tokens=http_tokens)
        if userdata is None and "userdata" in changed:
            self._ask("DELETE", f"{_PATHS[Kind.USERDATA]}/{record_id}", missing=True)
        return PutResult(created=before is None, changed=tuple(changed))

    def _push(self, record_id: str, contents: Mapping[Kind, Content], **of_both: Any) -> None:
        self.push_all(
            [
                Push(kind=kind, record_id=record_id, content=content, **of_both)
                for kind, content in contents.items()
            ]
        )

    def push_all(self, pushes: Sequence[Push]) -> tuple[bool, ...]:
        """Send pushes in their order, one request for each; return True for each of them."""
        for push in pushes:
            body = json.dumps(requests.body_of(push), allow_nan=False).encode()
            self._ask("POST", _PATHS[push.kind], body=body)
        return (True,) * len(pushes)

    def delete(self, record_id: str) -> bool:
        """Remove both halves of a record; False when there was none."""
        paths = [f"{path}/{record_id}" for path in _PATHS.values()]
        removed = [self._ask("DELETE", path, missing=True) is not None for path in paths]
        return any(removed)

    def list(self) -> Iterator[representations.Row]:
        """Yield the summaries of all instances' records in the order of ids, page by page."""
        after = ""
        while page := self._page(after):
            yield from page
            after = str(page[-1]["id"])

    def _page(self, after: str) -> Sequence[representations.Row]:
        query = f"?after={after}" if after else ""
        body = self._ask("GET", f"{_LIST}{query}", missing=True)
        try:
            return representations.load_rows(body or b"", after=after)
        except ValueError:
            cause = f"{self._base} does not list its records: it is not a dfmeta store"
            raise NoApiError(cause=cause) from None

    def _read(self, record_id: str) -> tuple[Record | None, tuple[Network, ...]]:
        halves = {kind: self._half(kind, record_id) for kind in Kind}
        present = [half for half in halves.values() if half is not None]
        if not present:
            return None, ()
        metadata, userdata = halves[Kind.METADATA], halves[Kind.USERDATA]
        try:
            networks = tuple(parse_network(text) for text in present[0]["ipAddresses"])
            record = Record(
                id=record_id,
                seed=b"",
                created_at=UNKNOWN,
                updated_at=UNKNOWN,
                metadata=None if metadata is None else _document(metadata["metadata"]),
                userdata=None if userdata is None else _userdata(userdata),
                http_tokens=present[0].get("http_tokens"),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise NoApiError(cause=f"the answer of {self._base} is not a dfmeta record") from None
        return record, networks

    def _half(self, kind: Kind, record_id: str) -> dict[str, Any] | None:
        body = self._ask("GET", f"{_PATHS[kind]}/{record_id}", missing=True)
        if body is None:
            return None
        try:
            envelope = strict.parse_object(body)
            same = requests.parse_id(envelope["id"]) == record_id
        except (KeyError, ValueError, TypeError):
            same, envelope = False, {}
        if not same or not {"ipAddresses", kind.value} <= envelope.keys():
            cause = f"{self._base} does not report a record's addresses: it is not a dfmeta store"
            raise NoApiError(cause=cause)
        return envelope

    def _ask(
        self, method: str, path: str, *, body: bytes | None = None, missing: bool = False
    ) -> bytes | None:
        """Return the body of an answer; None for a missing record, if *missing* allows that."""
        headers = {**self._headers, "Accept": f"{representations.ENVELOPE}, application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        url, deadline = f"{self._base}/{path}", clock.now() + TIMEOUT
        try:
            response = self._client.handle_request(UrlRequest(url, headers, body, deadline, method))
        except UpstreamError as error:
            raise StoreAwayError(
                cause=f"{self._base} does not answer: {error.cause}", remedy=_reach(error)
            ) from error
        status, content = response.status, response.body
        if status in (200, 201, 204):
            return content
        errors = _errors_in(content)
        if status == 404 and missing and errors[:1] == [_NO_RECORD]:
            return None
        raise _refused(status, f"{self._base} answers {status}{_in_brackets(errors)}")


def _halves(
    before: Record | None,
    document: Mapping[str, object],
    changed: Sequence[str],
    *,
    userdata: bytes | Keep | None,
) -> dict[Kind, Content]:
    """Return the halves that have to be pushed to apply the changes.

    Addresses and http_tokens belong to both halves. They are pushed with the metadata, or with the
    user-data of a record that has no metadata.
    """
    halves: dict[Kind, Content] = {}
    alone = before is not None and before.metadata is None
    of_both = {"addresses", "http_tokens"}
    of_document = set(changed) - {"userdata"} - (of_both if alone else set())
    if before is None or of_document:
        halves[Kind.METADATA] = document
    content = before.userdata if before is not None and userdata is KEEP else userdata
    if isinstance(content, bytes) and (
        "userdata" in changed or (not halves and of_both.intersection(changed))
    ):
        halves[Kind.USERDATA] = content
    return halves


def _whole(
    document: Mapping[str, object] | Whole | None, userdata: bytes | Keep | None
) -> dict[Kind, Content]:
    """Return the halves that are given in full; empty: the record has to be read first."""
    if userdata is None or (document and not isinstance(document, Whole)):
        return {}
    halves: dict[Kind, Content] = {}
    if isinstance(document, Whole):
        halves[Kind.METADATA] = document.document
    if isinstance(userdata, bytes):
        halves[Kind.USERDATA] = userdata
    return halves


def _refused(status: int, cause: str) -> StoreError:
    if status == 404:
        return NoApiError(cause=cause)
    kind = StoreAwayError if status in _AWAY else StoreError
    kind = StoreRefusedError if status in _REFUSED else kind
    kind = StoreFullError if status == HTTPStatus.INSUFFICIENT_STORAGE else kind
    return kind(cause=cause, remedy=_REMEDIES.get(status, _ITS_LOG), status=status)


def _reach(error: UpstreamError) -> str:
    """Return the remedy for a request that got no answer."""
    match error.__cause__:
        case ssl.SSLCertVerificationError():
            return "Give the authority that signed its certificate: --ca-file FILE"
        case ssl.SSLError():
            return "Write http:// if the server does not use TLS"
        case socket.gaierror() | UnicodeError():
            return "Give a name in --url that this host can resolve, or an address"
    match error:
        case UpstreamAnswerError():
            return "Write https:// if the server uses TLS, and the port of its admin listener"
        case UpstreamLostError():
            # The server does not read all of a body that it refuses, and this client reads the
            # answer only after it has sent the body.
            return "See its log, and check that its [store] max_body is large enough for the record"
    return _LISTENS


def _context(file: str) -> ssl.SSLContext:
    try:
        return client_context(file)
    except (OSError, ValueError) as error:
        cause = None if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
        raise RecordError(
            what="--ca-file",
            value=file,
            cause=cause or "there is no certificate in it",
            remedy="Name a file with certificates in PEM",
        ) from error


def _checked(url: str) -> str:
    """Return a URL without the slashes at its end."""
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good, parts = False, urllib.parse.urlsplit("")
    if good and parts.username is None and not parts.query and not parts.fragment:
        return url.rstrip("/")
    raise RecordError(
        what="--url",
        value=url if "@" not in url else "(hidden)",
        cause="it is not the URL of an admin API",
        remedy="Write http://HOST:PORT or https://HOST:PORT; give a token with --token-file",
    )


def _local(option: str, value: object) -> RecordError:
    return RecordError(
        what=option,
        value=value or "",
        cause="the admin API cannot set this value",
        remedy="Leave it out, or run the command on the store's own host, without --url",
    )


def _document(value: object) -> str:
    if isinstance(value, str):
        return dump_document(strict.parse_object(value))
    if isinstance(value, dict):
        return dump_document(value)
    raise ValueError("not a document")


def _userdata(envelope: Mapping[str, Any]) -> bytes:
    text = envelope["userdata"] or ""
    if envelope.get("userdata_encoding") == "base64":
        return base64.b64decode(text)
    return bytes(text.encode())


def _errors_in(content: bytes) -> list[str]:
    """Return the message and the errors of an API error; empty if it is none."""
    try:
        members = json.loads(content)
        texts = [members["message"], *members.get("errors", [])]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return texts if all(isinstance(text, str) for text in texts) else []


def _in_brackets(errors: Sequence[str]) -> str:
    """Return errors of the server, shortened; empty if they are not one line."""
    text = short(", ".join(errors))
    return f" ({text})" if text and is_one_line(text) else ""
