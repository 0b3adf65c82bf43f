"""A guest should wait for no half of its record but the one that it asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dfmeta.exceptions import BackendError, BackendUpstreamError, LookupAwayError
from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.store.db.record import Kind
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest import defaults, dialects
from dfmeta.store.guest.backend import StoreBackend
from dfmeta.store.guest.dialects import Settings
from dfmeta.store.guest.need import METADATA_ALONE, USERDATA_ALONE
from dfmeta.store.guest.paths import split_path
from dfmeta.store.lookup.upstream import AT_ONCE
from tests.core.unit.store.lookup.support import (
    ADDRESS,
    BROKEN,
    METADATA,
    METADATA_OF,
    ON_SQLITE,
    SCRIPT,
    USERDATA,
    USERDATA_OF,
    Build,
    Clock,
    hostname,
    metadata,
    push,
    userdata,
)
from tests.core.unit.support import INSTANCE
from tests.harness import records
from tests.harness.other_store import NOT_FOUND, Asked, OtherStore, reply
from tests.harness.poll import wait_for

pytestmark = ON_SQLITE

NONSENSE = reply(b"<html>")
TOKEN = "/latest/api/token"
Ask = Callable[..., Answer]


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
    settings = Settings(ec2_tree=str(how.pop("ec2_tree", "cloud-init")))
    host = "host1" if how.pop("defaults", False) else None
    return Guest(StoreBackend(repository, settings, reader=build(**how), host=host), identity)


@pytest.fixture
def guest(build: Build, repository: Repository, identity: Identity) -> Guest:
    return guest_of(build, repository, identity)


M, U = METADATA, USERDATA
ASKED = {
    # path: what is asked where nothing is here; with neither half upstream
    "/": ([M], [M, U]),
    "/openstack": ([M], [M, U]),
    "/openstack/latest": ([M, U], [M, U]),
    "/openstack/2012-08-10": ([U], [U, M]),
    "/openstack/latest/meta_data.json": ([M], [M, U]),
    "/openstack/latest/user_data": ([U], [U]),
    "/openstack/latest/vendor_data.json": ([M], [M, U]),
    "/openstack/latest/vendor_data2.json": ([M], [M, U]),
    "/openstack/latest/network_data.json": ([M], [M]),
    "/openstack/latest/password": ([M], [M, U]),
    "/openstack/1999-01-01/user_data": ([M], [M, U]),
    "/openstack/2012-08-10/network_data.json": ([M], [M, U]),
    "/latest": ([U], [U, M]),
    "/latest/meta-data/": ([M], [M, U]),
    "/latest/meta-data/public-keys/0/openssh-key": ([M], [M, U]),
    "/latest/user-data": ([U], [U]),
    "/latest/dynamic/instance-identity/document": ([M], [M, U]),
    "/2009-04-04/user-data": ([U], [U]),
    "/nocloud/": ([M], [M, U]),
    "/nocloud/meta-data": ([M], [M, U]),
    "/nocloud/user-data": ([U], [U, M]),
    "/nocloud/vendor-data": ([M], [M, U]),
    "/nocloud/network-config": ([M], [M]),
    "/metadata": ([M], [M]),
    "/api/v1/metadata": ([M], [M]),
    "/userdata": ([U], [U]),
    "/api/v1/userdata": ([U], [U]),
    TOKEN: ([M], [M, U]),
    "/nothing": ([M], [M, U]),
    "/../secret": ([M], [M, U]),
}
EQUINIX = {
    "/2009-04-04": ([M, U], [M, U]),
    "/2009-04-04/meta-data": ([M], [M]),
    "/2009-04-04/meta-data/hostname": ([M], [M]),
    "/2009-04-04/user-data": ([U], [U]),
    "/2009-04-04/nothing": ([M], [M, U]),
    "/latest/user-data": ([U], [U]),
}
TABLE = [
    *((path, "cloud-init", *asked) for path, asked in ASKED.items()),
    *((path, "equinix", *asked) for path, asked in EQUINIX.items()),
]


@pytest.mark.parametrize(("path", "tree", "there", "neither"), TABLE)
def test_a_path_has_upstream_asked_for_what_it_shows(
    store: OtherStore,
    build: Build,
    repository: Repository,
    identity: Identity,
    path: str,
    tree: str,
    there: list[str],
    neither: list[str],
) -> None:
    guest = guest_of(build, repository, identity, ec2_tree=tree)
    assert guest(path) == dialects.not_found(split_path(path) or [], Settings(ec2_tree=tree))
    assert store.targets() == neither
    other = replace(identity, instance_id=INSTANCE.replace("1", "2"))
    for kind, body in (("metadata", metadata()), ("userdata", userdata())):
        answer = body.replace(INSTANCE.encode(), other.instance_id.encode())
        store.answers[f"/device-{kind}/{other.instance_id}"] = answer
    store.asked.clear()
    guest.identity = other
    found = [guest(path) for _ in range(2)]
    assert found[0] == found[1]
    targets = [one.replace(other.instance_id, INSTANCE) for one in store.targets()]
    assert targets == there


@pytest.mark.parametrize(
    "path", [path for path, (there, _) in ASKED.items() if USERDATA not in there]
)
def test_a_guest_whose_metadata_is_here_asks_nothing(
    store: OtherStore, guest: Guest, repository: Repository, path: str
) -> None:
    push(repository, "pushed")
    store.answer = lambda _asked: BROKEN
    for _ in range(10):
        guest(path)
    assert store.asked == []


@pytest.mark.parametrize(
    "path",
    [path for path, (there, _) in ASKED.items() if METADATA not in there]
    + ["/", "/openstack", "/openstack/latest/password", TOKEN],
)
def test_a_guest_whose_userdata_is_here_asks_nothing(
    store: OtherStore, guest: Guest, repository: Repository, path: str
) -> None:
    records.push(repository, Kind.USERDATA, INSTANCE, content=b"pushed")
    store.answer = lambda _asked: BROKEN
    assert guest(path).status == (404 if path == TOKEN else 200)
    assert store.asked == []


FAULTS = {"slow": (BROKEN, BackendError), "nonsense": (NONSENSE, BackendUpstreamError)}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", Kind)
def test_what_is_wrong_with_one_half_is_no_failure_of_the_other(
    store: OtherStore, guest: Guest, kind: Kind, fault: str
) -> None:
    said, error = FAULTS[fault]
    halves = {
        Kind.METADATA: (METADATA, metadata(), "/metadata"),
        Kind.USERDATA: (USERDATA, userdata(), "/userdata"),
    }
    target, _, broken = halves[kind]
    other, answer, path = halves[kind.other]
    store.answers = {target: said, other: answer}
    assert guest(path).status == 200
    with pytest.raises(error) as caught:
        guest(broken)
    assert type(caught.value) is error
    assert guest(path).status == 200
    assert store.targets() == [other, target]


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/openstack", 200), (TOKEN, 404)])
def test_nonsense_in_the_metadata_leaves_it_to_the_userdata_whether_there_is_a_record(
    store: OtherStore, guest: Guest, path: str, status: int
) -> None:
    store.answers = {METADATA: NONSENSE, USERDATA: userdata()}
    assert (guest(path).status, guest.mode) == (status, "")
    assert store.targets() == [METADATA, USERDATA]


def test_nonsense_in_the_metadata_of_an_instance_without_userdata_is_nonsense(
    store: OtherStore, guest: Guest
) -> None:
    store.answers = {METADATA: NONSENSE}
    with pytest.raises(BackendUpstreamError):
        guest("/openstack")
    assert store.targets() == [METADATA, USERDATA]


def test_a_record_with_broken_metadata_is_one_all_the_same(
    store: OtherStore, guest: Guest, build: Build
) -> None:
    store.answers = {METADATA: NONSENSE, METADATA_OF: NONSENSE, USERDATA_OF: userdata()}
    puller = build()
    record = puller.find(ADDRESS, dialects.need("/openstack", Settings()))
    assert record is not None
    assert guest("/openstack").status == 200
    # By the address, each half once; that there is a record then takes no metadata.
    assert store.targets() == [METADATA_OF, USERDATA_OF]


def test_the_userdata_of_an_address_is_asked_for_by_it(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA_OF: BROKEN, USERDATA_OF: userdata()}
    record = build().find(ADDRESS, USERDATA_ALONE)
    assert record is not None
    assert record.userdata == SCRIPT.encode()
    assert store.targets() == [USERDATA_OF]


def test_each_half_of_an_address_is_remembered_as_not_there_by_itself(
    store: OtherStore, build: Build
) -> None:
    puller = build()
    for _ in range(2):
        assert puller.find(ADDRESS, METADATA_ALONE) is None
        assert puller.find(ADDRESS, USERDATA_ALONE) is None
    assert store.targets() == [METADATA_OF, USERDATA_OF]


@pytest.mark.parametrize(("path", "target"), [("/metadata", METADATA), ("/userdata", USERDATA)])
def test_each_half_that_has_expired_is_asked_for_by_itself(
    store: OtherStore,
    build: Build,
    repository: Repository,
    identity: Identity,
    clock: Clock,
    path: str,
    target: str,
) -> None:
    store.answers = {METADATA: metadata(), USERDATA: userdata()}
    guest = guest_of(build, repository, identity, expiry=60)
    assert [guest(one).status for one in ("/metadata", "/userdata")] == [200, 200]
    store.asked.clear()
    clock.ahead = 61
    guest(path)
    assert set(store.targets()) == {target}


def test_that_there_is_a_record_expires_with_the_last_half(
    store: OtherStore, build: Build, repository: Repository, identity: Identity, clock: Clock
) -> None:
    store.answers = {METADATA: metadata(), USERDATA: userdata()}
    guest = guest_of(build, repository, identity, expiry=60)
    assert [guest(path).status for path in ("/metadata", "/userdata")] == [200, 200]
    store.asked.clear()
    store.answers = {}
    clock.ahead = 61
    assert guest("/openstack").status == 404
    assert store.targets() == [METADATA, USERDATA]
    assert repository.get(INSTANCE) is None


def test_a_record_says_that_it_requires_tokens_before_its_userdata_is_known(
    store: OtherStore, guest: Guest, repository: Repository
) -> None:
    push(repository, "pushed")
    repository.put(INSTANCE, http_tokens="required")
    store.answer = lambda _asked: BROKEN
    view = guest.backend.open(GuestRequest("GET", "/userdata"), guest.identity)
    assert view.http_tokens == "required"
    assert store.asked == []
    store.answer = lambda _asked: userdata()
    # A guest with a token gets it.
    assert guest("/userdata").body == SCRIPT.encode()


@pytest.mark.parametrize("path", ["/userdata", "/latest", "/latest/user-data"])
def test_userdata_that_comes_with_another_mode_is_given_by_that(
    store: OtherStore, guest: Guest, path: str
) -> None:
    store.answers = {METADATA: metadata(), USERDATA: userdata(http_tokens="required")}
    guest("/metadata")
    assert guest.mode == ""
    guest(path)
    assert guest.mode == "required"


def test_defaults_are_not_given_before_it_is_known_that_there_is_no_record(
    store: OtherStore, build: Build, repository: Repository, identity: Identity
) -> None:
    repository.put(defaults.EVERYWHERE, userdata=b"default")
    store.answers = {METADATA: metadata()}
    guest = guest_of(build, repository, identity, defaults=True)
    assert guest("/userdata").status == 404
    assert store.targets() == [USERDATA, METADATA]
    guest.identity = replace(identity, instance_id=INSTANCE.replace("1", "4"))
    assert guest("/userdata").body == b"default"


def test_a_password_is_set_while_the_userdata_cannot_be_had(
    store: OtherStore, guest: Guest, repository: Repository
) -> None:
    push(repository, "pushed")
    store.answer = lambda _asked: BROKEN
    assert guest("/openstack/latest/password", "POST", b"secret").status == 200
    assert guest("/openstack/latest/password").body == b"secret"
    assert store.asked == []


class Stuck:
    """An upstream that answers no question for user-data until it is released."""

    def __init__(self, store: OtherStore) -> None:
        self.released = threading.Event()
        self._store = store
        store.answer = self._answer

    def _answer(self, asked: Asked) -> bytes:
        if asked.target.startswith("/device-userdata/"):
            self.released.wait(60)
            return NOT_FOUND
        return metadata(of=asked.target.rpartition("/")[2])

    def waiting(self) -> int:
        return sum(one.startswith("/device-userdata/") for one in self._store.targets())


@pytest.fixture
def stuck(store: OtherStore) -> Iterator[Stuck]:
    one = Stuck(store)
    yield one
    one.released.set()


def numbered(number: int) -> str:
    return f"6f1c2b5e-3a44-4a55-9d0e-{number:012x}"


def test_metadata_is_read_while_userdata_is_waited_for(
    stuck: Stuck, store: OtherStore, guest: Guest, build: Build, repository: Repository
) -> None:
    guest = guest_of(build, repository, guest.identity, timeout=60)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(guest, "/userdata")
        wait_for(lambda: stuck.waiting() == 1, "the question for user-data")
        for _ in range(10):
            assert guest("/latest/meta-data/hostname").body == b"a"
        assert not slow.done()
        stuck.released.set()
        assert slow.result().status == 404
    assert store.targets() == [USERDATA, METADATA]


def test_questions_for_userdata_take_no_turns_from_those_for_metadata(
    stuck: Stuck, build: Build
) -> None:
    puller = build(timeout=60)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [
            pool.submit(puller.get, numbered(number), USERDATA_ALONE) for number in range(AT_ONCE)
        ]
        wait_for(lambda: stuck.waiting() == AT_ONCE, "as many questions as there may be")
        for number in range(AT_ONCE):
            assert hostname(puller.get(numbered(number), METADATA_ALONE)) == "a"
        assert not any(one.done() for one in asked)
        stuck.released.set()


def test_failures_of_one_half_let_the_other_be_asked_for(store: OtherStore, build: Build) -> None:
    store.answer = lambda asked: (
        BROKEN if "userdata" in asked.target else metadata(of=asked.target.rpartition("/")[2])
    )
    puller = build()
    for number in range(5):
        with pytest.raises(LookupAwayError):
            puller.get(numbered(number), USERDATA_ALONE)
        assert hostname(puller.get(numbered(number), METADATA_ALONE)) == "a"
    # Two in a row: user-data rests, and no more of it is asked for.
    assert sum("userdata" in one for one in store.targets()) == 2
