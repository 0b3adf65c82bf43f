"""The store should give the project and the name of an instance that is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from dfmeta.exceptions import SourceError, StoreError
from dfmeta.model import Port
from dfmeta.ports.records import StoreSource
from dfmeta.ports.sources import Ownership, Question
from dfmeta.store.db.repository import Repository

A = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
QUESTION = Question(Port(name="tap0", row="r", ofport=1, instance_id=A), 0.0)


def test_a_record_gives_project_and_name(tmp_path: Path) -> None:
    with Repository(f"sqlite:///{tmp_path}/store.db") as repository:
        source = StoreSource(repository.get)
        assert source.find(QUESTION) == Ownership()
        repository.put(A, document={"name": "web\n1"}, project_id="p")
        assert source.find(QUESTION) == Ownership(A, "p", "web 1")
        repository.put(A, document={"name": 5}, project_id=None)
        assert source.find(QUESTION) == Ownership(A)


class Damaged:
    """A record that another program has spoilt."""

    project_id = "a b"
    metadata = "{"


def test_a_damaged_record_gives_what_is_left() -> None:
    assert StoreSource(lambda _id: Damaged()).find(QUESTION) == Ownership(A)


def test_a_database_that_fails_is_told() -> None:
    def fail(_id: str) -> None:
        raise StoreError(cause="locked")

    with pytest.raises(SourceError, match="locked"):
        StoreSource(fail).find(QUESTION)
