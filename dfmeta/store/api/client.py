"""The admin API of a store elsewhere, for the command line.

It stands where a :class:`~dfmeta.store.db.repository.Repository` does, as far as the API goes. A
record is read, changed and written again: of two who do that at once the last one wins. Metadata
and user-data are two requests; what the first has done stays when the second fails.

Trust: the server is the operator's choice and gets his token. It is told to nobody else: no
redirect is followed. Nothing of an answer is shown that is not one line of text.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import httplib2

from dfmeta.exceptions import (
    NoApiError,
    RecordError,
    StoreAwayError,
    StoreError,
    StoreFullError,
    StoreRefusedError,
)
from dfmeta.store import strict
from dfmeta.store.api import listing
from dfmeta.store.api.seeds import body_of, uuid_of
from dfmeta.store.db.networks import Network, parse_network
from dfmeta.store.db.record import (
    KEEP,
    Keep,
    Kind,
    Push,
    PutResult,
    Record,
    Whole,
    dump_document,
    merge_patch,
    parse_document,
)
from dfmeta.store.guest.values import is_one_line
from dfmeta.trust import client_context

TIMEOUT: Final = 30.0
"""Seconds for a connection, and for each piece of an answer."""
ENVELOPE: Final = "application/vnd.dfmeta.record+json"
UNKNOWN: Final = datetime.min.replace(tzinfo=UTC)
"""For moments that the API does not tell."""
_PATHS: Final = {Kind.METADATA: "device-metadata", Kind.USERDATA: "device-userdata"}
_LIST: Final = "records"
_SHOWN: Final = 200
_REFUSED: Final = frozenset({401, 403})
_REMEDIES: Final = {
    401: StoreRefusedError.advice,
    403: StoreRefusedError.advice,
    507: "Make room on the disk of its database, and do it again",
    413: "It takes no more than its [store] max_body: raise that there",
}
FORBIDDEN: Final = 403
_READS: Final = (
    "A put keeps what is not named, and so reads the record first: give a token with the scopes "
    "read and write (dfmeta token create --scope read --scope write). With write alone, name the "
    "whole record: --json or --user-data, and --address"
)
_ITS_LOG: Final = "Its log says why"
_LISTENS: Final = (
    "See that dfmeta-store or dfmeta-agent runs there, and that its [df_metadata] admin_listen is "
    "an address which others can reach"
)
_NO_RECORD: Final = "resource not found"
"""The message of the 404 that means a record, and not a path that nobody has."""
_AWAY: Final = frozenset({502, 503, 504})


class Client:
    """Records behind an admin API. Every method raises StoreError when the exchange fails.

    :param url: ``http://HOST[:PORT][/PATH]``, or https.
    :param token: sent as a bearer token (RFC 6750, 2.1); empty: none.
    :param ca_file: PEM certificates that alone are trusted; empty: the system's authorities, see
        :func:`dfmeta.trust.client_context`.
    :raises RecordError: the URL cannot be one, or *ca_file* has no certificate.
    """

    def __init__(self, url: str, *, token: str = "", ca_file: str = "") -> None:
        self._base = _checked(url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = _Http(timeout=TIMEOUT)
        self._http.follow_redirects = False
        secure = urllib.parse.urlsplit(url).scheme == "https"
        context = _context(ca_file) if secure or ca_file else None
        self._type = _connection_type(context) if secure else None

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def ping(self) -> None:
        """See that the store and its database answer."""
        self._ask("GET", "healthz/readiness")

    def get(self, record_id: str) -> Record | None:
        """Return what the API tells of a record: no project, no password, no moments."""
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
        """Create a record or change what is named of it; see ``Repository.put``.

        :raises RecordError: for what the API cannot set.
        """
        if project_id is not KEEP:
            raise _local("--project", project_id)
        if http_tokens is None:
            raise _local("--http-tokens", "default")
        try:
            before, had = self._read(record_id)
        except StoreRefusedError as error:
            if error.fields["status"] != FORBIDDEN:
                raise
            if networks is KEEP or not (whole := _whole(document, userdata)):
                raise _may_not_read(error) from error
            return self._overwrite(record_id, whole, networks=networks, http_tokens=http_tokens)
        wanted = had if networks is KEEP else tuple(networks)
        old = parse_document(record_id, before.metadata) if before else {}
        if isinstance(document, Whole):
            new = dict(document.document)
        else:
            new = merge_patch(old, document or {})
        changed = [name for name in {**new, **old} if old.get(name) != new.get(name)]
        values = {"userdata": userdata, "http_tokens": http_tokens}
        for name, value in values.items():
            if value is not KEEP and value != getattr(before, name, None):
                changed.append(name)
        changed += ["addresses"] if wanted != had else []
        contents = _halves(before, new, changed, userdata=userdata)
        self.push_all(
            [
                Push(
                    kind=kind,
                    record_id=record_id,
                    content=content,
                    networks=wanted,
                    http_tokens=http_tokens,
                )
                for kind, content in contents.items()
            ]
        )
        if userdata is None and "userdata" in changed:
            self._ask("DELETE", f"{_PATHS[Kind.USERDATA]}/{record_id}", missing=True)
        return PutResult(created=before is None, changed=tuple(changed))

    def _overwrite(
        self,
        record_id: str,
        contents: Mapping[Kind, Mapping[str, object] | bytes],
        *,
        networks: Sequence[Network],
        http_tokens: str | Keep | None,
    ) -> PutResult:
        """Write halves whose whole content is named: the token may write, and may not read."""
        self.push_all(
            [
                Push(
                    kind=kind,
                    record_id=record_id,
                    content=content,
                    networks=tuple(networks),
                    http_tokens=http_tokens,
                )
                for kind, content in contents.items()
            ]
        )
        names = [Kind.USERDATA.value] if Kind.USERDATA in contents else []
        document = contents.get(Kind.METADATA, {})
        changed = [*(document if isinstance(document, Mapping) else ()), *names, "addresses"]
        return PutResult(created=False, changed=tuple(changed), compared=False)

    def push_all(self, pushes: Sequence[Push]) -> tuple[bool, ...]:
        """Send pushes in their order, each a request of its own; True: it was taken."""
        for push in pushes:
            body = json.dumps(body_of(push), allow_nan=False).encode()
            self._ask("POST", _PATHS[push.kind], body=body)
        return (True,) * len(pushes)

    def delete(self, record_id: str) -> bool:
        """Remove both halves of a record; False when there was none."""
        paths = [f"{path}/{record_id}" for path in _PATHS.values()]
        found = [self._ask("DELETE", path, missing=True) is not None for path in paths]
        return any(found)

    def list(self) -> Iterator[listing.Row]:
        """Yield all records of instances in short, in the order of their ids, page by page."""
        after = ""
        while page := self._page(after):
            yield from page
            after = str(page[-1]["id"])

    def _page(self, after: str) -> Sequence[listing.Row]:
        query = f"?after={after}" if after else ""
        body = self._ask("GET", f"{_LIST}{query}", missing=True)
        try:
            return listing.load(body or b"", after=after)
        except ValueError:
            cause = f"{self._base} does not list its records: it is no store of dfmeta's"
            raise NoApiError(cause=cause) from None

    def _read(self, record_id: str) -> tuple[Record | None, tuple[Network, ...]]:
        halves = {kind: self._half(kind, record_id) for kind in Kind}
        there = [half for half in halves.values() if half is not None]
        if not there:
            return None, ()
        metadata, userdata = halves[Kind.METADATA], halves[Kind.USERDATA]
        try:
            networks = tuple(parse_network(text) for text in there[0]["ipAddresses"])
            record = Record(
                id=record_id,
                seed=b"",
                created_at=UNKNOWN,
                updated_at=UNKNOWN,
                metadata=None if metadata is None else _document(metadata["metadata"]),
                userdata=None if userdata is None else _userdata(userdata),
                http_tokens=there[0].get("http_tokens"),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise NoApiError(cause=f"{self._base} answers with no record of dfmeta's") from None
        return record, networks

    def _half(self, kind: Kind, record_id: str) -> dict[str, Any] | None:
        body = self._ask("GET", f"{_PATHS[kind]}/{record_id}", missing=True)
        if body is None:
            return None
        try:
            envelope = strict.parse_object(body)
            same = uuid_of(envelope["id"]) == record_id
        except (KeyError, ValueError, AttributeError):
            same, envelope = False, {}
        if not same or not {"ipAddresses", kind.value} <= envelope.keys():
            cause = f"{self._base} does not tell a record's addresses: it is no store of dfmeta's"
            raise NoApiError(cause=cause)
        return envelope

    def _ask(
        self, method: str, path: str, *, body: bytes | None = None, missing: bool = False
    ) -> bytes | None:
        """Return an answer's body; None for the 404 of a record, if *missing* is no error."""
        headers = {**self._headers, "Accept": f"{ENVELOPE}, application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer, content = self._http.request(
                f"{self._base}/{path}",
                method,
                body=body,
                headers=headers,
                connection_type=self._type,
            )
        except (OSError, httplib2.HttpLib2Error, http.client.HTTPException, UnicodeError) as error:
            cause = getattr(error, "strerror", None) or type(error).__name__
            if isinstance(error, httplib2.ServerNotFoundError):
                cause = "its name cannot be resolved"
            raise StoreAwayError(
                cause=f"{self._base} does not answer: {cause}", remedy=_reach(error)
            ) from error
        status = int(answer.status)
        if status == 404 and missing and _message(content) == _NO_RECORD:
            return None
        if status not in (200, 201, 204):
            said = f"{self._base} answers {status}{_said(content)}"
            raise _refused(status, said)
        return bytes(content)


