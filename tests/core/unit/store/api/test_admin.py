"""The admin API should keep to the routes, statuses, scopes, words and audit of its clients."""

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from webob import Request

from dfmeta.errors import (
    AuthUnavailable,
    LookupAnswerError,
    LookupAwayError,
    StoreAwayError,
    StoreError,
    StoreFullError,
)
from dfmeta.runtime.throttle import QUIET
from dfmeta.store.api import admin, openapi
from dfmeta.store.api.admin import LARGE, AdminApi
from dfmeta.store.api.routes import ROUTES, Action, Route
from dfmeta.store.auth.caller import accepted_scopes, scopes_for_any
from dfmeta.store.db.record import Kind, Push, Record
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.api.support import ENVELOPE, INSTANCE, OTHER, Client, Tokens, make_api
from tests.core.unit.store.support import KEY, Sql
from tests.harness.tier import CLOCK

NO_ROUTE = {"message": "invalid request - route not found"}
NOT_FOUND = {"message": "resource not found"}
DOCUMENT = {"hostname": "web1", "facility": "da11"}
ONE = f"/device-metadata/{INSTANCE}"
CONTENT: dict[str, dict[str, Any]] = {
    "metadata": {"metadata": DOCUMENT},
    "userdata": {"userdata": "#!/bin/sh\n"},
}


@pytest.fixture
def client(repository: Repository) -> Client:
    return Client(make_api(repository))


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
@pytest.mark.parametrize("kind", CONTENT)
def test_a_pushed_half_is_read_and_removed(client: Client, kind: str, prefix: str) -> None:
    path = f"{prefix}/device-{kind}/{INSTANCE}"
    assert client.get(path).status_int == 404
    body = json.dumps({"id": INSTANCE, **CONTENT[kind]}).encode()
    form = "application/x-www-form-urlencoded"
    pushed = client.ask("POST", f"{prefix}/device-{kind}", body, content_type=form)
    assert (pushed.status_int, pushed.body) == (200, b"")
    got = client.get(path)
    assert got.status_int == 200
    assert (got.json if kind == "metadata" else got.text) == CONTENT[kind][kind]
    assert got.content_type == {"metadata": "application/json", "userdata": "text/plain"}[kind]
    head = client.ask("HEAD", path)
    assert (head.status_int, head.body, {**head.headers}) == (200, b"", {**got.headers})
    removed = client.ask("DELETE", path)
    assert (removed.status_int, removed.body) == (200, b"")
    again = client.ask("DELETE", path)
    assert (again.status_int, again.json) == (404, NOT_FOUND)
    assert client.get(path).json == NOT_FOUND
    assert client.ask("HEAD", path).status_int == 404


def test_an_id_is_a_uuid_in_any_case(client: Client) -> None:
    client.push("metadata", metadata={}, id=INSTANCE.upper())
    assert client.get(f"/device-metadata/{INSTANCE.upper()}").json == {}
    for name in (f"{{{INSTANCE}}}", INSTANCE.replace("-", ""), "default:*", "refresh", "%ff"):
        for method in ("GET", "DELETE"):
            response = client.ask(method, f"/device-metadata/{name}")
            assert (response.status_int, response.json) == (404, NOT_FOUND), (method, name)


def test_an_address_finds_the_record_in_its_envelope(client: Client) -> None:
    addresses = ["10.1.2.0/28", "192.0.2.7", "2001:DB8::9/128", "10.1.2.0/28"]
    client.push("metadata", metadata=DOCUMENT, ipAddresses=addresses)
    for text in ("10.1.2.0", "10.1.2.15", "192.0.2.7", "2001:db8::9", "::ffff:192.0.2.7"):
        response = client.get(f"/device-metadata?ip_address={text}")
        assert response.json == {
            "id": INSTANCE,
            "ipAddresses": ["10.1.2.0/28", "192.0.2.7", "2001:db8::9"],
            "metadata": DOCUMENT,
        }, text
        assert response.content_type == "application/json"
        assert client.get(f"/device-userdata?ip_address={text}").json == NOT_FOUND, text
    unknown = client.get("/device-metadata?ip_address=10.1.2.16")
    assert (unknown.status_int, unknown.json) == (404, NOT_FOUND)


