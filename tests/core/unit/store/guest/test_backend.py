"""A guest should get what its own record says, in Nova's and EC2's form, or a clear 404."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfmeta.exceptions import BackendError
from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.proxy.tokens import TokenMode
from dfmeta.store.db.repository import Repository
from dfmeta.store.db.schema import HTTP_TOKENS
from dfmeta.store.guest import ec2, openstack
from dfmeta.store.guest.backend import PASSWORD_MAX, StoreBackend
from dfmeta.store.guest.paths import split_path
from tests.core.unit.store.conftest import said
from tests.core.unit.store.guest.crawling import asker, crawl_ec2
from tests.core.unit.support import INSTANCE
from tests.harness.examples import examples

Ask = Callable[..., Answer]
Sql = Callable[[str], None]

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDtmDuGK3tzmR4o/7QENvMOitBvsO8uN4Z1WblfVWyAg me@host"
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
ALL_FILES = "meta_data.json user_data password vendor_data.json network_data.json vendor_data2.json"
PASSWORD_PATH = "/openstack/2013-04-04/password"
REUSED_DATABASE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples(20),
)
PATHS = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from(
            [
                *("openstack", "latest", "2018-08-27", "meta-data", "public-keys", "0"),
                *("password", "meta_data.json", "", ".", "..", "%2e%2e", "%2f", "%00"),
                *("%ff", "%25", "%zz"),
            ]
        )
    ).map(lambda parts: "/" + "/".join(parts)),
)


FULL = asker(DOCUMENT, userdata=b"\x1f\x8b\0\xff", project_id="p1")
BARE = asker({})


@pytest.fixture
def full(repository: Repository, instance_id: str) -> None:
    repository.put(instance_id, document=DOCUMENT, userdata=b"\x1f\x8b\0\xff", project_id="p1")


def json_of(answer: Answer) -> dict[str, object]:
    assert (answer.status, answer.content_type) == (200, "application/json")
    parsed = json.loads(answer.body)
    assert isinstance(parsed, dict)
    return parsed


# OpenStack


def test_openstack_lists_nova_s_versions() -> None:
    assert FULL("/openstack").body.decode().split("\n") == [*openstack.VERSIONS, "latest"]


@pytest.mark.parametrize(
    ("version", "files"),
    [
        ("2012-08-10", "meta_data.json user_data"),
        ("2013-04-04", "meta_data.json user_data password"),
        ("2013-10-17", "meta_data.json user_data password vendor_data.json"),
        (
            "2015-10-15",
            "meta_data.json user_data password vendor_data.json network_data.json",
        ),
        ("latest", ALL_FILES),
    ],
)
def test_each_version_lists_what_nova_s_does(version: str, files: str) -> None:
    assert FULL(f"/openstack/{version}").body.decode().split("\n") == files.split()


@pytest.mark.usefixtures("full")
def test_meta_data_json_says_what_the_record_says(ask: Ask) -> None:
    found = json_of(ask("/openstack/latest/meta_data.json"))
    seed = found.pop("random_seed")
    assert isinstance(seed, str)
    assert len(base64.b64decode(seed, validate=True)) == 512
    assert found == {
        "uuid": INSTANCE,
        "name": "Web 1",
        "hostname": "web1.example.org",
        "launch_index": 0,
        "availability_zone": "nova",
        "project_id": "p1",
        "meta": {"role": "web"},
        "public_keys": {"me@host": KEY},
        "keys": [{"name": "me@host", "type": "ssh", "data": KEY}],
    }


def test_members_of_meta_data_json_come_with_nova_s_versions() -> None:
    folsom = json_of(FULL("/openstack/2012-08-10/meta_data.json"))
    havana = json_of(FULL("/openstack/2013-10-17/meta_data.json"))
    liberty = json_of(FULL("/openstack/2015-10-15/meta_data.json"))
    assert set(havana) - set(folsom) == {"random_seed"}
    assert set(liberty) - set(havana) == {"project_id"}
    assert havana["random_seed"] == liberty["random_seed"]


def test_a_bare_record_leaves_out_what_is_not_known() -> None:
    found = json_of(BARE("/openstack/latest/meta_data.json"))
    assert set(found) == {"uuid", "name", "hostname", "launch_index", "random_seed"}


def test_the_other_files_are_as_nova_s_without_vendor_data() -> None:
    assert json_of(FULL("/openstack/latest/vendor_data.json")) == {}
    assert json_of(FULL("/openstack/latest/vendor_data2.json")) == {}
    network = json_of(FULL("/openstack/latest/network_data.json"))
    assert set(network) == {"links", "networks", "services"}


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("path", ["/openstack/latest/user_data", "/latest/user-data"])
def test_userdata_is_bytes_and_stays_so(ask: Ask, path: str) -> None:
    answer = ask(path)
    assert (answer.status, answer.body) == (200, b"\x1f\x8b\0\xff")
    assert answer.content_type == "application/octet-stream"


def test_userdata_that_is_not_there_is_neither_listed_nor_found() -> None:
    assert b"user" not in BARE("/latest").body + BARE("/openstack/latest").body
    assert BARE("/openstack/latest/user_data").status == 404
    assert BARE("/2009-04-04/user-data").status == 404


def test_empty_userdata_is_there(ask: Ask, repository: Repository, instance_id: str) -> None:
    repository.put(instance_id, userdata=b"")
    assert ask("/latest").body == b"meta-data/\nuser-data\ndynamic/"
    assert (ask("/latest/user-data").status, ask("/latest/user-data").body) == (200, b"")
    assert ask("/openstack/latest/user_data").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/openstack/2099-01-01",
        "/openstack/2018-08-28/meta_data.json",
        "/openstack/2012-08-10/password",
        "/openstack/2016-06-30/vendor_data2.json",
        "/openstack/latest/meta_data",
        "/openstack/latest/meta_data.json/x",
        "/openstack/content",
        "/Openstack",
    ],
)
def test_what_openstack_does_not_list_is_not_there(path: str) -> None:
    assert FULL(path).status == 404


# EC2


def test_the_ec2_tree_says_what_the_record_says() -> None:
    assert FULL("/").body.decode().split("\n") == [*ec2.VERSIONS]
    assert FULL("/2009-04-04").body == b"meta-data/\nuser-data\ndynamic/"
    found = {path: answer.body.decode() for path, answer in crawl_ec2(FULL, "/latest/meta-data/")}
    assert found == {
        "/latest/meta-data/": "ami-launch-index\nhostname\ninstance-action\ninstance-id\n"
        "local-hostname\nplacement/\npublic-keys/",
        "/latest/meta-data/ami-launch-index": "0",
        "/latest/meta-data/hostname": "web1.example.org",
        "/latest/meta-data/instance-action": "none",
        "/latest/meta-data/instance-id": INSTANCE,
        "/latest/meta-data/local-hostname": "web1.example.org",
        "/latest/meta-data/placement/": "availability-zone",
        "/latest/meta-data/placement/availability-zone": "nova",
        "/latest/meta-data/public-keys/": "0=me@host",
        "/latest/meta-data/public-keys/0/openssh-key": KEY,
    }
    assert FULL("/latest/meta-data/public-keys/0/").body == b"openssh-key"


def test_a_bare_record_lists_no_keys_and_no_zone() -> None:
    listing = BARE("/latest/meta-data").body
    assert b"public-keys" not in listing
    assert b"placement" not in listing
    assert BARE("/latest/meta-data/public-keys/").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/2021-03-24/meta-data/instance-id",
        "/1.0",
        "/latest/dynamic/instance-identity/signature",
        "/latest/api/token",
        "/latest/meta-data/hostname/x",
        "/latest/meta-data/hostnamex",
        "/latest/meta-data/public-keys/1",
        "/latest/meta-data/public-keys/0=me@host",
        "/latest/user-data/x",
        "/latest/meta-data/tags/",
        "/metadata/x",
        "/nocloud/network-config",
        "/api/v1",
        "/healthz",
        "/device-metadata",
        "/metrics",
    ],
)
def test_what_ec2_does_not_list_is_not_there(path: str) -> None:
    assert FULL(path).status == 404


def test_more_than_ten_keys_keep_their_order() -> None:
    listing = asker({"ssh_keys": [KEY] * 12})("/latest/meta-data/public-keys")
    lines = listing.body.decode().split("\n")
    assert [line.partition("=")[0] for line in lines] == [str(index) for index in range(12)]


# Callers, methods and paths


def test_without_a_record_nothing_is_there(ask: Ask) -> None:
    paths = ["/", "/openstack", "/latest", "/latest/meta-data/instance-id", PASSWORD_PATH]
    assert {ask(path).status for path in paths} == {404}
    assert ask(PASSWORD_PATH, "POST", b"x").status == 404


@pytest.mark.usefixtures("full")
def test_only_the_port_s_instance_decides(
    repository: Repository, identity: Identity, instance_id: str
) -> None:
    other = "00000000-0000-0000-0000-000000000002"
    headers = {"x-instance-id": instance_id, "x-forwarded-for": "10.0.0.1", "host": instance_id}
    request = GuestRequest("GET", "/latest/meta-data/instance-id", headers=headers)
    backend = StoreBackend(repository)
    assert backend.open(request, replace(identity, instance_id=other)).answer().status == 404
    repository.put(other)
    assert (
        backend.open(request, replace(identity, instance_id=other)).answer().body == other.encode()
    )


@pytest.mark.usefixtures("full")
def test_the_port_s_instance_is_found_in_any_case(
    repository: Repository, identity: Identity, instance_id: str
) -> None:
    upper = replace(identity, instance_id=instance_id.upper())
    request = GuestRequest("GET", "/latest/meta-data/instance-id")
    assert StoreBackend(repository).open(request, upper).answer().body == instance_id.encode()


def test_head_answers_as_get() -> None:
    for path in ("/", "/openstack/latest/meta_data.json", PASSWORD_PATH, "/nothing"):
        assert FULL(path, "HEAD") == FULL(path)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get", ""])
@pytest.mark.parametrize("path", ["/", "/latest/user-data", "/openstack/2012-08-10/password"])
def test_other_methods_are_405_and_say_what_is_allowed(method: str, path: str) -> None:
    answer = FULL(path, method)
    assert (answer.status, answer.headers) == (405, (("Allow", "GET, HEAD"),))


def test_put_on_the_password_is_405() -> None:
    answer = FULL(PASSWORD_PATH, "PUT")
    assert (answer.status, answer.headers) == (405, (("Allow", "GET, HEAD, POST"),))


@pytest.mark.usefixtures("full")
def test_a_password_is_set_once(ask: Ask) -> None:
    assert (ask(PASSWORD_PATH).status, ask(PASSWORD_PATH).body) == (200, b"")
    posted = ask(PASSWORD_PATH, "POST", b"\0secret\xff")
    assert (posted.status, posted.body) == (200, b"")
    assert ask("/openstack/latest/password").body == b"\0secret\xff"
    assert ask(PASSWORD_PATH, "POST", b"other").status == 409
    assert ask(PASSWORD_PATH, "POST", b"x" * (PASSWORD_MAX + 1)).status == 409
    assert ask(PASSWORD_PATH).body == b"\0secret\xff"


@pytest.mark.usefixtures("full")
def test_a_password_has_nova_s_limit(ask: Ask) -> None:
    assert ask(PASSWORD_PATH, "POST", b"x" * (PASSWORD_MAX + 1)).status == 400
    assert ask(PASSWORD_PATH, "POST", b"").status == 200
    assert ask(PASSWORD_PATH, "POST", b"x" * PASSWORD_MAX).status == 200


def test_a_database_that_fails_is_not_a_404(
    ask: Ask, sql: Sql, repository: Repository, instance_id: str
) -> None:
    repository.put(instance_id, userdata=b"hush")
    sql("DROP TABLE addresses")
    sql("DROP TABLE records")
    with pytest.raises(BackendError, match=r"^store: .*records") as caught:
        ask("/latest/user-data")
    assert "hush" not in str(caught.value)


def test_a_broken_document_stops_its_own_guest_alone(
    ask: Ask, sql: Sql, repository: Repository, identity: Identity, instance_id: str
) -> None:
    other = "00000000-0000-0000-0000-000000000002"
    repository.put(instance_id)
    repository.put(other)
    sql(f"UPDATE records SET metadata = '[' WHERE id = '{instance_id}'")
    with pytest.raises(BackendError, match="not a JSON object"):
        ask("/")
    request = GuestRequest("GET", "/")
    answer = StoreBackend(repository).open(request, replace(identity, instance_id=other)).answer()
    assert answer.status == 200


# Paths


@pytest.mark.parametrize(
    ("path", "segments"),
    [
        ("/", []),
        ("//", []),
        ("/a/b/", ["a", "b"]),
        ("//a///b", ["a", "b"]),
        ("/%61%2fb", ["a", "b"]),
        ("/a%2526", ["a%26"]),
        ("/a%20b", ["a b"]),
        ("/%zz", ["%zz"]),
        ("/%c3%a9", ["é"]),
    ],
)
def test_a_path_is_decoded_once(path: str, segments: list[str]) -> None:
    assert split_path(path) == segments


@pytest.mark.parametrize(
    "path",
    [
        *("", "a", "*", "http://x/", "/a/../b", "/..", "/.", "/%2e%2e/a", "/a%2f.."),
        *("/\n", "/%00", "/%0a", "/%7f", "/%ff", "/é", "/\ud800", "/%c2%85"),
    ],
)
def test_a_path_that_is_none_of_ours_is_refused(path: str) -> None:
    assert split_path(path) is None


@pytest.mark.parametrize("path", ["/latest/meta-data", "/openstack/latest", "/latest"])
def test_a_trailing_slash_makes_no_difference(path: str) -> None:
    assert FULL(path) == FULL(f"{path}/")
    assert FULL(path).status == 200


@pytest.mark.usefixtures("full")
@REUSED_DATABASE
@given(path=PATHS, method=st.sampled_from(["GET", "HEAD", "POST", "PUT"]), body=st.binary())
def test_any_request_has_an_answer(ask: Ask, path: str, method: str, body: bytes) -> None:
    assert ask(path, method, body).status in {200, 304, 400, 404, 405, 409}


def test_nothing_of_ec2_s_versions_shadows_openstack() -> None:
    assert "openstack" not in ec2.VERSIONS
    assert FULL("/openstack/2009-04-04/meta-data").status == 404


@pytest.mark.parametrize(
    ("recorded", "claims", "status"), [("p", "p", 200), ("p", "q", 404), (None, "p", 404)]
)
def test_a_claimed_instance_is_shown_only_to_its_own_project(
    tmp_path: Path, recorded: str | None, claims: str, status: int
) -> None:
    with Repository(f"sqlite:///{tmp_path}/claims.db") as repository:
        repository.put("6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10", project_id=recorded)
        identity = Identity(
            "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10", claims, "port", "tap0", 1, unverified=True
        )
        answer = (
            StoreBackend(repository)
            .open(GuestRequest("GET", "/latest/meta-data/"), identity)
            .answer()
        )
    assert answer.status == status


# Tokens


@pytest.mark.parametrize("mode", HTTP_TOKENS)
def test_a_record_says_how_its_guest_asks(
    repository: Repository, identity: Identity, instance_id: str, mode: str
) -> None:
    backend = StoreBackend(repository)
    assert said(backend, identity) is None, "there is no record"
    repository.put(instance_id, userdata=b"u")
    assert said(backend, identity) == ""
    repository.put(instance_id, http_tokens=mode)
    assert said(backend, identity) == mode
    assert said(backend, replace(identity, instance_id=instance_id.upper())) == mode
    repository.put(instance_id, http_tokens=None)
    assert said(backend, identity) == ""
    repository.delete(instance_id)
    assert said(backend, identity) is None


def test_modes_are_the_proxy_s() -> None:
    assert list(HTTP_TOKENS) == [mode.value for mode in TokenMode]


@pytest.mark.parametrize(
    ("recorded", "claims", "mode"), [("p", "p", "off"), ("p", "q", None), (None, "p", None)]
)
def test_a_claim_of_another_project_learns_nothing_of_tokens(
    repository: Repository,
    identity: Identity,
    recorded: str | None,
    claims: str,
    mode: str | None,
) -> None:
    repository.put(identity.instance_id, project_id=recorded, http_tokens="off")
    backend = StoreBackend(repository)
    claiming = replace(identity, project_id=claims, unverified=True)
    assert said(backend, claiming) == mode
    assert said(backend, replace(claiming, unverified=False)) == "off"


def test_a_mode_that_is_none_opens_nothing(
    sql: Sql, repository: Repository, identity: Identity, instance_id: str
) -> None:
    repository.put(instance_id)
    sql("UPDATE records SET http_tokens = 'OFF'")
    with pytest.raises(BackendError, match=f"http_tokens of record {instance_id}"):
        said(StoreBackend(repository), identity)


def test_a_database_that_fails_says_nothing_of_tokens(
    sql: Sql, repository: Repository, identity: Identity, instance_id: str
) -> None:
    repository.put(instance_id)
    sql("DROP TABLE addresses")
    sql("DROP TABLE records")
    with pytest.raises(BackendError, match="records"):
        said(StoreBackend(repository), identity)
