"""A token should come from the issuer or a file when it is needed; no other server sees secrets."""

import base64
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from dfmeta.errors import ConfigError, LookupAnswerError, LookupAwayError, StoreError
from dfmeta.http.client import TOKEN_MAX
from dfmeta.http.responses import HttpResponse
from dfmeta.store.db.record import Kind
from dfmeta.store.db.repository import Repository
from dfmeta.store.lookup.tokens import (
    DISCOVERY,
    LIFE,
    Credentials,
    FileToken,
    IssuerToken,
)
from dfmeta.store.lookup.upstream import Patience, Upstream
from dfmeta.wiring.services import make_puller
from tests.core.unit.store.lookup.support import LATE, Asked, OtherStore, reply
from tests.core.unit.store.support import named
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, Load
from tests.harness.other_store import OtherStore as Server
from tests.harness.tier import CLOCK

SECRET = "a secret: n&body may see"
TOKEN_PATH = "/token"


class Issuer(OtherStore):
    """Gives tokens: ``token-1``, ``token-2`` and so on."""

    def __init__(self) -> None:
        super().__init__()
        self.discovery: dict[str, object] = {}
        self.token: dict[str, object] = {"token_type": "Bearer", "expires_in": 3600}
        self.response: HttpResponse | None = None
        self.given = 0
        self.answer = self.say

    def say(self, request: Asked) -> HttpResponse | StoreError:
        if request.target == DISCOVERY:
            known = {"issuer": self.url, "token_endpoint": f"{self.url}{TOKEN_PATH}"}
            return reply({**known, **self.discovery})
        if self.response is not None:
            return self.response
        self.given += 1
        return reply({"access_token": f"token-{self.given}", **self.token})


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


Build = Callable[..., IssuerToken]


@pytest.fixture
def build(issuer: Issuer) -> Build:
    def build(**of_credentials: Any) -> IssuerToken:
        known = {"issuer": issuer.url, "client_id": "me:", "client_secret": SECRET}
        client: Any = issuer
        return IssuerToken(Credentials(**{**known, **of_credentials}), client)

    return build


def get(tokens: IssuerToken, *, refused: str = "") -> str:
    return tokens.get(deadline=CLOCK.now() + 10, refused=refused)


def form(request: Asked) -> dict[str, list[str]]:
    return parse_qs(request.body, strict_parsing=True)