def test_a_query_without_one_address_is_refused(client: Client) -> None:
    wrong = ("web1", "%ff", "10.1.2.0/28", "fe80::1%25eth0", "10.1.2.3&ip_address=10.1.2.4")
    for query, condition in (
        *((query, "required") for query in ("", "?", "?ip_address=", "?%ff")),
        *((f"?ip_address={text}", "ip_addr") for text in wrong),
    ):
        response = client.get(f"/device-metadata{query}")
        assert (response.status_int, response.json["message"]) == (400, "Invalid request"), query
        expected = [f"validation failed on ip_address, condition: {condition}"]
        assert response.json["errors"] == expected, query


def test_an_envelope_can_be_pushed_as_it_is(client: Client) -> None:
    networks = ["10.1.2.0/28"]
    client.push("metadata", metadata={"n": 1.5}, ipAddresses=networks, http_tokens="required")
    for text, encoding in (("ü\n", "plain"), ("", "plain"), ("AA==", "base64"), ("/w==", "base64")):
        client.push("userdata", userdata=text, userdata_encoding=encoding, ipAddresses=networks)
        for kind in CONTENT:
            path = f"/device-{kind}/{INSTANCE}"
            first = client.get(path, accept=ENVELOPE)
            assert first.content_type == ENVELOPE
            assert first.json["http_tokens"] == "required"
            assert client.ask("POST", f"/device-{kind}", first.body).status_int == 200
            assert client.get(path, accept=ENVELOPE).body == first.body, (kind, text)
        assert (first.json["userdata"], first.json["userdata_encoding"]) == (text, encoding)


def test_the_envelope_is_for_a_client_that_prefers_it(client: Client) -> None:
    client.push("metadata", metadata=DOCUMENT)
    preferred = (ENVELOPE.upper(), f"{ENVELOPE}, application/json")
    other = (f"{ENVELOPE};q=0.5, application/json", f"{ENVELOPE};q=0", "*/*", ";;,q=,\xff")
    for accept in (*preferred, *other, ""):
        response = client.get(ONE, accept=accept)
        assert ("metadata" in response.json) is (accept in preferred), accept
        assert response.headers["Vary"] == "Accept", accept


def test_a_client_with_the_current_answer_gets_304(client: Client) -> None:
    client.push("metadata", metadata=DOCUMENT, ipAddresses=["10.1.2.0/28"])
    tags = set()
    for path, accept in ((ONE, ""), (ONE, ENVELOPE), ("/openapi.json", "")):
        got = client.get(path, accept=accept)
        tags.add(got.headers["ETag"])
        kept = client.get(path, accept=accept, if_none_match=f'"x", {got.headers["ETag"]}')
        assert (kept.status_int, kept.body) == (304, b""), path
        assert kept.headers["ETag"] == got.headers["ETag"]
        assert "Content-Length" not in kept.headers
    assert len(tags) == 3
    client.push("metadata", metadata=DOCUMENT | {"hostname": "web2"})
    assert client.get(ONE, if_none_match=next(iter(tags))).status_int == 200


def test_another_method_is_405_with_the_allowed_ones(client: Client) -> None:
    for method, path, allow in (
        ("PUT", "/api/v1/device-metadata", "GET, HEAD, POST"),
        ("POST", ONE, "GET, HEAD, DELETE"),
        ("GET", f"/device-metadata/refresh/{INSTANCE}", "POST"),
        ("PUT", f"{ONE}/devices", "GET, HEAD, POST, DELETE"),
        ("POST", "/records", "GET, HEAD"),
    ):
        response = client.ask(method, path)
        assert (response.status_int, response.headers["Allow"]) == (405, allow), (method, path)


