"""A container should be answered from its attachment where the store has no metadata for it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from dfmeta.exceptions import BackendError, StoreError
from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.store.db.record import Kind, Record
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest import defaults
from dfmeta.store.guest.backend import StoreBackend
from dfmeta.store.guest.need import Need
from tests.core.unit.store.support import Ask
from tests.core.unit.support import OTHER_INSTANCE
from tests.harness.records import push

META_DATA = "/openstack/latest/meta_data.json"
PASSWORD = "/openstack/latest/password"
USERDATA = "/latest/user-data"
HOST = "kvm1"
THEN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def ask(repository: Repository, identity: Identity) -> Ask:
    """Ask as the container with the instance of ``identity``."""
    record = Record(identity.instance_id, b"s", THEN, THEN, "p", '{"hostname":"pod"}', derived=True)

    def containers(instance_id: str) -> Record | None:
        return record if instance_id == record.id else None

    backend = StoreBackend(repository, host=HOST, containers=containers)

    def ask(path: str, method: str = "GET", body: bytes = b"", **who: Any) -> Answer:
        request = GuestRequest(method=method, path=path, body=body)
        return backend.open(request, replace(identity, **who)).answer()

    return ask


def test_the_attachment_answers_and_no_defaults(ask: Ask, repository: Repository) -> None:
    repository.put(defaults.EVERYWHERE, document={"hostname": "all"}, userdata=b"all")
    assert json.loads(ask(META_DATA).body)["hostname"] == "pod"
    assert ask(USERDATA).status == 404
    other = json.loads(ask(META_DATA, instance_id=OTHER_INSTANCE).body)
    assert other["hostname"] == "all"


def test_the_operators_half_comes_first(
    ask: Ask, repository: Repository, identity: Identity
) -> None:
    name = identity.instance_id
    push(repository, Kind.USERDATA, name, content=b"given")
    found = json.loads(ask(META_DATA).body)
    assert (found["hostname"], found["project_id"]) == ("pod", "p")
    assert ask(USERDATA).body == b"given"
    repository.put(name, document={"name": "given"})
    assert json.loads(ask(META_DATA).body)["name"] == "given"
    assert json.loads(ask(META_DATA).body)["hostname"] == "given"


def test_no_password_outlives_a_container(
    ask: Ask, repository: Repository, identity: Identity
) -> None:
    assert (ask(PASSWORD).status, ask(PASSWORD).body) == (200, b"")
    assert ask(PASSWORD, "POST", b"p").status == 404
    assert repository.count() == 0
    # With a record of the operator there is a place for it.
    push(repository, Kind.USERDATA, identity.instance_id, content=b"given")
    assert ask(PASSWORD, "POST", b"p").status == 200
    assert ask(PASSWORD).body == b"p"


def test_an_instance_that_a_tenant_has_named_needs_the_project(ask: Ask) -> None:
    assert ask(META_DATA, unverified=True, project_id="other").status == 404
    assert ask(META_DATA, unverified=True, project_id="").status == 404
    assert ask(META_DATA, unverified=True, project_id="p").status == 200


class Upstream:
    """A reader that knows the user-data of each instance."""

    def get(self, record_id: str, need: Need) -> Record | None:
        del need
        return Record(record_id, b"u", THEN, THEN, userdata=b"upstream", http_tokens="required")


@pytest.mark.parametrize("reader", [None, Upstream()], ids=["store", "upstream"])
def test_a_database_of_attachments_that_fails_is_not_a_404(
    repository: Repository, identity: Identity, reader: Upstream | None
) -> None:
    def fail(_instance_id: str) -> Record | None:
        raise StoreError(cause="away")

    backend = StoreBackend(repository, reader=reader, containers=fail)
    with pytest.raises(BackendError, match="away"):
        backend.open(GuestRequest("GET", META_DATA), identity)
    with pytest.raises(BackendError, match="away"):
        backend.view(GuestRequest("GET", META_DATA), identity, None)
