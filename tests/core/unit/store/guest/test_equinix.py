"""Equinix Metal's guests should get what they are used to, from what other programs push."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest.backend import StoreBackend
from dfmeta.store.guest.dialects import Settings
from tests.core.unit.store.guest.crawling import asker

KEYS = ["ssh-ed25519 AAAA a/b=c", "ssh-rsa BBBB"]
DOCUMENT: dict[str, Any] = {
    "id": "cc40301c-4038-4011-af55-6eae3ba60246",
    "hostname": "metadata-example-01",
    "iqn": "iqn.2022-02.net.packet:device.cc40301c",
    "operating_system": {
        "slug": "ubuntu_20_04",
        "distro": "ubuntu",
        "version": "20.04",
        "license_activation": {"state": "unlicensed"},
        "image_tag": "31853a2b",
    },
    "plan": "c3.medium.x86",
    "facility": "da11",
    "tags": ["worker", 5, "a b"],
    "ssh_keys": KEYS,
    "spot": {"termination_time": "2022-02-25T18:55:11Z"},
    "network": {
        "addresses": [
            {"address_family": 4, "public": True, "address": "40.91.78.229"},
            {"address_family": 6, "public": True, "address": "2001:0db8:8583:0000::9"},
            {"address_family": 4, "public": False, "address": "10.70.17.9"},
            {"address_family": 4, "public": True, "address": "40.91.78.231"},
        ]
    },
}
ALWAYS = [
    *("instance-id", "hostname", "iqn", "plan", "facility", "tags", "operating-system"),
    "public-keys",
]
TEMPLATES = {
    "api_url": "https://metadata.example.org",
    "phone_home_url": "https://{{.facility}}.phone.home/phone-home",
    "user_state_url": "https://{{.operating_system.slug}}/events",
}
NOT_FOUND = (404, b'{"message":"resource not found"}', "application/json")
TREE = "/2009-04-04/meta-data"


SETTINGS: dict[str, Any] = {"ec2_tree": "equinix", "templates": TEMPLATES}
equinix = partial(asker, **SETTINGS)
KNOWN = equinix(DOCUMENT)


def parts(answer: Answer) -> tuple[int, bytes, str]:
    return answer.status, answer.body, answer.content_type


def lines(answer: Answer) -> list[str]:
    assert answer.status == 200
    return answer.body.decode().split("\n")


# /metadata and /userdata


@pytest.mark.parametrize("path", ["/metadata", "/metadata/", "/api/v1/metadata"])
def test_metadata_is_the_document_with_what_the_templates_add(
    repository: Repository, identity: Identity, instance_id: str, path: str
) -> None:
    repository.put(instance_id, document=DOCUMENT)
    backend = StoreBackend(repository, Settings(**SETTINGS))
    answer = backend.open(GuestRequest("GET", path), identity).answer()
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert json.loads(answer.body) == {
        **DOCUMENT,
        "api_url": "https://metadata.example.org",
        "phone_home_url": "https://da11.phone.home/phone-home",
        "user_state_url": "https://ubuntu_20_04/events",
    }


def test_a_member_that_is_there_is_not_made() -> None:
    answer = equinix({"api_url": "mine"})("/metadata")
    assert json.loads(answer.body) == {"api_url": "mine"}


@pytest.mark.parametrize(
    "written", ['{"a": 1e999, "b": 1.0, "a": 2}', ' {"é" :"\\ud800"}\n', "{ }", "{}"]
)
def test_what_was_written_is_not_written_anew(written: str) -> None:
    assert asker(written)("/metadata").body == written.strip().encode()
    added = equinix(written)("/metadata").body.decode()
    assert added.startswith(written.strip()[:-1])
    assert json.loads(added) == {**json.loads(written), "api_url": "https://metadata.example.org"}


@pytest.mark.parametrize("path", ["/userdata", "/userdata/", "/api/v1/userdata"])
@pytest.mark.parametrize("userdata", [b"\x1f\x8b\0\xff", b""], ids=["bytes", "empty"])
def test_userdata_is_raw(path: str, userdata: bytes) -> None:
    assert parts(equinix({}, userdata=userdata)(path)) == (200, userdata, "text/plain")


@pytest.mark.parametrize("path", ["/metadata", "/userdata", "/api/v1/metadata", TREE])
def test_a_guest_without_a_record_is_told_so_in_json(path: str) -> None:
    assert parts(equinix(None)(path)) == NOT_FOUND


def test_a_guest_with_userdata_alone_has_no_metadata() -> None:
    guest, ask = equinix(None, userdata=b"x"), asker(None, userdata=b"x")
    assert parts(guest("/metadata")) == NOT_FOUND
    assert parts(guest(TREE)) == NOT_FOUND
    assert lines(guest("/2009-04-04")) == ["user-data"]
    assert guest("/userdata").body == b"x"
    for path in ("/latest/meta-data/instance-id", "/openstack", "/nocloud", "/latest"):
        assert ask(path).status == 200
    assert parts(ask("/metadata")) == NOT_FOUND


def test_a_guest_without_userdata_has_none() -> None:
    assert parts(KNOWN("/userdata")) == NOT_FOUND
    assert parts(KNOWN("/2009-04-04/user-data")) == NOT_FOUND
    assert lines(KNOWN("/2009-04-04")) == ["meta-data/"]


# The tree


@pytest.mark.parametrize("path", [TREE, f"{TREE}/"])
def test_the_tree_lists_the_items_in_their_order(path: str) -> None:
    optional = ["spot", "public-ipv4", "public-ipv6", "local-ipv4"]
    assert lines(KNOWN(path)) == ALWAYS + optional
    assert KNOWN(path).content_type.startswith("text/plain")


@pytest.mark.parametrize(
    ("item", "body"),
    [
        ("instance-id", "cc40301c-4038-4011-af55-6eae3ba60246"),
        ("hostname", "metadata-example-01"),
        ("iqn", "iqn.2022-02.net.packet:device.cc40301c"),
        ("plan", "c3.medium.x86"),
        ("facility", "da11"),
        ("tags", "worker\na b"),
        ("operating-system", "slug\ndistro\nversion\nlicense-activation\nimage-tag"),
        ("operating-system/slug", "ubuntu_20_04"),
        ("operating-system/distro", "ubuntu"),
        ("operating-system/version", "20.04"),
        ("operating-system/license-activation", "state"),
        ("operating-system/license-activation/state", "unlicensed"),
        ("operating-system/image-tag", "31853a2b"),
        ("public-keys", "\n".join(KEYS)),
        ("spot", "termination-time"),
        ("spot/termination-time", "2022-02-25T18:55:11Z"),
        ("public-ipv4", "40.91.78.229\n40.91.78.231"),
        ("public-ipv6", "2001:0db8:8583:0000::9"),
        ("local-ipv4", "10.70.17.9"),
    ],
)
@pytest.mark.parametrize("end", ["", "/"])
def test_an_item_says_what_the_document_says(item: str, body: str, end: str) -> None:
    found = KNOWN(f"{TREE}/{item}{end}")
    assert (found.status, found.body.decode()) == (200, body)


@pytest.mark.parametrize("document", [{}, {"network": {"addresses": []}, "spot": None}])
def test_an_empty_document_has_every_item_that_is_always_listed(
    document: dict[str, object],
) -> None:
    guest = equinix(document)
    assert lines(guest(TREE)) == ALWAYS
    for item in ALWAYS:
        expected = b"slug\ndistro\nversion\nlicense-activation\nimage-tag"
        body = expected if item == "operating-system" else b""
        assert (guest(f"{TREE}/{item}").status, guest(f"{TREE}/{item}").body) == (200, body)
    assert guest(f"{TREE}/operating-system/license-activation").body == b"state"
    for item in ("spot", "spot/termination-time", "public-ipv4", "public-ipv6", "local-ipv4"):
        assert parts(guest(f"{TREE}/{item}")) == NOT_FOUND


@pytest.mark.parametrize(
    "item",
    [
        *("operating-systemslug", "operating-system/slugx", "spottermination-time", "host"),
        *(
            "instance-id/x",
            "public-keys/0",
            "public-keys/0/openssh-key",
            "local-hostname",
            "spot/x",
        ),
    ],
)
def test_what_only_begins_as_an_item_is_not_there(item: str) -> None:
    assert parts(KNOWN(f"{TREE}/{item}")) == NOT_FOUND


def test_the_other_versions_stay_what_cloud_init_crawls() -> None:
    guest = equinix(DOCUMENT, userdata=b"x")
    for version in ("latest", "2021-03-23"):
        assert lines(guest(f"/{version}/meta-data/public-keys/")) == ["0=a-b-c", "1=key"]
    assert lines(guest("/2009-04-04")) == ["meta-data/", "user-data"]
    assert parts(guest("/2009-04-04/user-data")) == (200, b"x", "text/plain")


def test_by_default_the_tree_is_cloud_init_s() -> None:
    ask = asker(DOCUMENT)
    assert ask(f"{TREE}/public-keys/0/openssh-key").body.decode() == KEYS[0]
    missing = ask(f"{TREE}/iqn")
    assert (missing.status, missing.content_type) == (404, "text/plain; charset=UTF-8")