def test_an_unknown_route_is_404_in_its_own_words(client: Client) -> None:
    for path in (
        *("/api/v1", "/api/v1/api/v1/device-metadata", "/device-metadata/", f"{ONE}/", f"{ONE}/x"),
        *(f"/api/v1/device-metadata/refresh/{INSTANCE}/x", f"/device-userdata/{INSTANCE}/devices"),
        *(f"/device-metadata/x%2f{INSTANCE}", "/api/v1device-metadata", "/records/"),
    ):
        response = client.ask("PUT", path)
        assert (response.status_int, response.json) == (404, NO_ROUTE), path


def test_the_api_has_its_own_paths_and_no_others() -> None:
    for path in ("/device-metadata", "/openapi.json", "/records/x", "/api/v1", "/api/v1/nothing"):
        assert AdminApi.handles(path), path
    for path in ("/recordsx", "/", "/healthz", "/device-metadata2", "/api/v10"):
        assert not AdminApi.handles(path), path


def test_each_operation_has_its_scopes(repository: Repository) -> None:
    tokens = Tokens()
    client = Client(make_api(repository, authorizer=tokens))
    operations: list[tuple[str, str, tuple[str, ...]]] = [
        (method, f"/device-{kind}{route}", accepted_scopes(operation, kind))  # type: ignore[arg-type]  # one of the literals
        for kind in CONTENT
        for method, route, operation in (
            ("POST", "", "upsert"),
            ("GET", "?ip_address=192.0.2.7", "read"),
            ("HEAD", f"/{INSTANCE}", "read"),
            ("DELETE", f"/{INSTANCE}", "delete"),
            ("POST", f"/refresh/{INSTANCE}", "upsert"),
        )
    ]
    for method in ("GET", "POST", "DELETE"):
        needed = accepted_scopes("read" if method == "GET" else "upsert", "metadata")
        operations.append((method, f"{ONE}/devices", needed))
    operations.append(("GET", "/records", scopes_for_any("read")))
    assert scopes_for_any("read") == ("read", "metadata:read:metadata", "metadata:read:userdata")
    for method, path, needed in operations:
        row = (method, path)
        tokens.asked.clear()
        body = json.dumps({"id": INSTANCE}).encode() if method == "POST" else None
        stranger = client.ask(method, path, body)
        assert (stranger.status_int, stranger.headers["WWW-Authenticate"]) == (401, "Bearer"), row
        assert tokens.asked == [(None, needed)], row
        denied = client.ask(method, path, body, authorization="Bearer nothing")
        assert denied.status_int == 403, row
        for scope in needed:
            answer = client.ask(method, path, body, authorization=f"Bearer {scope}")
            assert answer.status_int in (200, 400, 404), (*row, scope)
    for path in ("/openapi.json", "/api/v1/openapi.json"):
        assert client.get(path).json["openapi"] == "3.1.0", "the description needs no token"


def test_no_byte_of_an_unauthorized_body_is_read(repository: Repository) -> None:
    unread = {"CONTENT_LENGTH": "100", "wsgi.input": None}
    api = make_api(repository, authorizer=Tokens())
    for headers, status in (({}, 401), ({"Authorization": "Bearer x"}, 403)):
        request = Request.blank("/device-metadata", unread, method="POST", headers=headers)
        assert api(request).status_int == status


