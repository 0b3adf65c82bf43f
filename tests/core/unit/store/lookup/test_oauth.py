"""A token should be fetched when it is needed, and its secrets be seen by the issuer alone."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs

import pytest

from dfmeta.exceptions import LookupAnswerError, LookupAwayError
from dfmeta.store.db.record import Kind
from dfmeta.store.http import Client
from dfmeta.store.lookup.oauth import DISCOVERY, EARLY, LIFE, Credentials, Tokens
from dfmeta.store.lookup.upstream import Patience, Upstream
from tests.core.unit.support import INSTANCE
from tests.harness.other_store import Asked, OtherStore, reply

SECRET = "a secret: n&body may see"
TOKEN_PATH = "/token"


class Issuer(OtherStore):
    """Gives tokens: ``token-1``, ``token-2`` and so on."""

    def __init__(self) -> None:
        super().__init__(self.say)
        self.discovery: dict[str, object] = {}
        self.token: dict[str, object] = {"token_type": "Bearer", "expires_in": 3600}
        self.said: bytes | None = None
        self.given = 0

    def say(self, asked: Asked) -> bytes:
        if asked.target == DISCOVERY:
            known = {"issuer": self.url, "token_endpoint": f"{self.url}{TOKEN_PATH}"}
            return reply({**known, **self.discovery})
        if self.said is not None:
            return self.said
        self.given += 1
        return reply({"access_token": f"token-{self.given}", **self.token})


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.close()


Build = Callable[..., Tokens]


@pytest.fixture
def build(issuer: Issuer, client: Client) -> Build:
    def build(clock: Callable[[], float] = time.monotonic, **of_credentials: object) -> Tokens:
        known = {"issuer": issuer.url, "client_id": "me:", "client_secret": SECRET}
        return Tokens(Credentials(**{**known, **of_credentials}), client, clock=clock)  # type: ignore[arg-type]  # by name

    return build


def get(tokens: Tokens, *, refused: str = "") -> str:
    return tokens.get(deadline=time.monotonic() + 10, refused=refused)


def form(asked: Asked) -> dict[str, list[str]]:
    return parse_qs(asked.body, strict_parsing=True)


def test_credentials_go_into_a_header(issuer: Issuer, build: Build) -> None:
    assert get(build()) == "token-1"
    asked = issuer.asked[-1]
    pair = base64.b64encode(b"me%3A:a+secret%3A+n%26body+may+see").decode()
    assert asked.headers["authorization"] == f"Basic {pair}"
    assert form(asked) == {"grant_type": ["client_credentials"]}
    assert issuer.targets() == [DISCOVERY, TOKEN_PATH]


def test_or_into_the_form_where_the_issuer_wants_them_there(issuer: Issuer, build: Build) -> None:
    issuer.discovery["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    get(build())
    assert "authorization" not in issuer.asked[-1].headers
    assert form(issuer.asked[-1]) == {
        "grant_type": ["client_credentials"],
        "client_id": ["me:"],
        "client_secret": [SECRET],
    }


def test_audience_and_scopes_are_asked_for(issuer: Issuer, build: Build) -> None:
    issuer.token["scope"] = "read"
    assert get(build(audience="api", scopes=("read", "more"))) == "token-1"
    assert form(issuer.asked[-1]) == {
        "grant_type": ["client_credentials"],
        "audience": ["api"],
        "scope": ["read more"],
    }


def test_a_token_is_kept_until_shortly_before_its_end(issuer: Issuer, build: Build) -> None:
    now = [0.0]
    tokens = build(clock=lambda: now[0])
    assert get(tokens) == "token-1"
    now[0] = 3600 - EARLY - 1
    assert get(tokens) == "token-1"
    now[0] += 2
    assert get(tokens) == "token-2"
    assert issuer.targets().count(DISCOVERY) == 1


@pytest.mark.parametrize(
    ("given", "life"),
    [
        ({"expires_in": 10}, 9),
        ({"expires_in": "100"}, 90),
        ({}, LIFE - EARLY),
        ({"expires_in": 0}, LIFE - EARLY),
    ],
)
def test_a_short_life_is_used_for_its_most_part(
    issuer: Issuer, build: Build, given: dict[str, object], life: float
) -> None:
    now = [0.0]
    issuer.token = given
    tokens = build(clock=lambda: now[0])
    get(tokens)
    now[0] = life - 0.5
    assert get(tokens) == "token-1"
    now[0] = life + 0.5
    assert get(tokens) == "token-2"


def test_a_refused_token_is_replaced_once_for_all_that_had_it(build: Build) -> None:
    tokens = build()
    first = get(tokens)
    assert get(tokens, refused=first) == "token-2"
    assert get(tokens, refused=first) == "token-2"


def test_one_asks_for_all(issuer: Issuer, build: Build) -> None:
    tokens = build()
    gate = threading.Barrier(20)

    def ask(_number: int) -> str:
        gate.wait()
        return get(tokens)

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(ask, range(20))) == {"token-1"}
    assert issuer.given == 1


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (reply({"error": "invalid_client"}, status=401), "invalid_client: the token endpoint"),
        (reply({"error": SECRET}, status=400), "endpoint answers 400"),
        (reply(b"x", status=500), "endpoint answers 500"),
        (reply(b"access_token=x"), "not a valid token response"),
        (
            reply({"error": "invalid_client", "error_description": SECRET}),
            "not a valid token response",
        ),
        (reply({}), "not a valid token response"),
        (reply({"access_token": "x", "expires_in": "soon"}), "not a valid token response"),
        (reply({"access_token": "x", "expires_in": {}}), "not a valid token response"),
        (reply({"access_token": "x\r\ny: z"}), "no bearer token"),
        (reply({"access_token": ["x"]}), "no bearer token"),
        (reply({"access_token": "x", "token_type": "mac"}), "no bearer token"),
        (reply([]), "not a valid token response"),
        (reply({}, headers=("Content-Encoding: gzip",)), "compressed"),
    ],
)
def test_what_is_no_token_is_no_token(
    issuer: Issuer, build: Build, said: bytes, cause: str
) -> None:
    issuer.said = said
    tokens = build()
    with pytest.raises(LookupAwayError, match=cause) as caught:
        get(tokens)
    assert SECRET not in str(caught.value)
    assert caught.value.fields["whole"] is True
    issuer.said = None
    assert get(tokens) == "token-1"


@pytest.mark.parametrize(
    ("discovery", "cause"),
    [
        ({"issuer": "https://another"}, "names another issuer"),
        ({"issuer": None}, "is invalid"),
        ({"token_endpoint": None}, "does not begin with"),
        ({"token_endpoint": "file:///etc/passwd"}, "does not begin with"),
    ],
)
def test_what_is_no_discovery_is_none(
    issuer: Issuer, build: Build, discovery: dict[str, object], cause: str
) -> None:
    issuer.discovery = discovery
    with pytest.raises(LookupAwayError, match=cause):
        get(build())
    assert issuer.given == 0


def test_an_issuer_that_is_away_is_said_to_be(issuer: Issuer, build: Build) -> None:
    tokens = build()
    issuer.stop()
    with pytest.raises(LookupAwayError, match="refused"):
        get(tokens)
    issuer.start()
    assert get(tokens) == "token-1"


def test_no_secret_is_in_a_repr(build: Build) -> None:
    credentials = Credentials("https://login", "me", SECRET)
    assert SECRET not in repr(credentials)
    assert SECRET not in repr(vars(build()))


def upstream(store: OtherStore, tokens: Tokens, client: Client) -> Upstream:
    return Upstream(
        store.url, client=client, tokens=tokens, patience=Patience(5, 0), wait=lambda _try: 0
    )


def test_requests_carry_the_token_and_another_one_after_a_401(
    issuer: Issuer,
    client: Client,
    build: Build,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    good = ["Bearer token-1"]

    def answer(asked: Asked) -> bytes:
        known = asked.headers["authorization"] in good
        return reply({"hostname": "a"} if known else {}, status=200 if known else 401)

    with OtherStore(answer) as store:
        asking = upstream(store, build(), client)
        assert asking.by_id(Kind.METADATA, INSTANCE) is not None
        good[0] = "Bearer token-2"
        assert asking.by_id(Kind.METADATA, INSTANCE) is not None
        carried = [asked.headers["authorization"] for asked in store.asked]
        assert carried == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]
        good.clear()
        with pytest.raises(LookupAnswerError, match="it answers 401"):
            asking.by_id(Kind.METADATA, INSTANCE)
        assert len(store.asked) == 5
    assert issuer.given == 3
    assert SECRET not in caplog.text
    assert "token-" not in caplog.text


def test_a_token_is_not_fetched_in_longer_than_a_try_may_take(
    issuer: Issuer, client: Client, build: Build
) -> None:
    issuer.answer = lambda _asked: issuer.trickle(b"HTTP/1.1 200 OK\r\n", b"X: a\r\n")
    with OtherStore(lambda _asked: reply(json.dumps({}))) as store:
        asking = Upstream(store.url, client=client, tokens=build(), patience=Patience(0.2, 0))
        with pytest.raises(LookupAwayError, match="no answer in time"):
            asking.by_id(Kind.METADATA, INSTANCE)
        assert store.asked == []
