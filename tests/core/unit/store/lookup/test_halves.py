"""A guest should wait for no other half of its record than the path that it asks for needs."""

from dataclasses import replace

import pytest

from dfmeta.errors import BackendError, BackendUpstreamError, LookupAnswerError, LookupAwayError
from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.store.db.record import METADATA_ALONE, USERDATA_ALONE, Kind
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest import defaults, dialects
from dfmeta.store.guest.backend import StoreBackend
from dfmeta.store.guest.dialects import AnswerSettings
from dfmeta.store.guest.requests import split_path
from tests.core.unit.store.lookup.support import (
    ADDRESS,
    BROKEN,
    METADATA,
    METADATA_OF,
    NONSENSE,
    SCRIPT,
    USERDATA,
    USERDATA_OF,
    Build,
    OtherStore,
    content,
    hostname,
    metadata,
    numbered,
    push,
    userdata,
)
from tests.core.unit.support import INSTANCE
from tests.harness import records
from tests.harness.tier import CLOCK

TOKEN = "/latest/api/token"


class Guest:
    """Asks as the proxy does: whether there has to be a token first, and then the answer."""

    def __init__(self, backend: StoreBackend, identity: Identity) -> None:
        self.backend = backend
        self.identity = identity
        self.mode: str | None = None

    def __call__(self, path: str, method: str = "GET", body: bytes = b"") -> Answer:
        view = self.backend.open(GuestRequest(method, path, body=body), self.identity)
        self.mode = view.http_tokens
        return view.answer()


def guest_of(build: Build, repository: Repository, identity: Identity, **how: object) -> Guest:
    settings = AnswerSettings(ec2_tree=str(how.pop("ec2_tree", "cloud-init")))
    host = "host1" if how.pop("defaults", False) else None
    return Guest(StoreBackend(repository, settings, reader=build(**how), host=host), identity)


@pytest.fixture
def guest(build: Build, repository: Repository, identity: Identity) -> Guest:
    return guest_of(build, repository, identity)


M, U = "metadata", "userdata"
QUERIES = {
    # path: halves that are queried where nothing is stored; with neither half upstream
    "/": ([M], [M, U]),
    "/openstack": ([M], [M, U]),
    "/openstack/latest": ([M, U], [M, U]),
    "/openstack/2012-08-10": ([U], [U, M]),
    "/openstack/latest/meta_data.json": ([M], [M, U]),
    "/openstack/latest/user_data": ([U], [U]),
    "/openstack/latest/network_data.json": ([M], [M, U]),
    "/openstack/latest/password": ([M], [M, U]),
    "/openstack/1999-01-01/user_data": ([M], [M, U]),
    "/latest": ([U], [U, M]),
    "/latest/meta-data/": ([M], [M, U]),
    "/latest/user-data": ([U], [U]),
    "/latest/dynamic/instance-identity/document": ([M], [M, U]),
    "/nocloud/": ([M], [M, U]),
    "/nocloud/user-data": ([U], [U, M]),
    "/nocloud/vendor-data": ([M], [M, U]),
    "/nocloud/network-config": ([M], [M, U]),
    "/metadata": ([M], [M]),
    "/userdata": ([U], [U]),
    TOKEN: ([M], [M, U]),
    "/nothing": ([M], [M, U]),
}
EQUINIX = {
    "/2009-04-04": ([M, U], [M, U]),
    "/2009-04-04/meta-data": ([M], [M]),
    "/2009-04-04/user-data": ([U], [U]),
    "/2009-04-04/nothing": ([M], [M, U]),
    "/latest/user-data": ([U], [U]),
}


def test_a_path_queries_the_halves_that_it_shows(
    store: OtherStore, build: Build, repository: Repository, identity: Identity
) -> None:
    table = [
        *((path, "cloud-init", *halves) for path, halves in QUERIES.items()),
        *((path, "equinix", *halves) for path, halves in EQUINIX.items()),
    ]
    for number, (path, tree, known, neither) in enumerate(table):
        guest = guest_of(build, repository, identity, ec2_tree=tree)
        name = numbered(2 * number)
        guest.identity = replace(identity, instance_id=name)
        absent = dialects.not_found(split_path(path) or [], AnswerSettings(ec2_tree=tree))
        assert guest(path) == replace(absent, known=False), path
        assert store.targets() == [f"/device-{kind}/{name}" for kind in neither], path
        name = numbered(2 * number + 1)
        guest.identity = replace(identity, instance_id=name)
        store.answers[f"/device-metadata/{name}"] = metadata(of=name)
        store.answers[f"/device-userdata/{name}"] = userdata(of=name)
        assert guest(path) == guest(path), path
        assert store.targets() == [f"/device-{kind}/{name}" for kind in known], path


def test_stored_half_is_not_asked(store: OtherStore, guest: Guest, repository: Repository) -> None:
    store.always(BROKEN)
    push(repository, "pushed")
    for path in (path for path, (known, _) in QUERIES.items() if U not in known):
        guest(path)
        assert store.asked == [], path
    repository.delete(INSTANCE)
    records.push(repository, Kind.USERDATA, INSTANCE, content=b"pushed")
    paths = [path for path, (known, _) in QUERIES.items() if M not in known]
    for path in (*paths, "/", "/openstack", "/openstack/latest/password", TOKEN):
        assert guest(path).status == (404 if path == TOKEN else 200), path
        assert store.asked == [], path


