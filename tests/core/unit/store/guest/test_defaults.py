"""An instance without a record should get its attachment, or what is meant for all such."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dfmeta.errors import BackendError, StoreError
from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.store.db.record import Kind, Record, dump_document
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest import defaults
from dfmeta.store.guest.backend import StoreBackend
from tests.core.unit.store.support import KEY, Ask, Sql, http_tokens
from tests.core.unit.support import OTHER_INSTANCE
from tests.harness.records import push

HOST = "KVM1"
THEN = datetime(2026, 1, 1, tzinfo=UTC)
META_DATA = "/openstack/latest/meta_data.json"
PASSWORD = "/openstack/latest/password"
USERDATA = "/latest/user-data"


def layer(record_id: str, document: dict[str, object] | None, **values: object) -> Record:
    """Defaults as they stand in the store."""
    text = None if document is None else dump_document(document)
    record = Record(record_id, record_id.encode(), THEN, THEN, metadata=text)
    return replace(record, **values)  # type: ignore[arg-type]  # fields by name


def merged(*layers: Record, name: str = "Web 1", instance: str = OTHER_INSTANCE) -> Record:
    record = defaults.merged(layers, instance, instance_name=name, project_id="p")
    assert record is not None
    return record


@pytest.fixture
def guest(identity: Identity) -> Identity:
    return replace(identity, instance_name="Web 1", project_id="p")


@pytest.fixture
def backend(repository: Repository) -> StoreBackend:
    return StoreBackend(repository, host=HOST)


def asking(backend: StoreBackend, guest: Identity) -> Ask:
    """Ask as a guest, whose identity a question may change."""

    def ask(path: str, method: str = "GET", body: bytes = b"", **who: Any) -> Answer:
        request = GuestRequest(method=method, path=path, body=body)
        return backend.open(request, replace(guest, **who)).answer()

    return ask


@pytest.fixture
def asked(backend: StoreBackend, guest: Identity) -> Ask:
    return asking(backend, guest)


def members(record: Record) -> dict[str, object]:
    return dict(json.loads(record.metadata or "null"))


def test_the_more_special_one_comes_first_member_by_member() -> None:
    record = merged(
        layer("a", {"ssh_keys": ["1"], "meta": {"a": "1", "b": "1"}, "name": "all"}),
        layer("b", {"meta": {"b": "2"}, "availability_zone": "z"}, userdata=b"b"),
        layer("c", {"ssh_keys": ["3"]}, userdata=None, http_tokens="required"),
    )
    assert members(record) == {
        "name": "all",
        "hostname": "web-1",
        "ssh_keys": ["3"],
        "meta": {"a": "1", "b": "2"},
        "availability_zone": "z",
    }
    assert (record.userdata, record.http_tokens, record.project_id) == (b"b", "required", "p")
    assert merged(layer("a", {}, userdata=b"a"), layer("b", None, userdata=b"")).userdata == b""
    for layers in ([], [layer("a", None)]):
        assert defaults.merged(layers, "i", instance_name="n", project_id="") is None
    with pytest.raises(StoreError, match="document of record b"):
        merged(layer("a", {}), layer("b", {}, metadata="[]"))


def test_the_host_name_is_the_given_one_or_made_of_the_name() -> None:
    assert members(merged(layer("a", {"hostname": "given"})))["hostname"] == "given"
    assert members(merged(layer("a", {}))) == {"name": "Web 1", "hostname": "web-1"}
    assert members(merged(layer("a", {}), name="")) == {}


def test_the_seed_stays_and_is_each_instances_own() -> None:
    general, special = layer("a", {}), layer("b", {})
    seed = merged(general).seed
    later = replace(general, metadata='{"name":"x"}', updated_at=THEN + timedelta(1))
    assert seed == merged(later, special, name="other", instance=OTHER_INSTANCE.upper()).seed
    assert seed != merged(general, instance="6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01").seed
    assert seed != merged(special).seed
    assert merged(later, special).updated_at == later.updated_at
    assert general.seed not in seed


# As guests get them


def test_a_guest_without_a_record_boots_from_the_defaults(
    repository: Repository, backend: StoreBackend, guest: Identity, asked: Ask, instance_id: str
) -> None:
    assert asked(META_DATA).status == 404
    assert http_tokens(backend, guest) is None
    repository.put(defaults.EVERYWHERE, document={"ssh_keys": [KEY]}, userdata=b"all")
    assert http_tokens(backend, guest) == ""
    repository.put(defaults.EVERYWHERE, http_tokens="required")
    assert http_tokens(backend, guest) == "required"
    repository.put(defaults.of_host(HOST), document={"availability_zone": "rack1"})
    repository.put(defaults.of_project("P"), userdata=b"project")
    repository.put(defaults.of_project("q"), userdata=b"another's")
    repository.put(defaults.of_host("kvm2"), userdata=b"another host's")
    result = json.loads(asked(META_DATA).body)
    assert (result["uuid"], result["hostname"], result["name"]) == (instance_id, "web-1", "Web 1")
    assert result["availability_zone"] == "rack1"
    assert list(result["public_keys"].values()) == [KEY]
    assert asked(USERDATA).body == b"project"
    assert asked(USERDATA, project_id="").body == b"all"


def test_record_takes_no_defaults(repository: Repository, asked: Ask, instance_id: str) -> None:
    repository.put(defaults.EVERYWHERE, document={"ssh_keys": [KEY]}, userdata=b"all")
    repository.put(instance_id, document={"hostname": "own"})
    result = json.loads(asked(META_DATA).body)
    assert result["hostname"] == "own"
    assert "public_keys" not in result
    assert asked(USERDATA).status == 404
    repository.delete(instance_id)
    assert asked(USERDATA).body == b"all"


def test_defaults_are_an_option(repository: Repository, guest: Identity) -> None:
    repository.put(defaults.EVERYWHERE, userdata=b"all")
    without = StoreBackend(repository)
    assert without.open(GuestRequest("GET", USERDATA), guest).answer().status == 404
    assert http_tokens(without, guest) is None
    repository.set_password(guest.instance_id, b"secret", seed=b"s" * 32)
    assert without.open(GuestRequest("GET", PASSWORD), guest).answer().status == 404
    assert http_tokens(without, guest) is None, "a password alone is no record"


def test_a_claimed_instance_gets_no_defaults(
    repository: Repository, asked: Ask, backend: StoreBackend, guest: Identity
) -> None:
    repository.put(defaults.EVERYWHERE, userdata=b"all")
    repository.put(defaults.of_project("p"), userdata=b"project")
    assert asked(USERDATA, unverified=True).status == 404
    assert asked(PASSWORD, "POST", b"secret", unverified=True).status == 404
    assert http_tokens(backend, replace(guest, unverified=True)) is None


def test_password_alone_is_kept(repository: Repository, asked: Ask, instance_id: str) -> None:
    repository.put(defaults.EVERYWHERE, document={"ssh_keys": [KEY]})
    before = json.loads(asked(META_DATA).body)
    assert asked(PASSWORD).body == b""
    assert asked(PASSWORD, "POST", b"first").status == 200
    assert asked(PASSWORD, "POST", b"second").status == 409
    assert asked(PASSWORD).body == b"first"
    assert json.loads(asked(META_DATA).body) == before, "the random seed as well"
    own = repository.get(instance_id)
    assert own is not None
    assert own.empty
    repository.put(instance_id, document={"hostname": "own"})
    after = json.loads(asked(META_DATA).body)
    assert (after["hostname"], after["random_seed"]) == ("own", before["random_seed"])
    assert asked(PASSWORD).body == b"first"


def test_broken_default_is_error(
    repository: Repository, asked: Ask, sql: Sql, instance_id: str
) -> None:
    repository.put(defaults.EVERYWHERE, document={})
    sql("UPDATE records SET metadata = '['")
    with pytest.raises(BackendError):
        asked(META_DATA)
    repository.put(instance_id, document={})
    assert asked(META_DATA).status == 200, "an instance with a record does not depend on it"


# Containers


@pytest.fixture
def contained(repository: Repository, identity: Identity) -> Ask:
    """Ask as a container that has an attachment, with the instance of ``identity``."""
    record = Record(identity.instance_id, b"s", THEN, THEN, "p", '{"hostname":"pod"}', derived=True)

    def containers(instance_id: str) -> Record | None:
        return record if instance_id == record.id else None

    return asking(StoreBackend(repository, host=HOST, containers=containers), identity)


def test_the_attachment_answers_and_no_defaults(contained: Ask, repository: Repository) -> None:
    repository.put(defaults.EVERYWHERE, document={"hostname": "all"}, userdata=b"all")
    assert json.loads(contained(META_DATA).body)["hostname"] == "pod"
    assert contained(USERDATA).status == 404
    other = json.loads(contained(META_DATA, instance_id=OTHER_INSTANCE).body)
    assert other["hostname"] == "all"


def test_operator_comes_first(contained: Ask, repository: Repository, identity: Identity) -> None:
    name = identity.instance_id
    push(repository, Kind.USERDATA, name, content=b"given")
    result = json.loads(contained(META_DATA).body)
    assert (result["hostname"], result["project_id"]) == ("pod", "p")
    assert contained(USERDATA).body == b"given"
    repository.put(name, document={"name": "given"})
    assert json.loads(contained(META_DATA).body)["name"] == "given"
    assert json.loads(contained(META_DATA).body)["hostname"] == "given"


def test_no_password_outlives_a_container(
    contained: Ask, repository: Repository, identity: Identity
) -> None:
    assert (contained(PASSWORD).status, contained(PASSWORD).body) == (200, b"")
    assert contained(PASSWORD, "POST", b"p").status == 404
    assert repository.count() == 0
    # With a record of the operator there is a place for it.
    push(repository, Kind.USERDATA, identity.instance_id, content=b"given")
    assert contained(PASSWORD, "POST", b"p").status == 200
    assert contained(PASSWORD).body == b"p"


def test_an_instance_that_a_tenant_has_named_needs_the_project(contained: Ask) -> None:
    assert contained(META_DATA, unverified=True, project_id="other").status == 404
    assert contained(META_DATA, unverified=True, project_id="").status == 404
    assert contained(META_DATA, unverified=True, project_id="p").status == 200


def test_failing_attachment_database_is_no_404(repository: Repository, identity: Identity) -> None:
    def fail(_instance_id: str) -> Record | None:
        raise StoreError(cause="away")

    backend = StoreBackend(repository, containers=fail)
    with pytest.raises(BackendError, match="away"):
        backend.open(GuestRequest("GET", META_DATA), identity)
    with pytest.raises(BackendError, match="away"):
        backend.view(GuestRequest("GET", META_DATA), identity, None)
