"""A guest should get what its own record contains, in the form of Nova and EC2, or a 404."""

import hashlib
import json
import re
from dataclasses import replace

import pytest

from dfmeta.errors import BackendError
from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.proxy.tokens import TokenMode
from dfmeta.store.db.record import HTTP_TOKENS
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest import ec2
from dfmeta.store.guest.backend import PASSWORD_MAX, StoreBackend
from dfmeta.store.guest.requests import split_path
from tests.core.unit.store.guest.crawling import asker
from tests.core.unit.store.support import KEY, Ask, Sql, http_tokens
from tests.core.unit.support import INSTANCE

DOCUMENT = {
    "hostname": "web1.example.org",
    "name": "Web 1",
    "availability_zone": "nova",
    "ssh_keys": [KEY],
    "meta": {"role": "web"},
    "network": {
        "version": 2,
        "ethernets": {"lan": {"match": {"macaddress": "fa:16:3e:00:00:01"}, "dhcp4": True}},
    },
}
EC2_ID = f"i-{hashlib.sha256(INSTANCE.encode()).hexdigest()[:17]}"
PASSWORD = "/openstack/2013-04-04/password"
OTHER = "00000000-0000-0000-0000-000000000002"
FULL = asker(DOCUMENT, userdata=b"\x1f\x8b\0\xff", project_id="p1")
BARE = asker({})


@pytest.fixture
def full(repository: Repository) -> None:
    repository.put(INSTANCE, document=DOCUMENT, userdata=b"\x1f\x8b\0\xff", project_id="p1")


def json_of(answer: Answer) -> dict[str, object]:
    assert (answer.status, answer.content_type) == (200, "application/json")
    return dict(json.loads(answer.body))


# OpenStack


def test_empty_userdata_exists_and_absent_does_not(ask: Ask, repository: Repository) -> None:
    assert b"user" not in BARE("/latest").body + BARE("/openstack/latest").body
    for path in ("/openstack/latest/user_data", "/2009-04-04/user-data", "/latest/user-data"):
        assert BARE(path).status == 404, path
    repository.put(INSTANCE, userdata=b"")
    assert ask("/latest").body == b"dynamic/\nmeta-data/\nuser-data"
    for path in ("/openstack/latest/user_data", "/latest/user-data"):
        assert (ask(path).status, ask(path).body) == (200, b""), path


# EC2


def test_the_ec2_tree_has_the_keys_of_the_record() -> None:
    assert FULL("/").body.decode().split("\n") == [*ec2.VERSIONS]
    assert "openstack" not in ec2.VERSIONS
    assert FULL("/2009-04-04").body == b"dynamic/\nmeta-data/\nuser-data"
    assert FULL("/latest/meta-data/public-keys/").body == b"0=me@host"
    assert FULL("/latest/meta-data/public-keys/0/").body == b"openssh-key"
    assert b"public-keys" not in BARE("/latest/meta-data").body
    many = asker({"ssh_keys": [f"{KEY}{number}" for number in range(12)]})(
        "/latest/meta-data/public-keys"
    ).body.decode()
    assert [line.partition("=")[0] for line in many.split("\n")] == [*map(str, range(12))]


def test_ec2s_instance_id_has_the_form_of_ec2_unless_the_document_has_an_id() -> None:
    for document, other, expected in (
        ({}, INSTANCE, EC2_ID),
        ({"ec2_instance_id": "i-00000007"}, INSTANCE, "i-00000007"),
        ({"id": "i-1", "ec2_instance_id": "i-2"}, "i-1", "i-1"),
    ):
        ask = asker(document)
        assert ask("/1.0/meta-data/instance-id").body.decode() == expected
        identity = json.loads(ask("/latest/dynamic/instance-identity/document").body)
        assert identity["instanceId"] == expected
        assert json_of(ask("/openstack/latest/meta_data.json"))["uuid"] == other
    assert re.fullmatch("i-[0-9a-f]{17}", EC2_ID)


def test_a_path_that_is_not_listed_is_404() -> None:
    for path in (
        *("/openstack/2018-08-28/meta_data.json", "/openstack/2012-08-10/password", "/Openstack"),
        *("/openstack/2016-06-30/vendor_data2.json", "/openstack/latest/meta_data.json/x"),
        *("/2021-03-24/meta-data/instance-id", "/latest/dynamic/instance-identity/signature"),
        *("/latest/api/token", "/latest/meta-data/hostname/x", "/latest/user-data/x"),
        *("/latest/meta-data/public-keys/1", "/latest/meta-data/public-keys/0=me@host"),
        *("/nocloud/network", "/metadata/x", "/userdata/x", "/api/v2/metadata"),
        *("/api/v1", "/api/v1/latest", "/healthz", "/device-metadata"),
    ):
        assert FULL(path).status == 404, path
    assert BARE("/latest/meta-data/public-keys/").status == 404


# Callers, methods and paths


def test_missing_record_is_told_from_a_missing_document(repository: Repository, ask: Ask) -> None:
    paths = ["/openstack", "/latest/user-data", "/none"]
    assert [ask(path).known for path in paths] == [False] * 3
    repository.put(INSTANCE, document=DOCUMENT)
    assert [(answer.status, answer.known) for answer in map(ask, paths)] == [
        (200, True),
        (404, True),
        (404, True),
    ]
    repository.delete(INSTANCE)
    assert [ask(path).known for path in paths] == [False] * 3