def test_a_failure_is_answered_without_its_details(repository: Repository) -> None:
    for error, status, message in (
        (StoreError(cause="secret"), 500, "internal server error"),
        (StoreAwayError(cause="secret"), 503, "the database does not answer"),
        (StoreFullError(cause="secret"), 507, "the disk of the database is full"),
        (LookupAwayError(upstream="secret", cause="slow"), 503, "upstream does not answer"),
        (LookupAnswerError(upstream="secret", cause="x"), 502, "upstream answers nonsense"),
    ):

        def refresh(_kind: Kind, _id: str, error: Exception = error) -> Record | None:
            raise error

        client = Client(make_api(repository, refresh=refresh))
        response = client.ask("POST", f"/device-metadata/refresh/{INSTANCE}")
        assert (response.status_int, response.json) == (status, {"message": message})
        assert ("Retry-After" in response.headers) is (status == 503), message

    class Away(Tokens):
        def authorize(self, header: str | None, accepted: Any) -> None:
            raise AuthUnavailable(message="not now", cause="secret")

    response = Client(make_api(repository, authorizer=Away())).get("/device-metadata/x")
    assert (response.status_int, response.json) == (503, {"message": "not now"})
    assert response.headers["Retry-After"] == "1"


def test_a_full_disk_is_507_for_a_push_and_nothing_else(tmp_path: Path) -> None:
    with Repository(f"sqlite:///{tmp_path}/full.db") as repository:
        client = Client(make_api(repository))
        assert client.push("metadata", metadata=DOCUMENT).status_int == 200
        engine = repository._database.dialect.engine

        def full(connection: sqlite3.Connection, _record: object) -> None:
            connection.execute("PRAGMA max_page_count=1")

        event.listen(engine, "connect", full)
        engine.dispose()
        assert client.push("userdata", userdata="x" * 100_000).status_int == 507
        assert client.get(ONE).json == DOCUMENT


def test_a_refresh_queries_upstream_and_shows_the_new_half(repository: Repository) -> None:
    request = []

    def refresh(kind: Kind, record_id: str) -> Record | None:
        request.append((kind, record_id))
        content = {"hostname": "fresh"} if kind is Kind.METADATA else b"fresh"
        repository.store_fetched(Push(kind=kind, record_id=record_id, content=content, networks=[]))
        return repository.get(record_id)

    client = Client(make_api(repository, refresh=refresh))
    metadata = client.ask("POST", f"/device-metadata/refresh/{INSTANCE.upper()}")
    assert (metadata.status_int, metadata.json) == (200, {"hostname": "fresh"})
    userdata = client.ask("POST", f"/api/v1/device-userdata/refresh/{INSTANCE}", accept=ENVELOPE)
    assert userdata.json["userdata"] == "fresh"
    assert request == [(Kind.METADATA, INSTANCE), (Kind.USERDATA, INSTANCE)]
    without = Client(make_api(repository))
    assert without.ask("POST", f"/device-metadata/refresh/{INSTANCE}").json == {"hostname": "fresh"}
    for name in (OTHER, "x"):
        response = without.ask("POST", f"/device-metadata/refresh/{name}")
        assert (response.status_int, response.json) == (404, NOT_FOUND), name


def test_large_bodies_and_lists_are_computed_aside(repository: Repository) -> None:
    steps: list[object] = []

    def aside(step: Callable[[], Any]) -> Any:
        steps.append(step())
        return steps[-1]

    client = Client(make_api(repository, aside=aside))
    client.push("metadata", metadata={"x": "x"})
    assert steps == []
    assert client.push("metadata", metadata={"x": "x" * LARGE}).status_int == 200
    assert len(steps) == 1
    assert client.get("/records").body == steps[1]


