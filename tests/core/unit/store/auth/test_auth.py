"""A client without a valid token should get an error, and nothing else should happen."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfmeta.exceptions import Forbidden, Unauthorized
from dfmeta.store.auth import scopes
from dfmeta.store.auth.caller import (
    INVALID,
    MALFORMED,
    MISSING,
    Authorizer,
    Client,
    bearer_token,
)
from dfmeta.store.auth.tokens import StaticToken, TokenFile, format_line, hash_token

TOKEN = "dfm_a-token-that-is-in-the-file"


class Known:
    """Knows some tokens, and notes what it was asked."""

    def __init__(self, **tokens: str) -> None:
        self.tokens = tokens
        self.asked: list[str] = []

    def client(self, token: str) -> Client | None:
        self.asked.append(token)
        known = self.tokens.get(token)
        return None if known is None else Client(f"token {token}", frozenset(known.split()))


@pytest.mark.parametrize("header", [None, "", " ", "\t"])
def test_without_a_token_the_answer_names_the_format(header: str | None) -> None:
    with pytest.raises(Unauthorized) as caught:
        Authorizer(Known()).authorize(header, ("read",))
    assert caught.value.message == MISSING
    assert 'expected format: "Bearer token"' in MISSING


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer ", "Basic dTpw", "token", "Bearertoken", "Bearer\ttoken", " x y"]
)
def test_another_kind_of_header_is_told_the_format(header: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        Authorizer(Known(token="read")).authorize(header, ("read",))
    assert caught.value.message == MALFORMED
    assert 'expected format: "Bearer token"' in MALFORMED


@pytest.mark.parametrize(
    "header", ["Bearer wrong", "Bearer a b", "Bearer t\xf6ken", "Bearer " + "a" * 16385, "bearer ="]
)
def test_a_token_that_nobody_knows_is_refused(header: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        Authorizer(Known(token="read")).authorize(header, ("read",))
    assert caught.value.message == INVALID == "invalid auth token"


@pytest.mark.parametrize(
    "header", ["Bearer token", "bearer token", "BEARER   token ", " Bearer token"]
)
def test_a_token_passes_however_the_scheme_is_written(header: str) -> None:
    assert bearer_token(header) == "token"
    Authorizer(Known(token="read")).authorize(header, ("read",))


def test_any_one_of_the_accepted_scopes_is_enough() -> None:
    for scope in scopes.accepted("upsert", "metadata"):
        authorizer = Authorizer(Known(token=scope))
        authorizer.authorize("Bearer token", scopes.accepted("upsert", "metadata"))


def test_a_missing_scope_is_named() -> None:
    authorizer = Authorizer(Known(token="read metadata:delete:userdata"))
    with pytest.raises(Forbidden) as caught:
        authorizer.authorize("Bearer token", scopes.accepted("delete", "metadata"))
    assert caught.value.message == (
        "not authorized, missing required scope. Have: metadata:delete:userdata,read; "
        "Need: write,delete,metadata:delete:metadata"
    )


def test_a_scope_is_a_whole_word() -> None:
    with pytest.raises(Forbidden):
        Authorizer(Known(token="rea reads READ")).authorize("Bearer token", ("read",))


def test_the_first_that_knows_a_token_decides() -> None:
    first, second = Known(a="read"), Known(a="write", b="write")
    authorizer = Authorizer(first, second)
    with pytest.raises(Forbidden):
        authorizer.authorize("Bearer a", ("write",))
    authorizer.authorize("Bearer b", ("write",))
    assert (first.asked, second.asked) == (["a", "b"], ["b"])


HEADERS = st.one_of(
    st.none(),
    st.text(),
    st.binary().map(lambda raw: raw.decode("latin-1")),
    st.text().map(lambda text: f"Bearer {text}"),
    st.from_regex(r"\A[Bb]earer +[A-Za-z0-9._~+/=-]*\Z"),
)


@pytest.fixture
def one_token(tmp_path: Path) -> TokenFile:
    path = tmp_path / "tokens"
    path.write_text(format_line(StaticToken("one", hash_token(TOKEN), ("read",))))
    path.chmod(0o600)
    return TokenFile(path)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=HEADERS)
def test_no_header_does_anything_but_be_refused(header: str | None, one_token: TokenFile) -> None:
    with pytest.raises(Unauthorized) as caught:
        Authorizer(one_token).authorize(header, ("read",))
    assert caught.value.message in (MISSING, MALFORMED, INVALID)
    Authorizer(one_token).authorize(f"Bearer {TOKEN}", ("read",))
