"""The admin API should keep to the routes, statuses, scopes and words of its clients."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from webob import Response

from dfmeta.exceptions import (
    AuthUnavailable,
    LookupAnswerError,
    LookupAwayError,
    StoreAwayError,
    StoreError,
    StoreFullError,
)
from dfmeta.store.api.admin import AdminApi
from dfmeta.store.auth.scopes import accepted
from dfmeta.store.db.record import FetchedHalf, Kind, Record
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.api.support import ENVELOPE, INSTANCE, OTHER, Client, Tokens, make_api

NO_ROUTE = {"message": "invalid request - route not found"}
NOT_FOUND = {"message": "resource not found"}
DOCUMENT = {"hostname": "web1", "facility": "da11"}
KINDS = ["metadata", "userdata"]


@pytest.fixture
def client(repository: Repository) -> Client:
    return Client(make_api(repository))


def content(kind: str) -> dict[str, Any]:
    return {"metadata": DOCUMENT} if kind == "metadata" else {"userdata": "#!/bin/sh\n"}


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_pushed_is_read_and_removed_again(client: Client, kind: str, prefix: str) -> None:
    one = f"{prefix}/device-{kind}/{INSTANCE}"
    assert client.get(one).status_int == 404
    body = json.dumps({"id": INSTANCE, **content(kind)}).encode()
    pushed = client.ask("POST", f"{prefix}/device-{kind}", body)
    assert (pushed.status_int, pushed.body) == (200, b"")
    got = client.get(one)
    assert got.status_int == 200
    assert (got.json if kind == "metadata" else got.text) == content(kind)[kind]
    head = client.ask("HEAD", one)
    assert (head.status_int, head.body) == (200, b"")
    assert {**head.headers} == {**got.headers}
    removed = client.ask("DELETE", one)
    assert (removed.status_int, removed.body) == (200, b"")
    again = client.ask("DELETE", one)
    assert (again.status_int, again.json) == (404, NOT_FOUND)
    assert client.get(one).json == NOT_FOUND
    assert client.ask("HEAD", one).status_int == 404


def test_metadata_is_json_and_userdata_is_bytes(client: Client) -> None:
    client.push("metadata", metadata=json.dumps(DOCUMENT))
    client.push("userdata", userdata="AP8=", userdata_encoding="base64")
    metadata = client.get(f"/device-metadata/{INSTANCE}")
    assert (metadata.content_type, metadata.json) == ("application/json", DOCUMENT)
    userdata = client.get(f"/device-userdata/{INSTANCE}")
    assert (userdata.content_type, userdata.body) == ("text/plain", b"\0\xff")


def test_pushed_without_userdata_it_is_there_and_empty(client: Client) -> None:
    client.push("userdata")
    assert (client.get(f"/device-userdata/{INSTANCE}").status_int) == 200
    assert client.get(f"/device-userdata/{INSTANCE}").body == b""


def test_an_id_is_found_in_any_case_and_nothing_else_is_one(client: Client) -> None:
    client.push("metadata", metadata={}, id=INSTANCE.upper())
    assert client.get(f"/device-metadata/{INSTANCE.upper()}").json == {}
    for name in (f"{{{INSTANCE}}}", INSTANCE.replace("-", ""), "default:*", "refresh", "%ff"):
        for method in ("GET", "DELETE"):
            response = client.ask(method, f"/device-metadata/{name}")
            assert (response.status_int, response.json) == (404, NOT_FOUND)


@pytest.mark.parametrize(
    "text", ["10.1.2.0", "10.1.2.15", "192.0.2.7", "2001:db8::9", "::ffff:192.0.2.7"]
)
def test_an_address_finds_the_record_in_its_envelope(client: Client, text: str) -> None:
    addresses = ["10.1.2.0/28", "192.0.2.7", "2001:DB8::9/128", "10.1.2.0/28"]
    client.push("metadata", metadata=DOCUMENT, ipAddresses=addresses)
    found = client.get(f"/device-metadata?ip_address={text}")
    assert found.json == {
        "id": INSTANCE,
        "ipAddresses": ["10.1.2.0/28", "192.0.2.7", "2001:db8::9"],
        "metadata": DOCUMENT,
    }
    assert found.content_type == "application/json"
    assert client.get(f"/device-userdata?ip_address={text}").json == NOT_FOUND


def test_an_address_that_nobody_has_finds_nothing(client: Client) -> None:
    client.push("metadata", metadata={}, ipAddresses=["10.1.2.0/28"])
    response = client.get("/device-metadata?ip_address=10.1.2.16")
    assert (response.status_int, response.json) == (404, NOT_FOUND)


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        ("", "required"),
        ("?", "required"),
        ("?ip_address=", "required"),
        ("?%ff", "required"),
        ("?ip_address=web1", "ip_addr"),
        ("?ip_address=%ff", "ip_addr"),
        ("?ip_address=10.1.2.0/28", "ip_addr"),
        ("?ip_address=fe80::1%25eth0", "ip_addr"),
        ("?ip_address=10.1.2.3&ip_address=10.1.2.4", "ip_addr"),
    ],
)
def test_a_question_without_an_address_is_refused(
    client: Client, query: str, condition: str
) -> None:
    response = client.get(f"/device-metadata{query}")
    assert (response.status_int, response.json["message"]) == (400, "Invalid request")
    (error,) = response.json["errors"]
    assert error == f"validation failed on ip_address, condition: {condition}"


@pytest.mark.parametrize(
    ("userdata", "encoding"),
    [("ü\n", "plain"), ("", "plain"), ("AA==", "base64"), ("/w==", "base64")],
)
def test_an_envelope_can_be_pushed_as_it_is(client: Client, userdata: str, encoding: str) -> None:
    client.push(
        "metadata", metadata={"n": 1.5}, ipAddresses=["10.1.2.0/28"], http_tokens="required"
    )
    client.push(
        "userdata", userdata=userdata, userdata_encoding=encoding, ipAddresses=["10.1.2.0/28"]
    )
    for kind in KINDS:
        first = client.get(f"/device-{kind}/{INSTANCE}", accept=ENVELOPE)
        assert first.content_type == ENVELOPE
        assert first.json["http_tokens"] == "required"
        assert client.ask("POST", f"/device-{kind}", first.body).status_int == 200
        assert client.get(f"/device-{kind}/{INSTANCE}", accept=ENVELOPE).body == first.body
    assert first.json["userdata"] == userdata
    assert first.json["userdata_encoding"] == encoding


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (ENVELOPE, True),
        (ENVELOPE.upper(), True),
        (f"{ENVELOPE}, application/json", True),
        (f"{ENVELOPE}, */*;q=0.1", True),
        (f"{ENVELOPE};q=0.5, application/json", False),
        (f"{ENVELOPE};q=0", False),
        ("*/*", False),
        ("application/*", False),
        ("application/json", False),
        ("", False),
        (";;,q=,\xff", False),
    ],
)
def test_the_envelope_is_for_those_who_ask_for_it(
    client: Client, accept: str, expected: bool
) -> None:
    client.push("metadata", metadata=DOCUMENT)
    response = client.get(f"/device-metadata/{INSTANCE}", accept=accept)
    assert ("metadata" in response.json) is expected
    assert response.headers["Vary"] == "Accept"


def test_a_client_is_told_that_it_has_the_answer(client: Client) -> None:
    client.push("metadata", metadata=DOCUMENT, ipAddresses=["10.1.2.0/28"])
    one = f"/device-metadata/{INSTANCE}"
    tags = set()
    for path, accept in ((one, ""), (one, ENVELOPE), ("/openapi.json", "")):
        got = client.get(path, accept=accept)
        tags.add(got.headers["ETag"])
        kept = client.get(path, accept=accept, if_none_match=f'"x", {got.headers["ETag"]}')
        assert (kept.status_int, kept.body) == (304, b"")
        assert kept.headers["ETag"] == got.headers["ETag"]
        assert "Content-Length" not in kept.headers
    assert len(tags) == 3
    client.push("metadata", metadata=DOCUMENT | {"hostname": "web2"})
    assert client.get(one, if_none_match=next(iter(tags))).status_int == 200


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/device-metadata", "GET, HEAD, POST"),
        ("DELETE", "/api/v1/device-userdata", "GET, HEAD, POST"),
        ("POST", f"/device-metadata/{INSTANCE}", "GET, HEAD, DELETE"),
        ("OPTIONS", "/device-userdata/x", "GET, HEAD, DELETE"),
        ("GET", f"/device-metadata/refresh/{INSTANCE}", "POST"),
        ("POST", "/openapi.json", "GET, HEAD"),
        ("POST", "/records", "GET, HEAD"),
        ("DELETE", "/api/v1/records?after=x", "GET, HEAD"),
    ],
)
def test_another_method_is_told_those_that_there_are(
    client: Client, method: str, path: str, allow: str
) -> None:
    response = client.ask(method, path)
    assert (response.status_int, response.headers["Allow"]) == (405, allow)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1",
        "/api/v1/",
        "/api/v1/metadata",
        "/api/v1/api/v1/device-metadata",
        "/device-metadata/",
        f"/device-metadata/{INSTANCE}/",
        f"/device-metadata/{INSTANCE}/x",
        f"/device-metadata/x%2f{INSTANCE}",
        "/device-metadata/refresh/",
        f"/api/v1/device-metadata/refresh/{INSTANCE}/x",
        "/api/v1device-metadata",
        "/records/",
        f"/api/v1/records/{INSTANCE}",
    ],
)
def test_an_unknown_route_says_so(client: Client, method: str, path: str) -> None:
    response = client.ask(method, path)
    assert (response.status_int, response.json) == (404, NO_ROUTE)


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("/device-metadata", True),
        ("/device-userdata/x/y", True),
        ("/openapi.json", True),
        ("/records", True),
        ("/records/x", True),
        ("/recordsx", False),
        ("/api/v1", True),
        ("/api/v1/nothing", True),
        ("/", False),
        ("/healthz", False),
        ("/metrics", False),
        ("/device-metadata2", False),
        ("/api/v10", False),
        ("/latest/meta-data", False),
    ],
)
def test_it_knows_its_own_paths(path: str, ours: bool) -> None:
    assert AdminApi.handles(path) is ours


def test_an_older_document_changes_nothing_and_is_answered_alike(client: Client) -> None:
    new = {"updated_at": "2026-01-02T00:00:00Z", "hostname": "new"}
    old = {"updated_at": "2026-01-01T00:00:00Z", "hostname": "old"}
    client.push("metadata", metadata=new, ipAddresses=["192.0.2.7"])
    ignored = client.push("metadata", metadata=old, ipAddresses=["192.0.2.8"])
    assert (ignored.status_int, ignored.body) == (200, b"")
    found = client.get("/device-metadata?ip_address=192.0.2.7").json
    assert (found["metadata"], found["ipAddresses"]) == (new, ["192.0.2.7"])


def test_what_a_record_says_of_tokens_stays_until_something_else_is_said(
    client: Client, repository: Repository
) -> None:
    for pushed, kept in (({"http_tokens": "required"}, "required"), ({}, "required"),
                         ({"http_tokens": None}, None)):  # fmt: skip
        assert client.push("userdata", **pushed).status_int == 200
        record = repository.get(INSTANCE)
        assert record is not None
        assert record.http_tokens == kept


def test_validation_tells_all_that_is_wrong(client: Client) -> None:
    response = client.ask("POST", "/device-metadata", b'{"ipAddresses":["x"],"metadata":"["}')
    assert (response.status_int, response.content_type) == (400, "application/json")
    assert response.json == {
        "message": "Invalid request",
        "errors": [
            "validation failed on id, condition: required",
            "validation failed on metadata, condition: json",
            "validation failed on ipAddresses[0], condition: ip_addr|cidr",
        ],
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_is_no_json_is_called_that(client: Client, kind: str) -> None:
    response = client.ask("POST", f"/device-{kind}", b"{")
    assert (response.status_int, response.json) == (400, {"message": "invalid request body"})


def test_a_content_type_makes_no_difference(client: Client) -> None:
    body = json.dumps({"id": INSTANCE, "metadata": {}}).encode()
    for content_type in ("", "text/plain", "application/x-www-form-urlencoded", "a/b; c=\xff"):
        response = client.ask("POST", "/device-metadata", body, content_type=content_type)
        assert response.status_int == 200


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("method", "route", "operation"),
    [
        ("POST", "", "upsert"),
        ("GET", "?ip_address=192.0.2.7", "read"),
        ("GET", f"/{INSTANCE}", "read"),
        ("HEAD", f"/{INSTANCE}", "read"),
        ("DELETE", f"/{INSTANCE}", "delete"),
        ("POST", f"/refresh/{INSTANCE}", "upsert"),
    ],
)
def test_each_operation_has_its_scopes(
    repository: Repository, kind: str, method: str, route: str, operation: Any
) -> None:
    tokens = Tokens()
    client = Client(make_api(repository, authorizer=tokens))
    body = json.dumps({"id": INSTANCE}).encode() if method == "POST" else None
    path = f"/device-{kind}{route}"
    stranger = client.ask(method, path, body)
    assert (stranger.status_int, stranger.headers["WWW-Authenticate"]) == (401, "Bearer")
    needed = accepted(operation, kind)
    assert tokens.asked == [(None, needed)]
    denied = client.ask(method, path, body, authorization="Bearer nothing")
    assert denied.status_int == 403
    assert "WWW-Authenticate" not in denied.headers
    if method != "HEAD":
        assert (stranger.json, denied.json) == (
            {"message": "who is there?"},
            {"message": "not you"},
        )
    for scope in needed:
        answered = client.ask(method, path, body, authorization=f"Bearer {scope}")
        assert answered.status_int in (200, 400, 404)


def test_nothing_of_a_strangers_body_is_read(repository: Repository) -> None:
    class Untouchable(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise AssertionError("it was read")

    statuses: list[str] = []
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/device-metadata",
        "CONTENT_LENGTH": "100",
        "wsgi.input": Untouchable(),
    }
    api = make_api(repository, authorizer=Tokens())
    list(api(environ, lambda status, _headers: statuses.append(status)))
    list(api(environ | {"HTTP_AUTHORIZATION": "Bearer x"}, lambda s, _h: statuses.append(s)))
    assert statuses == ["401 Unauthorized", "403 Forbidden"]


def test_the_description_is_for_everybody(repository: Repository) -> None:
    client = Client(make_api(repository, authorizer=Tokens()))
    for path in ("/openapi.json", "/api/v1/openapi.json"):
        assert client.get(path).json["openapi"] == "3.1.0"


def raising(repository: Repository, error: Exception) -> Response:
    def refresh(_kind: Kind, _id: str) -> Record | None:
        raise error

    client = Client(make_api(repository, refresh=refresh))
    return client.ask("POST", f"/device-metadata/refresh/{INSTANCE}")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (StoreError(cause="secret"), 500, "internal server error"),
        (StoreAwayError(cause="secret"), 503, "the database does not answer"),
        (StoreFullError(cause="secret"), 507, "the disk of the database is full"),
        (LookupAwayError(upstream="secret", cause="it is slow"), 503, "upstream does not answer"),
        (LookupAnswerError(upstream="secret", cause="banana"), 502, "upstream answers nonsense"),
    ],
)
def test_what_fails_is_told_without_its_particulars(
    repository: Repository, error: StoreError, status: int, message: str
) -> None:
    response = raising(repository, error)
    assert (response.status_int, response.json) == (status, {"message": message})
    assert ("Retry-After" in response.headers) is (status == 503)


def test_a_full_disk_is_507_for_a_push_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Repository(f"sqlite:///{tmp_path}/full.db") as repository:
        client = Client(make_api(repository))
        assert client.push("metadata", metadata=DOCUMENT).status_int == 200
        engine = repository._database.dialect.engine

        def full(connection: sqlite3.Connection, _record: object) -> None:
            connection.execute("PRAGMA max_page_count=1")

        event.listen(engine, "connect", full)
        repository._database._drop_idle()
        with caplog.at_level("ERROR"):
            refused = client.push("userdata", userdata="x" * 100_000)
        assert (refused.status_int, refused.json) == (
            507,
            {"message": "the disk of the database is full"},
        )
        (line,) = caplog.messages
        assert "Make room on the disk" in line
        assert client.get(f"/device-metadata/{INSTANCE}").json == DOCUMENT
        event.remove(engine, "connect", full)
        repository._database._drop_idle()
        assert client.push("userdata", userdata="x" * 100_000).status_int == 200


def test_who_cannot_tell_whether_a_token_is_good_says_so(repository: Repository) -> None:
    class Away(Tokens):
        def authorize(self, header: str | None, accepted: Any) -> None:
            raise AuthUnavailable(message="not now", cause="secret")

    response = Client(make_api(repository, authorizer=Away())).get("/device-metadata/x")
    assert (response.status_int, response.json) == (503, {"message": "not now"})
    assert response.headers["Retry-After"] == "1"


def test_a_refresh_asks_upstream_and_shows_what_came(repository: Repository) -> None:
    asked = []

    def refresh(kind: Kind, record_id: str) -> Record | None:
        asked.append((kind, record_id))
        content = {"hostname": "fresh"} if kind is Kind.METADATA else b"fresh"
        repository.store_fetched(kind, FetchedHalf(record_id, content, []))
        return repository.get(record_id)

    client = Client(make_api(repository, refresh=refresh))
    metadata = client.ask("POST", f"/device-metadata/refresh/{INSTANCE.upper()}")
    assert (metadata.status_int, metadata.json) == (200, {"hostname": "fresh"})
    userdata = client.ask("POST", f"/api/v1/device-userdata/refresh/{INSTANCE}", accept=ENVELOPE)
    assert userdata.json["userdata"] == "fresh"
    assert asked == [(Kind.METADATA, INSTANCE), (Kind.USERDATA, INSTANCE)]


def test_a_refresh_of_what_upstream_has_not_is_not_found(repository: Repository) -> None:
    client = Client(make_api(repository, refresh=lambda _kind, _id: None))
    client.push("metadata", metadata={})
    response = client.ask("POST", f"/device-metadata/refresh/{INSTANCE}")
    assert (response.status_int, response.json) == (404, NOT_FOUND)
    assert client.ask("POST", "/device-metadata/refresh/x").json == NOT_FOUND


def test_without_an_upstream_a_refresh_shows_what_is_there(client: Client) -> None:
    client.push("metadata", metadata=DOCUMENT)
    assert client.ask("POST", f"/device-metadata/refresh/{INSTANCE}").json == DOCUMENT
    assert client.ask("POST", f"/device-userdata/refresh/{INSTANCE}").status_int == 404
    assert client.ask("POST", f"/device-metadata/refresh/{OTHER}").status_int == 404
