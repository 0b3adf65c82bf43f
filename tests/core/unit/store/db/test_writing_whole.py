"""A document put as a whole, and several pushes at once, should leave nothing of what was."""

from __future__ import annotations

import uuid
from ipaddress import ip_network

import pytest

from dfmeta.exceptions import StoreError
from dfmeta.store.db.record import Kind, Push, Whole
from dfmeta.store.db.repository import Repository, parse_document
from tests.core.unit.support import OTHER_INSTANCE


def document(repository: Repository, instance_id: str) -> dict[str, object]:
    record = repository.get(instance_id)
    assert record is not None
    return parse_document(record.id, record.metadata)


def test_a_whole_document_takes_the_place_of_the_one_before(
    repository: Repository, instance_id: str
) -> None:
    repository.put(instance_id, document={"a": {"b": 1}, "c": 1, "d": 1}, userdata=b"u")
    result = repository.put(instance_id, document=Whole({"a": {"x": None}, "c": 1}))
    assert result.changed == ("a", "d")
    assert document(repository, instance_id) == {"a": {"x": None}, "c": 1}
    record = repository.get(instance_id)
    assert record is not None
    assert record.userdata == b"u"
    assert repository.put(instance_id, document=Whole({"a": {"x": None}, "c": 1})).changed == ()


def test_pushes_are_done_in_their_order(repository: Repository, instance_id: str) -> None:
    network = ip_network("10.0.0.5")
    one = Push(kind=Kind.METADATA, record_id=instance_id, content={"n": 1}, networks=[network])
    two = Push(kind=Kind.USERDATA, record_id=OTHER_INSTANCE, content=b"u", networks=[network])
    older = {"updated_at": "2026-01-01T00:00:00Z"}
    newer = {"updated_at": "2026-01-02T00:00:00Z"}
    guarded = [
        Push(kind=Kind.METADATA, record_id=OTHER_INSTANCE, content=content, networks=[network])
        for content in (newer, older)
    ]
    assert repository.push_all([one, two, *guarded]) == (True, True, True, False)
    assert repository.addresses(instance_id) == ()
    assert repository.addresses(OTHER_INSTANCE) == ("10.0.0.5/32",)
    assert document(repository, OTHER_INSTANCE) == newer


def test_of_pushes_at_once_all_or_none_are_done(repository: Repository, instance_id: str) -> None:
    good = Push(kind=Kind.METADATA, record_id=instance_id, content={"n": 1}, networks=[])
    bad = Push(
        kind=Kind.METADATA, record_id=str(uuid.uuid4()), content={"n": "\ud800"}, networks=[]
    )
    with pytest.raises(StoreError):
        repository.push_all([good, bad])
    assert repository.get(instance_id) is None