def test_credentials_are_in_header_or_form_as_wanted(issuer: Issuer, build: Build) -> None:
    assert get(build()) == "token-1"
    pair = base64.b64encode(b"me%3A:a+secret%3A+n%26body+may+see").decode()
    assert issuer.asked[-1].headers["authorization"] == f"Basic {pair}"
    assert form(issuer.asked[-1]) == {"grant_type": ["client_credentials"]}
    assert issuer.targets() == [DISCOVERY, TOKEN_PATH]
    issuer.discovery["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    get(build(audience="api", scopes=("read", "more")))
    assert "authorization" not in issuer.asked[-1].headers
    assert form(issuer.asked[-1]) == {
        "grant_type": ["client_credentials"],
        "audience": ["api"],
        "scope": ["read more"],
        "client_id": ["me:"],
        "client_secret": [SECRET],
    }


def test_a_token_is_kept_until_shortly_before_its_end(issuer: Issuer, build: Build) -> None:
    for given, life in (
        ({"expires_in": 3600}, 3240),
        ({"expires_in": 10}, 9),
        ({"expires_in": "100"}, 90),
        ({}, LIFE - LIFE / 10),
        ({"expires_in": 0}, LIFE - LIFE / 10),
    ):
        issuer.token = given
        tokens = build()
        first = get(tokens)
        CLOCK.advance(life - 0.5)
        assert get(tokens) == first, given
        CLOCK.advance(1)
        assert get(tokens) != first, given
        assert issuer.targets().count(DISCOVERY) == 1


def test_a_refused_token_is_replaced_once_for_all_that_had_it(build: Build) -> None:
    tokens = build()
    first = get(tokens)
    assert get(tokens, refused=first) == "token-2"
    assert get(tokens, refused=first) == "token-2"


def test_invalid_token_response_is_error_without_secrets(issuer: Issuer, build: Build) -> None:
    invalid = "not a valid token response"
    for response, cause in (
        (reply({"error": "invalid_client"}, status=401), "invalid_client: the token endpoint"),
        (reply({"error": SECRET}, status=400), "endpoint answers 400"),
        (reply(b"access_token=x"), invalid),
        (reply({"error": "invalid_client", "error_description": SECRET}), invalid),
        (reply({"access_token": "x", "expires_in": "soon"}), invalid),
        (reply({"access_token": "x", "expires_in": {}}), invalid),
        (reply({"access_token": "x\r\ny: z"}), "no bearer token"),
        (reply({"access_token": ["x"]}), "no bearer token"),
        (reply({"access_token": "x", "token_type": "mac"}), "no bearer token"),
        (reply([]), invalid),
    ):
        issuer.response = response
        tokens = build()
        with named(response.body), pytest.raises(LookupAwayError, match=cause) as caught:
            get(tokens)
        assert SECRET not in str(caught.value)
        assert caught.value.fields["whole"] is True
        issuer.response = None
        assert get(tokens).startswith("token-")


def test_an_invalid_discovery_document_is_an_error(issuer: Issuer, build: Build) -> None:
    for discovery, cause in (
        ({"issuer": "https://another"}, "names another issuer"),
        ({"issuer": None}, "or none"),
        ({"token_endpoint": None}, "does not begin with"),
        ({"token_endpoint": "file:///etc/passwd"}, "does not begin with"),
    ):
        issuer.discovery = dict(discovery)
        with named(discovery), pytest.raises(LookupAwayError, match=cause):
            get(build())
    assert issuer.given == 0


def test_no_secret_is_in_a_repr(build: Build) -> None:
    assert SECRET not in repr(Credentials("https://login", "me", SECRET))
    assert SECRET not in repr(vars(build()))


def test_401_renews_token(issuer: Issuer, build: Build, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    good = ["Bearer token-1"]

    def answer(request: Asked) -> HttpResponse:
        known = request.headers["authorization"] in good
        return reply({"hostname": "a"} if known else {}, status=200 if known else 401)

    store = OtherStore()
    store.answer = answer
    client: Any = store
    upstream = Upstream(store.url, client=client, tokens=build(), patience=Patience(5, 0))
    assert upstream.by_id(Kind.METADATA, INSTANCE) is not None
    good[0] = "Bearer token-2"
    assert upstream.by_id(Kind.METADATA, INSTANCE) is not None
    carried = [request.headers["authorization"] for request in store.asked]
    assert carried == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]
    good.clear()
    with pytest.raises(LookupAnswerError, match="it answers 401"):
        upstream.by_id(Kind.METADATA, INSTANCE)
    assert len(store.asked) == 5
    assert issuer.given == 3
    assert SECRET not in caplog.text
    assert "token-" not in caplog.text


def test_a_token_is_fetched_within_the_time_of_the_try(issuer: Issuer, build: Build) -> None:
    issuer.always(LATE)
    store = OtherStore()
    client: Any = store
    upstream = Upstream(store.url, client=client, tokens=build(), patience=Patience(0.2, 0))
    deadline = CLOCK.now() + 0.2
    with pytest.raises(LookupAwayError, match="no answer in time"):
        upstream.by_id(Kind.METADATA, INSTANCE)
    assert {request.deadline for request in issuer.asked} == {deadline}
    assert store.asked == []


# The options


FILE_SECRET = "dfm_a-token-nobody-may-see"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{FILE_SECRET}\n")
    path.chmod(0o600)
    return path


def test_file_has_the_token(load: Load, repository: Repository, server: Server, file: Path) -> None:
    conf = load(store__lookup_base_url=server.url, store__lookup_token_file=str(file))
    puller = make_puller(conf, repository)
    assert puller is not None
    assert puller.get(INSTANCE) is None
    assert {request.headers["authorization"] for request in server.asked} == {
        f"Bearer {FILE_SECRET}"
    }
    server.asked.clear()
    file.write_text("another")
    puller.get(OTHER_INSTANCE)
    assert {request.headers["authorization"] for request in server.asked} == {"Bearer another"}


def test_an_unusable_file_is_an_error_that_does_not_repeat_it(file: Path) -> None:
    for content in ("", "\n", "two words", "two\nlines", "\N{SNOWMAN}", "a" * (TOKEN_MAX + 1)):
        file.write_text(content)
        with (
            named(content),
            pytest.raises(LookupAwayError, match="must contain one token") as caught,
        ):
            FileToken(file, "https://store").get(deadline=0)
        assert "words" not in str(caught.value)
    file.unlink()
    with pytest.raises(LookupAwayError, match="No such file"):
        FileToken(file, "https://store").get(deadline=0)


def test_an_unusable_file_stops_the_start(load: Load, repository: Repository, file: Path) -> None:
    conf = load(store__lookup_base_url="https://store", store__lookup_token_file=str(file))
    file.chmod(0o644)
    for _ in ("readable by all", "missing"):
        with pytest.raises(ConfigError, match="lookup_token_file") as caught:
            make_puller(conf, repository)
        assert FILE_SECRET not in str(caught.value)
        file.unlink(missing_ok=True)


def test_the_options_make_a_puller(
    load: Load, repository: Repository, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    assert make_puller(load(), repository) is None
    conf = load(
        store__lookup_base_url=server.url,
        store__lookup_issuer=server.url,
        store__lookup_client_id="me",
        store__lookup_client_secret=FILE_SECRET,
        store__lookup_scopes="read,more",
        store__lookup_retries=0,
    )
    puller = make_puller(conf, repository)
    assert puller is not None
    with pytest.raises(LookupAwayError, match="there is no token"):
        puller.get(INSTANCE)
    assert server.targets() == ["/.well-known/openid-configuration"]
    assert "lookup_issuer is an http" in caplog.text
    assert FILE_SECRET not in caplog.text
