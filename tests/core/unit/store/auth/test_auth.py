"""A request without a valid token and scope should get an error and nothing else."""

from __future__ import annotations

import pytest

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
from tests.core.unit.store.support import named


class Known:
    """Knows some tokens, and notes those that it was asked for."""

    def __init__(self, **tokens: str) -> None:
        self.tokens = tokens
        self.asked: list[str] = []

    def client(self, token: str) -> Client | None:
        self.asked.append(token)
        known = self.tokens.get(token)
        return None if known is None else Client(f"token {token}", frozenset(known.split()))


def test_a_header_without_a_valid_token_is_refused_in_its_words() -> None:
    for message, headers in (
        (MISSING, [None, "", "\t"]),
        (MALFORMED, ["Bearer ", "Basic dTpw", "token", "Bearertoken", "Bearer\ttoken", " x y"]),
        (INVALID, ["Bearer wrong", "Bearer a b", "Bearer t\xf6ken", "bearer ="]),
        (INVALID, ["Bearer " + "a" * 16385]),
    ):
        for header in headers:
            with named(header), pytest.raises(Unauthorized) as caught:
                Authorizer(Known(token="read")).authorize(header, ("read",))
            assert caught.value.message == message, header


def test_a_token_passes_however_the_scheme_is_written() -> None:
    for header in ("Bearer token", "bearer token", "BEARER   token ", " Bearer token"):
        assert bearer_token(header) == "token", header
        Authorizer(Known(token="read")).authorize(header, ("read",))


def test_any_accepted_scope_is_enough_as_a_whole_word() -> None:
    for scope in scopes.accepted("upsert", "metadata"):
        authorizer = Authorizer(Known(token=scope))
        authorizer.authorize("Bearer token", scopes.accepted("upsert", "metadata"))
    with pytest.raises(Forbidden):
        Authorizer(Known(token="rea reads READ")).authorize("Bearer token", ("read",))


def test_a_missing_scope_is_named() -> None:
    authorizer = Authorizer(Known(token="read metadata:delete:userdata"))
    with pytest.raises(Forbidden) as caught:
        authorizer.authorize("Bearer token", scopes.accepted("delete", "metadata"))
    assert caught.value.message == (
        "not authorized, missing required scope. Have: metadata:delete:userdata,read; "
        "Need: write,delete,metadata:delete:metadata"
    )


def test_the_first_verifier_that_knows_a_token_decides() -> None:
    first, second = Known(a="read"), Known(a="write", b="write")
    authorizer = Authorizer(first, second)
    with pytest.raises(Forbidden):
        authorizer.authorize("Bearer a", ("write",))
    authorizer.authorize("Bearer b", ("write",))
    assert (first.asked, second.asked) == (["a", "b"], ["b"])


def test_an_operation_accepts_the_scopes_of_the_original() -> None:
    for kind in scopes.KINDS:
        upsert = ("write", "create", "update", f"metadata:create:{kind}", f"metadata:update:{kind}")
        assert scopes.accepted("upsert", kind) == upsert
        assert scopes.accepted("read", kind) == ("read", f"metadata:read:{kind}")
        assert scopes.accepted("delete", kind) == ("write", "delete", f"metadata:delete:{kind}")
    assert len(scopes.known()) == len(set(scopes.known())) == 13
    assert scopes.known()[:5] == ("write", "create", "update", "read", "delete")
