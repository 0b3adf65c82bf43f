"""The admin API should list all records in pages, in short, to clients that may read some."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dfmeta.store.db.repository import Repository
from tests.core.unit.store.api.support import INSTANCE, OTHER, Client, Tokens, make_api


@pytest.fixture
def client(repository: Repository) -> Client:
    return Client(make_api(repository))


def number(one: int) -> str:
    return f"00000000-0000-4000-8000-{one:012x}"


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
def test_records_are_listed_in_short(client: Client, repository: Repository, prefix: str) -> None:
    path = f"{prefix}/records"
    empty = client.get(path)
    assert (empty.status_int, empty.content_type, empty.json) == (200, "application/json", [])
    client.push("metadata", metadata={"hostname": "web1", "name": 7, "ssh_keys": ["a", "b"]})
    client.push("userdata", userdata="hush")
    repository.put(INSTANCE, project_id="p")
    repository.set_password(INSTANCE, b"hush")
    client.push("userdata", id=OTHER)
    repository.put("default:*", document={"hostname": "never"})
    got = client.get(path)
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
    head = client.ask("HEAD", path)
    assert (head.status_int, head.body) == (200, b"")
    assert {**head.headers} == {**got.headers}
    kept = client.get(path, if_none_match=got.headers["ETag"])
    assert (kept.status_int, kept.body) == (304, b"")


@pytest.mark.parametrize(
    "query",
    [
        *("after=", "after=x", "after=%ff", "after=default:*", f"after={INSTANCE}%0a"),
        f"after={INSTANCE.replace('-', '')}",
        f"after={INSTANCE}&after={INSTANCE}",
        f"after={INSTANCE}&after=",
    ],
)
def test_after_what_is_no_id_nothing_follows(client: Client, query: str) -> None:
    response = client.get(f"/records?{query}")
    assert response.status_int == 400
    assert response.json == {
        "message": "Invalid request",
        "errors": ["validation failed on after, condition: uuid"],
    }


def test_a_broken_document_hides_no_other_record(
    client: Client, repository: Repository, sql: Callable[[str], None]
) -> None:
    for one in range(3):
        repository.put(number(one), document={"name": "fine"})
    sql(f"UPDATE records SET metadata = '[' WHERE id = '{number(0)}'")
    sql(f"UPDATE records SET metadata = '{{\"name\": 1e999}}' WHERE id = '{number(1)}'")
    text = client.get("/records").text
    assert "Infinity" not in text
    assert [row["name"] for row in json.loads(text)] == ["(broken document)", None, "fine"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_whoever_may_read_some_of_them_may_list_them(repository: Repository, method: str) -> None:
    tokens = Tokens()
    client = Client(make_api(repository, authorizer=tokens))
    assert client.ask(method, "/records?after=x").status_int == 401
    needed = ("read", "metadata:read:metadata", "metadata:read:userdata")
    assert tokens.asked == [(None, needed)]
    for scope in ("write", "metadata:delete:metadata", "metadata:create:userdata"):
        assert client.ask(method, "/records", authorization=f"Bearer {scope}").status_int == 403
    for scope in needed:
        assert client.ask(method, "/records", authorization=f"Bearer {scope}").status_int == 200


def test_what_computes_for_long_is_done_aside(repository: Repository) -> None:
    done = []

    def aside(step: Callable[[], bytes]) -> bytes:
        done.append(step())
        return done[-1]

    client = Client(make_api(repository, aside=aside))
    repository.put(INSTANCE)
    assert client.get("/records").body == done[0]