class _Http(httplib2.Http):  # type: ignore[misc]  # httplib2 has no types
    """Leaves a challenge alone: the token has been sent already, and ``Bearer`` without parameters
    (RFC 6750, 3) is more than httplib2 can read."""

    def _auth_from_challenge(self, *_args: object) -> Iterator[object]:
        return iter(())


def _connection_type(context: ssl.SSLContext | None) -> type:
    """Return the class of a connection; httplib2 makes it by itself."""

    class Connection(httplib2.HTTPSConnectionWithTimeout):  # type: ignore[misc]  # no types
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            # httplib2 takes no context; the one that it has made trusts its own list.
            self._context = context

    return Connection


def _halves(
    before: Record | None,
    document: Mapping[str, object],
    changed: Sequence[str],
    *,
    userdata: bytes | Keep | None,
) -> dict[Kind, Mapping[str, object] | bytes]:
    """Return what has to be pushed for something to change.

    What is of both halves goes with the metadata, or with user-data that is alone.
    """
    halves: dict[Kind, Mapping[str, object] | bytes] = {}
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
) -> dict[Kind, Mapping[str, object] | bytes]:
    """Return the halves that are named as a whole; none: something has to be read first."""
    if userdata is None or (document and not isinstance(document, Whole)):
        return {}
    halves: dict[Kind, Mapping[str, object] | bytes] = {}
    if isinstance(document, Whole):
        halves[Kind.METADATA] = document.document
    if isinstance(userdata, bytes):
        halves[Kind.USERDATA] = userdata
    return halves


