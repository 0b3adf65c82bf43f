"""doc/source/store-auth.rst should say what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from dfmeta.cli.token_command import token
from dfmeta.conf import auth as options
from dfmeta.store.auth import caller as auth
from dfmeta.store.auth import keys as auth_keys
from dfmeta.store.auth import oidc as auth_oidc
from dfmeta.store.auth import scopes

PAGE = (Path(__file__).parents[3] / "doc/source/store-auth.rst").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())
ROWS = {"upsert": "push or refresh", "read": "read", "delete": "delete"}
KINDS = {"metadata": "metadata", "userdata": "user-data"}


@pytest.mark.parametrize("option", options.OPTS, ids=lambda one: one.name)
def test_the_page_names_each_option(option: object) -> None:
    assert f"{option.name}" in PAGE  # type: ignore[attr-defined]  # oslo.config has no types


@pytest.mark.parametrize("operation", scopes.OPERATIONS)
@pytest.mark.parametrize("kind", scopes.KINDS)
def test_the_page_has_each_operations_scopes(operation: scopes.Operation, kind: str) -> None:
    names = ", ".join(f"``{one}``" for one in scopes.accepted(operation, kind))
    assert f"* - {ROWS[operation]} {KINDS[kind]} - {names} " in WORDS


def test_the_page_has_the_scopes_of_the_list() -> None:
    names = ", ".join(f"``{one}``" for one in scopes.accepted_for_any("read"))
    assert f"* - list records - {names} " in WORDS


@pytest.mark.parametrize(
    "message",
    [auth.MISSING, auth.MALFORMED, auth.INVALID, auth_keys.UNAVAILABLE, f"{auth.DENIED}. Have: …"],
)
def test_the_page_has_each_message(message: str) -> None:
    assert f"``{message}" in WORDS


@pytest.mark.parametrize("command", sorted(token.commands))
def test_the_page_shows_each_command(command: str) -> None:
    assert f"dfmeta token {command} --config-file FILE" in PAGE


def test_the_page_has_the_numbers_of_the_code() -> None:
    for text in (
        f"with {auth_oidc.LEEWAY:g} seconds for clocks",
        f"every {auth_keys.LIFESPAN:g} seconds",
        f"once in {auth_keys.SEARCH_PAUSE:g} seconds at most",
        f"may take {auth_oidc.TIMEOUT:g} seconds and have {auth_oidc.ANSWER_MAX} bytes",
        f"RSA keys of {auth_keys.RSA_BITS} bits",
    ):
        assert text in WORDS


def test_the_page_names_the_algorithms() -> None:
    listed = [*auth_keys.RSA_ALGORITHMS, *auth_keys.CURVES.values()]
    assert f"signed with {', '.join(listed[:-1])} or {listed[-1]} by" in WORDS
