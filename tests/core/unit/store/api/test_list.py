"""The admin API should list all records in pages, without their content."""

from __future__ import annotations

import json

import pytest

from dfmeta.store.db.repository import Repository
from tests.core.unit.store.api.support import INSTANCE, OTHER, Client, make_api
from tests.core.unit.store.support import Sql


@pytest.fixture
def client(repository: Repository) -> Client:
    return Client(make_api(repository))


def test_records_are_listed_without_their_content(client: Client, repository: Repository) -> None:
    empty = client.get("/api/v1/records")
    assert (empty.status_int, empty.content_type, empty.json) == (200, "application/json", [])
    client.push("metadata", metadata={"hostname": "web1", "name": 7, "ssh_keys": ["a", "b"]})
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
        *("after=", "after=x", "after=%ff", "after=default:*", f"after={INSTANCE}%0a"),
        f"after={INSTANCE.replace('-', '')}",
        f"after={INSTANCE}&after={INSTANCE}",
        f"after={INSTANCE}&after=",
    ):
        response = client.get(f"/records?{query}")
        assert response.status_int == 400, query
        assert response.json == {
            "message": "Invalid request",
            "errors": ["validation failed on after, condition: uuid"],
        }, query


def test_a_broken_document_hides_no_other_record(
    client: Client, repository: Repository, sql: Sql
) -> None:
    ids = [f"00000000-0000-4000-8000-{number:012x}" for number in range(3)]
    for record_id in ids:
        repository.put(record_id, document={"name": "fine"})
    sql(f"UPDATE records SET metadata = '[' WHERE id = '{ids[0]}'")
    sql(f"UPDATE records SET metadata = '{{\"name\": 1e999}}' WHERE id = '{ids[1]}'")
    text = client.get("/records").text
    assert "Infinity" not in text
    assert [row["name"] for row in json.loads(text)] == ["(broken document)", None, "fine"]