def _may_not_read(error: StoreRefusedError) -> StoreRefusedError:
    return StoreRefusedError(**{**error.fields, "remedy": _READS})


def _refused(status: int, said: str) -> StoreError:
    if status == 404:
        return NoApiError(cause=said)
    kind = StoreAwayError if status in _AWAY else StoreError
    kind = StoreRefusedError if status in _REFUSED else kind
    kind = StoreFullError if status == http.HTTPStatus.INSUFFICIENT_STORAGE else kind
    return kind(cause=said, remedy=_REMEDIES.get(status, _ITS_LOG), status=status)


def _reach(error: Exception) -> str:
    """Return what can be done where there is no answer."""
    match error:
        case ssl.SSLCertVerificationError():
            return "Name the authority that signed its certificate: --ca-file FILE"
        case ssl.SSLError():
            return "Write http:// where no TLS is spoken"
        case http.client.HTTPException():
            return "Write https:// where TLS is spoken, and the admin listener's port"
        case httplib2.ServerNotFoundError() | UnicodeError():
            return "Give a name in --url that this host can resolve, or an address"
        case BrokenPipeError() | ConnectionResetError():
            # The server reads little of what it refuses, and this client reads no answer before.
            return "See its log, and that its [store] max_body is as large as what is sent"
    return _LISTENS


def _context(file: str) -> ssl.SSLContext:
    try:
        return client_context(file)
    except (OSError, ValueError) as error:
        said = None if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
        raise RecordError(
            what="--ca-file",
            value=file,
            cause=said or "there is no certificate in it",
            remedy="Name a file with certificates in PEM",
        ) from error


def _checked(url: str) -> str:
    """Return a URL without a slash at its end."""
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
        remedy="Write http://HOST:PORT or https://HOST:PORT; a token comes from --token-file",
    )


def _local(option: str, value: object) -> RecordError:
    return RecordError(
        what=option,
        value=value or "",
        cause="the admin API cannot set it so",
        remedy="Leave it out, or run the command on the store's own host, without --url",
    )


def _document(value: object) -> str:
    if isinstance(value, str):
        return dump_document(strict.parse_object(value))
    if isinstance(value, dict):
        return dump_document(value)
    raise ValueError("no document")


def _userdata(envelope: Mapping[str, Any]) -> bytes:
    text = envelope["userdata"] or ""
    if envelope.get("userdata_encoding") == "base64":
        return base64.b64decode(text)
    return bytes(text.encode())


def _message(content: bytes) -> object:
    try:
        return json.loads(content)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _said(content: bytes) -> str:
    """Return what the API says of an error, as far as that can be shown."""
    try:
        members = json.loads(content)
        parts = [members["message"], *members.get("errors", [])]
        text = ", ".join(parts)[:_SHOWN]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    return f" ({text})" if is_one_line(text) else ""
