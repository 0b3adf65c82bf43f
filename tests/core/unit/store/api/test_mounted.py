"""The configuration should decide which clients may use the admin API, and what it takes."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dfmeta.conf.store import TEMPLATES
from dfmeta.errors import ConfigError
from dfmeta.model import GuestRequest, Identity
from dfmeta.store.auth.tokens import Grant, add, new_token
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest.backend import StoreBackend
from dfmeta.wiring.backends import make_answer_settings
from dfmeta.wiring.store import StoreApi
from tests.core.unit.store.api.support import INSTANCE, Client
from tests.core.unit.support import Load


def test_before_the_store_is_open_it_says_not_now(load: Load, repository: Repository) -> None:
    api = StoreApi(load(store__max_body=2048))
    client = Client(api)
    for path in ("/device-metadata", "/api/v1/nothing"):
        assert api.handles(path)
        response = client.get(path)
        assert (response.status_int, response.headers["Retry-After"]) == (503, "1")
        assert response.json == {"message": "the store is not open yet"}
    assert not api.handles("/healthz")
    api.open(repository)
    assert client.push("metadata", metadata={}).status_int == 200
    assert client.push("metadata", metadata={"x": "x" * 2048}).status_int == 413, "as configured"


def test_only_guests_get_templates(load: Load, repository: Repository, identity: Identity) -> None:
    conf = load(**{f"store__{name}": f"https://{{{{.facility}}}}.{name}" for name in TEMPLATES})
    pushed = {"facility": "da11", "phone_home_url": "https://pushed"}
    api = StoreApi(conf)
    api.open(repository)
    client = Client(api)
    client.push("metadata", metadata=pushed)
    assert client.get(f"/device-metadata/{INSTANCE}").json == pushed
    guest = StoreBackend(repository, make_answer_settings(conf))
    given = json.loads(guest.open(GuestRequest("GET", "/metadata"), identity).answer().body)
    added = {name: f"https://da11.{name}" for name in ("api_url", "user_state_url")}
    assert given == pushed | added


@pytest.mark.parametrize("listen", ["0.0.0.0:9697", "[::]:9697", "192.0.2.1:9697"])
def test_without_tokens_it_is_for_this_host_alone(load: Load, listen: str) -> None:
    with pytest.raises(ConfigError, match="admin_listen"):
        StoreApi(load(admin_listen=listen))


STRANGE = [
    {"host": "evil.example:9697"},
    {"host": "127.0.0.1:9697", "origin": "http://evil.example"},
    {"host": "127.0.0.1:9697", "sec_fetch_site": "cross-site"},
]


@pytest.mark.parametrize("headers", STRANGE, ids=str)
def test_without_tokens_no_web_page_of_another_site_is_let_ask(
    load: Load, repository: Repository, headers: dict[str, str]
) -> None:
    api = StoreApi(load())
    api.open(repository)
    client = Client(api)
    body = json.dumps({"id": INSTANCE, "metadata": {}}).encode()
    refused = client.ask("POST", "/device-metadata", body, **headers)
    assert (refused.status_int, list(refused.json)) == (403, ["message"])
    assert repository.get(INSTANCE) is None
    assert client.push("metadata", metadata={}).status_int == 200
    assert client.get(f"/device-metadata/{INSTANCE}", **headers).status_int == 403


def test_with_a_file_of_tokens_it_asks_for_one(
    load: Load, repository: Repository, tmp_path: Path
) -> None:
    token = new_token()
    grant = Grant(("metadata:read:metadata",), datetime(2026, 1, 1, tzinfo=UTC))
    add(tmp_path / "tokens", grant, token)
    api = StoreApi(load(admin_listen="0.0.0.0:9697", store__token_file=tmp_path / "tokens"))
    api.open(repository)
    client = Client(api)
    path = f"/device-metadata/{INSTANCE}"
    assert client.get(path).status_int == 401
    assert client.get(path, authorization="Bearer x").json == {"message": "invalid auth token"}
    assert client.get(path, authorization=f"Bearer {token}").status_int == 404
    for headers in STRANGE:
        assert client.get(path, authorization=f"Bearer {token}", **headers).status_int == 404
    denied = client.ask("DELETE", path, authorization=f"Bearer {token}")
    assert denied.status_int == 403
    assert denied.json["message"].startswith("not authorized, missing required scope. ")