def test_a_failure_of_one_half_is_none_of_the_other(
    store: OtherStore, build: Build, repository: Repository, identity: Identity
) -> None:
    paths = {M: "/metadata", U: "/userdata"}
    rows = ((M, U, BROKEN, BackendError), (U, M, NONSENSE, BackendUpstreamError))
    for number, (kind, other, answer, error) in enumerate(rows):
        name = numbered(number)
        store.answers = {
            f"/device-{M}/{name}": metadata(of=name),
            f"/device-{U}/{name}": userdata(of=name),
            f"/device-{kind}/{name}": answer,
        }
        guest = guest_of(build, repository, replace(identity, instance_id=name))
        assert guest(paths[other]).status == 200
        with pytest.raises(error) as caught:
            guest(paths[kind])
        assert type(caught.value) is error
        assert guest(paths[other]).status == 200
        assert store.targets() == [f"/device-{other}/{name}", f"/device-{kind}/{name}"]


def test_broken_metadata_has_its_userdata(store: OtherStore, guest: Guest, build: Build) -> None:
    store.answers = {METADATA: NONSENSE}
    with pytest.raises(BackendUpstreamError):
        guest("/openstack")
    store.answers = {METADATA: NONSENSE, USERDATA: userdata()}
    CLOCK.advance(100)
    for path, status in (("/", 200), ("/openstack", 200), (TOKEN, 404)):
        assert (guest(path).status, guest.mode) == (status, ""), path
    store.answers = {METADATA_OF: NONSENSE, USERDATA_OF: userdata()}
    store.asked.clear()
    puller = build()
    assert puller.find(ADDRESS, dialects.need("/openstack", AnswerSettings())) is not None


def test_halves_of_an_address_are_queried_and_kept_apart(store: OtherStore, build: Build) -> None:
    puller = build()
    for _ in range(2):
        assert puller.find(ADDRESS, METADATA_ALONE) is None
        assert puller.find(ADDRESS, USERDATA_ALONE) is None
    assert store.targets() == [METADATA_OF, USERDATA_OF]
    store.answers = {METADATA_OF: NONSENSE, USERDATA_OF: userdata()}
    with pytest.raises(LookupAnswerError):
        build().find(ADDRESS, METADATA_ALONE)
    assert content(build().find(ADDRESS, USERDATA_ALONE)) == SCRIPT.encode()
    assert store.targets() == [METADATA_OF, USERDATA_OF]


def test_each_half_expires_by_itself_and_the_record_with_the_last(
    store: OtherStore, build: Build, repository: Repository, identity: Identity
) -> None:
    store.answers = {METADATA: metadata(), USERDATA: userdata()}
    guest = guest_of(build, repository, identity, expiry=60)
    for path, target in (("/metadata", METADATA), ("/userdata", USERDATA)):
        assert [guest(half).status for half in ("/metadata", "/userdata")] == [200, 200]
        store.asked.clear()
        CLOCK.advance(61)
        guest(path)
        assert store.targets() == [target]
    store.answers = {}
    CLOCK.advance(61)
    assert guest("/openstack").status == 404
    assert store.targets() == [METADATA, USERDATA]
    assert repository.get(INSTANCE) is None


def test_userdata_with_another_mode_is_given_by_that_mode(
    store: OtherStore, build: Build, repository: Repository, identity: Identity
) -> None:
    store.answers = {METADATA: metadata(), USERDATA: userdata(http_tokens="required")}
    for path in ("/userdata", "/latest", "/latest/user-data"):
        repository.delete(INSTANCE)
        guest = guest_of(build, repository, identity)
        guest("/metadata")
        assert guest.mode == "", path
        guest(path)
        assert guest.mode == "required", path


def test_defaults_wait_until_the_record_is_known_to_be_absent(
    store: OtherStore, build: Build, repository: Repository, identity: Identity
) -> None:
    repository.put(defaults.EVERYWHERE, userdata=b"default")
    store.answers = {METADATA: metadata()}
    guest = guest_of(build, repository, identity, defaults=True)
    assert guest("/userdata").status == 404
    assert store.targets() == [USERDATA, METADATA]
    guest.identity = replace(identity, instance_id=numbered(4))
    assert guest("/userdata").body == b"default"


def test_failures_of_userdata_do_not_rest_metadata(store: OtherStore, build: Build) -> None:
    store.answer = lambda request: (
        BROKEN if U in request.target else metadata(of=request.target.rpartition("/")[2])
    )
    puller = build()
    for number in range(5):
        with pytest.raises(LookupAwayError):
            puller.get(numbered(number), USERDATA_ALONE)
        assert hostname(puller.get(numbered(number), METADATA_ALONE)) == "a"
    assert sum(U in target for target in store.targets()) == 2, "after two in a row it rests"
