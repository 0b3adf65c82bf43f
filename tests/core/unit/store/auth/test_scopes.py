"""The scopes should be the original's, each operation with its own."""

from __future__ import annotations

import pytest

from dfmeta.store.auth import scopes


@pytest.mark.parametrize("kind", ["metadata", "userdata"])
def test_an_operation_accepts_the_originals_scopes(kind: str) -> None:
    assert scopes.accepted("upsert", kind) == (
        "write",
        "create",
        "update",
        f"metadata:create:{kind}",
        f"metadata:update:{kind}",
    )
    assert scopes.accepted("read", kind) == ("read", f"metadata:read:{kind}")
    assert scopes.accepted("delete", kind) == ("write", "delete", f"metadata:delete:{kind}")


def test_a_scope_of_one_kind_opens_nothing_of_the_other() -> None:
    for operation in scopes.OPERATIONS:
        narrow = [
            {one for one in scopes.accepted(operation, kind) if ":" in one} for kind in scopes.KINDS
        ]
        assert narrow[0].isdisjoint(narrow[1])


def test_reading_needs_a_scope_that_reads() -> None:
    for kind in scopes.KINDS:
        assert "write" not in scopes.accepted("read", kind)
        for operation in ("upsert", "delete"):
            assert "read" not in scopes.accepted(operation, kind)


def test_all_that_can_be_given_is_known() -> None:
    assert len(scopes.known()) == len(set(scopes.known())) == 13
    assert scopes.known()[:5] == ("write", "create", "update", "read", "delete")