def test_records_are_listed_without_their_content(client: Client, repository: Repository) -> None:
    empty = client.get("/api/v1/records")
    assert (empty.status_int, empty.content_type, empty.json) == (200, "application/json", [])
    client.push("metadata", metadata={"hostname": "web1", "name": 7, "ssh_keys": [KEY, f"{KEY}2"]})
    client.push("userdata", userdata="hush")
    repository.put(INSTANCE, project_id="p")
    repository.set_password(INSTANCE, b"hush")
    client.push("userdata", id=OTHER)
    repository.put("default:*", document={"hostname": "never"})
    got = client.get("/records")
    first, second = got.json
    assert first.pop("updated_at").endswith("Z")
    assert first == {
        "id": INSTANCE,
        "hostname": "web1",
        "name": 7,
        "project_id": "p",
        "ssh_keys": 2,
        "userdata_bytes": 4,
        "password_set": True,
    }
    assert (second["id"], second["hostname"], second["userdata_bytes"]) == (OTHER, None, 0)
    assert "hush" not in got.text
    assert [row["id"] for row in client.get(f"/records?after={INSTANCE}").json] == [OTHER]
    head = client.ask("HEAD", "/records")
    assert (head.status_int, head.body, {**head.headers}) == (200, b"", {**got.headers})
    assert client.get("/records", if_none_match=got.headers["ETag"]).status_int == 304


def test_a_page_follows_one_id_and_no_other_text(client: Client) -> None:
    for query in (
        *("after=", "after=%ff", "after=default:*", f"after={INSTANCE}%0a"),
        f"after={INSTANCE}&after={INSTANCE}",
    ):
        response = client.get(f"/records?{query}")
        assert response.status_int == 400, query
        assert response.json == {
            "message": "Invalid request",
            "errors": ["validation failed on after, condition: uuid"],
        }, query


def test_broken_document_hides_no_other(client: Client, repository: Repository, sql: Sql) -> None:
    for number, document in enumerate(("[", '{"name": 1e999}', '{"name": "fine"}')):
        repository.put(f"{number:036}")
        sql(f"UPDATE records SET metadata = '{document}' WHERE id = '{number:036}'")
    names = [row["name"] for row in client.get("/records").json]
    assert names == ["(broken document)", None, "fine"]


# Its description


def test_the_description_has_every_component_route_and_scope() -> None:
    description = openapi.description(secured=True)
    names = {word.split('"')[0] for word in json.dumps(description).split('"#/components/')[1:]}
    for section, name in (name.split("/") for name in names):
        assert name in description["components"][section], name
    used = {name.partition("/")[2] for name in names}
    assert used >= description["components"]["responses"].keys()
    assert description["security"] == [{"bearer": []}]
    assert openapi.description(secured=False)["security"] == []
    described = {
        (path, method.upper()): operation
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    }
    assert {operation for operation in described if operation[1] != "HEAD"} == {
        (r.path, r.method) for r in ROUTES
    }
    for (path, _method), operation in described.items():
        placed = {
            parameter["name"]
            for parameter in operation["parameters"]
            if parameter.get("in") == "path"
        }
        assert ("id" in placed) == ("{id}" in path), path
    for route in ROUTES:
        assert ", ".join(route.scopes) in described[route.path, route.method]["description"], route


# The audit


BODY = json.dumps({"id": INSTANCE.upper(), "metadata": {"secret": "of the guest"}}).encode()
ADDRESS = {"REMOTE_ADDR": "192.0.2.7"}


@pytest.fixture
def secured(repository: Repository) -> Client:
    return Client(make_api(repository, authorizer=Tokens()))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    caplog.set_level(logging.INFO, logger=admin.LOG.name)
    kept: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: kept.append(record.getMessage())  # type: ignore[method-assign]  # the list is all
    admin.LOG.addHandler(handler)
    yield kept
    admin.LOG.removeHandler(handler)