def test_ports_instance_alone_decides(repository: Repository, identity: Identity, ask: Ask) -> None:
    paths = ["/", "/openstack", "/latest", "/latest/meta-data/instance-id", PASSWORD]
    assert {ask(path).status for path in paths} == {404}
    assert ask(PASSWORD, "POST", b"x").status == 404
    repository.put(INSTANCE, document=DOCUMENT)
    headers = {"x-instance-id": INSTANCE, "x-forwarded-for": "10.0.0.1", "host": INSTANCE}
    request = GuestRequest("GET", "/latest/meta-data/instance-id", headers=headers)
    backend = StoreBackend(repository)
    other = replace(identity, instance_id=OTHER)
    assert backend.open(request, other).answer().status == 404
    repository.put(OTHER)
    body = ask("/latest/meta-data/instance-id").body
    assert body == EC2_ID.encode() != backend.open(request, other).answer().body
    upper = replace(identity, instance_id=INSTANCE.upper())
    assert backend.open(request, upper).answer().body == body


def test_methods_are_those_that_a_path_allows() -> None:
    for path in ("/", "/openstack/latest/meta_data.json", PASSWORD, "/nothing"):
        assert FULL(path, "HEAD") == FULL(path), path
    for path in ("/", "/latest/user-data", "/openstack/2012-08-10/password"):
        for method in ("POST", "PUT", "get", ""):
            answer = FULL(path, method)
            assert (answer.status, answer.headers) == (405, (("Allow", "GET, HEAD"),)), method
    answer = FULL(PASSWORD, "PUT")
    assert (answer.status, answer.headers) == (405, (("Allow", "GET, HEAD, POST"),))


@pytest.mark.usefixtures("full")
def test_a_password_is_set_once_within_the_limit_of_nova(ask: Ask) -> None:
    assert (ask(PASSWORD).status, ask(PASSWORD).body) == (200, b"")
    assert ask(PASSWORD, "POST", b"x" * (PASSWORD_MAX + 1)).status == 400
    assert ask(PASSWORD, "POST", b"").status == 200
    password = b"\0secret\xff".ljust(PASSWORD_MAX)
    posted = ask(PASSWORD, "POST", password)
    assert (posted.status, posted.body) == (200, b"")
    assert ask("/openstack/latest/password").body == password
    assert ask(PASSWORD, "POST", b"other").status == 409
    assert ask(PASSWORD, "POST", b"x" * (PASSWORD_MAX + 1)).status == 409
    assert ask(PASSWORD).body == password


def test_a_database_that_fails_is_an_error(
    ask: Ask, sql: Sql, repository: Repository, identity: Identity
) -> None:
    repository.put(INSTANCE, userdata=b"hush")
    sql("DROP TABLE addresses")
    sql("DROP TABLE records")
    with pytest.raises(BackendError, match=r"^store: .*records") as caught:
        ask("/latest/user-data")
    assert "hush" not in str(caught.value)
    with pytest.raises(BackendError, match="records"):
        http_tokens(StoreBackend(repository), identity)


def test_a_broken_document_stops_its_own_guest_alone(
    ask: Ask, sql: Sql, repository: Repository, identity: Identity
) -> None:
    repository.put(INSTANCE)
    repository.put(OTHER)
    sql(f"UPDATE records SET metadata = '[' WHERE id = '{INSTANCE}'")
    with pytest.raises(BackendError, match="not a JSON object"):
        ask("/")
    other = replace(identity, instance_id=OTHER)
    assert StoreBackend(repository).open(GuestRequest("GET", "/"), other).answer().status == 200


def test_a_path_is_decoded_once_and_an_unsafe_one_refused() -> None:
    for path, segments in (
        ("/", []),
        ("//", []),
        ("/a/b/", ["a", "b"]),
        ("//a///b", ["a", "b"]),
        ("/%61%2fb", ["a", "b"]),
        ("/a%2526", ["a%26"]),
        ("/%zz", ["%zz"]),
        ("/%c3%a9", ["é"]),
    ):
        assert split_path(path) == segments, path
    for path in (
        *("", "a", "*", "/a/../b", "/.", "/%2e%2e/a", "/a%2f..", "/\n", "/%00", "/%7f", "/%ff"),
        *("/é", "/\ud800", "/%c2%85"),
    ):
        assert split_path(path) is None, path
    for path in ("/latest/meta-data", "/openstack/latest", "/latest"):
        assert FULL(path) == FULL(f"{path}/"), path


# Claims and tokens


def test_a_claimed_instance_is_shown_only_to_its_own_project(
    repository: Repository, identity: Identity
) -> None:
    backend = StoreBackend(repository)
    for recorded, claims, matches in (("p", "p", True), ("p", "q", False), (None, "p", False)):
        repository.put(INSTANCE, project_id=recorded, http_tokens="off")
        claiming = replace(identity, project_id=claims, unverified=True)
        answer = backend.open(GuestRequest("GET", "/latest/meta-data/"), claiming).answer()
        assert answer.status == (200 if matches else 404), recorded
        assert http_tokens(backend, claiming) == ("off" if matches else None), recorded
        assert http_tokens(backend, replace(claiming, unverified=False)) == "off"


def test_record_has_a_token_mode(sql: Sql, repository: Repository, identity: Identity) -> None:
    assert list(HTTP_TOKENS) == [mode.value for mode in TokenMode]
    backend = StoreBackend(repository)
    assert http_tokens(backend, identity) is None, "there is no record"
    repository.put(INSTANCE, userdata=b"u")
    for stored, mode in (*((mode, mode) for mode in HTTP_TOKENS), (None, "")):
        repository.put(INSTANCE, http_tokens=stored)
        assert http_tokens(backend, identity) == mode
        assert http_tokens(backend, replace(identity, instance_id=INSTANCE.upper())) == mode
    sql("UPDATE records SET http_tokens = 'OFF'")
    with pytest.raises(BackendError, match=f"http_tokens of record {INSTANCE}"):
        http_tokens(backend, identity)