def test_a_change_alone_is_one_line_without_its_content(secured: Client, lines: list[str]) -> None:
    path, devices = f"/device-metadata/{INSTANCE}", f"/api/v1/device-metadata/{INSTANCE}/devices"
    device = b'{"type": "disk", "bus": "scsi", "serial": "private"}'
    secured.ask("POST", "/api/v1/device-metadata", BODY, authorization="Bearer write")
    secured.ask("POST", devices, device, authorization="Bearer write")
    secured.ask("DELETE", f"{devices}?serial=private", authorization="Bearer write")
    secured.ask("POST", f"/device-metadata/refresh/{INSTANCE}", authorization="Bearer write")
    secured.ask("DELETE", path, authorization="Bearer delete")
    secured.ask("DELETE", path, authorization="Bearer delete")
    secured.ask("GET", "/records", authorization="Bearer read")
    secured.ask("PUT", "/device-metadata", authorization="Bearer write")
    by = f"instance {INSTANCE}, by token known from"
    assert [line.partition(" from ")[0] + " from" for line in lines] == [
        f"Audit: POST /device-metadata, {by}",
        f"Audit: POST /device-metadata/{{id}}/devices, {by}",
        f"Audit: DELETE /device-metadata/{{id}}/devices, {by}",
        f"Audit: POST /device-metadata/refresh/{{id}}, {by}",
        f"Audit: DELETE /device-metadata/{{id}}, {by}",
        f"Audit: DELETE /device-metadata/{{id}}, {by}",
    ]
    assert [line.rpartition(": ")[2] for line in lines] == ["200"] * 5 + ["404"]
    assert not [line for line in lines if "private" in line or "secret" in line or "Bearer" in line]


def test_refused_client_one_line(secured: Client, repository: Repository, lines: list[str]) -> None:
    secured.ask("POST", "/device-metadata", BODY)
    secured.ask("GET", f"/device-userdata/{INSTANCE}", authorization="Bearer write")
    secured.ask("DELETE", "/device-metadata/a%0ab", authorization="Bearer read")
    gated = Client(make_api(repository, gate=lambda _environ: "another site"))
    refused = gated.ask("POST", "/device-metadata", BODY)
    assert (refused.status_int, refused.json) == (403, {"message": "another site"})
    assert lines.pop().startswith("Audit: POST /device-metadata, instance unknown")
    assert [line.partition(" from ")[0] for line in lines] == [
        "Audit: POST /device-metadata, instance unknown, by an unknown client",
        f"Audit: GET /device-userdata/{{id}}, instance {INSTANCE}, by token known",
        "Audit: DELETE /device-metadata/{id}, instance unknown, by token known",
    ]
    assert [line.rpartition(": ")[2] for line in lines] == ["401", "403", "403"]


def test_a_push_that_changes_nothing_has_its_line(
    secured: Client, repository: Repository, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def push_all(_pushes: Sequence[Push]) -> None:
        raise RuntimeError

    post = "Audit: POST /device-metadata, instance"
    for body, status in ((b"{", 400), (b"0" * (2 << 20), 413)):
        secured.ask("POST", "/device-metadata", body, authorization="Bearer write")
        assert lines[-1].startswith(f"{post} unknown, by token known from "), body[:20]
        assert lines[-1].endswith(f": {status}"), body[:20]
    monkeypatch.setattr(repository, "push_all", push_all)
    with pytest.raises(RuntimeError):
        Client(make_api(repository)).ask("POST", "/device-metadata", BODY)
    (line,) = lines[2:]
    assert line.startswith(f"{post} {INSTANCE}, by an unknown client from ")
    assert line.endswith(": 500")


def test_lines_of_refusals_are_limited(lines: list[str], caplog: pytest.LogCaptureFixture) -> None:
    log = admin.Audit()
    route = Route("POST", "/device-metadata", Action.PUSH)
    call = admin.AuditedCall(Request.blank("/", method="POST", environ=ADDRESS), route)
    line = "Audit: POST /device-metadata, instance unknown, by an unknown client from 192.0.2.7: "
    for _ in range(admin.REFUSALS + 7):
        log.note(call, 401)
    assert lines == [f"{line}401"] * admin.REFUSALS
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    log.note(call, 200)
    CLOCK.advance(QUIET)
    log.note(call, 401)
    left_out = "Audit: 7 more requests of refused clients had no line"
    assert lines[admin.REFUSALS :] == [f"{line}200", left_out, f"{line}401"]
