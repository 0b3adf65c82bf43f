"""Guests of Equinix Metal should get its paths, of pushed documents and the templates."""

import json
from functools import partial
from typing import Any

import pytest

from dfmeta.model import Answer
from dfmeta.store.guest.equinix import filled, rendered
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
ITEMS = {
    "instance-id": DOCUMENT["id"],
    "hostname": "metadata-example-01",
    "iqn": DOCUMENT["iqn"],
    "plan": "c3.medium.x86",
    "facility": "da11",
    "tags": "worker\na b",
    "operating-system": "slug\ndistro\nversion\nlicense-activation\nimage-tag",
    "operating-system/slug": "ubuntu_20_04",
    "operating-system/distro": "ubuntu",
    "operating-system/version": "20.04",
    "operating-system/license-activation": "state",
    "operating-system/license-activation/state": "unlicensed",
    "operating-system/image-tag": "31853a2b",
    "public-keys": "\n".join(KEYS),
    "spot": "termination-time",
    "spot/termination-time": "2022-02-25T18:55:11Z",
    "public-ipv4": "40.91.78.229\n40.91.78.231",
    "public-ipv6": "2001:0db8:8583:0000::9",
    "local-ipv4": "10.70.17.9",
}
TEMPLATES = {
    "api_url": "https://metadata.example.org",
    "phone_home_url": "https://{{.facility}}.phone.home/phone-home",
    "user_state_url": "https://{{.operating_system.slug}}/events",
}
NOT_FOUND = (404, b'{"message":"resource not found"}', "application/json")
TREE = "/2009-04-04/meta-data"
equinix = partial(asker, ec2_tree="equinix", templates=TEMPLATES)
KNOWN = equinix(DOCUMENT)


def parts(answer: Answer) -> tuple[int, bytes, str]:
    return answer.status, answer.body, answer.content_type


def lines(answer: Answer) -> list[str]:
    assert answer.status == 200
    return answer.body.decode().split("\n")


@pytest.mark.parametrize("path", ["/metadata/", "/api/v1/metadata"])
def test_metadata_is_the_document_and_the_members_of_the_templates(path: str) -> None:
    answer = KNOWN(path)
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert json.loads(answer.body) == {
        **DOCUMENT,
        "api_url": "https://metadata.example.org",
        "phone_home_url": "https://da11.phone.home/phone-home",
        "user_state_url": "https://ubuntu_20_04/events",
    }
    assert json.loads(equinix({"api_url": "mine"})(path).body) == {"api_url": "mine"}


def test_the_text_of_a_document_stays_as_it_was_written() -> None:
    for text in ('{"a": 1e999, "b": 1.0, "a": 2}', ' {"é" :"\\ud800"}\n', "{ }", "{}"):
        assert asker(text)("/metadata").body == text.strip().encode(), text
        added = equinix(text)("/metadata").body.decode()
        assert added.startswith(text.strip()[:-1]), text
        assert json.loads(added) == {**json.loads(text), "api_url": TEMPLATES["api_url"]}, text


def test_userdata_is_raw() -> None:
    for path in ("/userdata", "/userdata/", "/api/v1/userdata"):
        for userdata in (b"\x1f\x8b\0\xff", b""):
            assert parts(equinix({}, userdata=userdata)(path)) == (200, userdata, "text/plain")


def test_an_absent_half_is_404_in_json() -> None:
    for path in ("/metadata", "/userdata", "/api/v1/metadata", TREE):
        assert parts(equinix(None)(path)) == NOT_FOUND, path
    for path in ("/userdata", "/2009-04-04/user-data"):
        assert parts(KNOWN(path)) == NOT_FOUND, path
    assert lines(KNOWN("/2009-04-04")) == ["meta-data/"]
    guest, ask = equinix(None, userdata=b"x"), asker(None, userdata=b"x")
    assert parts(guest("/metadata")) == parts(guest(TREE)) == NOT_FOUND
    assert lines(guest("/2009-04-04")) == ["user-data"]
    assert guest("/userdata").body == b"x"
    for path in ("/latest/meta-data/instance-id", "/openstack", "/nocloud", "/latest"):
        assert ask(path).status == 200, path
    assert parts(ask("/metadata")) == NOT_FOUND


def test_the_tree_has_the_items_of_the_document_in_their_order() -> None:
    optional = ["spot", "public-ipv4", "public-ipv6", "local-ipv4"]
    assert KNOWN(TREE).content_type.startswith("text/plain")
    for end in ("", "/"):
        assert lines(KNOWN(f"{TREE}{end}")) == ALWAYS + optional
        for path, body in ITEMS.items():
            answer = KNOWN(f"{TREE}/{path}{end}")
            assert (answer.status, answer.body.decode()) == (200, body), path
    for path in (
        *("operating-systemslug", "operating-system/slugx", "instance-id/x", "public-keys/0"),
        *("local-hostname", "spot/x"),
    ):
        assert parts(KNOWN(f"{TREE}/{path}")) == NOT_FOUND, path


def test_an_empty_document_has_every_item_that_is_always_listed() -> None:
    for document in ({}, {"network": {"addresses": []}, "spot": None}):
        guest = equinix(document)
        assert lines(guest(TREE)) == ALWAYS
        for name in ALWAYS:
            body = ITEMS[name].encode() if name == "operating-system" else b""
            assert (guest(f"{TREE}/{name}").status, guest(f"{TREE}/{name}").body) == (200, body)
        assert guest(f"{TREE}/operating-system/license-activation").body == b"state"
        for name in ("spot", "spot/termination-time", "public-ipv4", "public-ipv6", "local-ipv4"):
            assert parts(guest(f"{TREE}/{name}")) == NOT_FOUND, name


def test_the_other_versions_and_the_default_are_of_cloud_init() -> None:
    guest = equinix(DOCUMENT, userdata=b"x")
    for version in ("latest", "2021-03-23"):
        assert lines(guest(f"/{version}/meta-data/public-keys/")) == ["0=a-b-c", "1=key"]
    assert lines(guest("/2009-04-04")) == ["meta-data/", "user-data"]
    assert parts(guest("/2009-04-04/user-data")) == (200, b"x", "text/plain")
    ask = asker(DOCUMENT)
    assert ask(f"{TREE}/public-keys/0/openssh-key").body.decode() == KEYS[0]
    missing = ask(f"{TREE}/iqn")
    assert (missing.status, missing.content_type) == (404, "text/plain; charset=UTF-8")


# Templates


VALUES = {
    "facility": "da11",
    "os": {"slug": "ubuntu_20_04", "version": 20.04, "empty": ""},
    "count": 3,
    "big": 10**20,
    "reserved": False,
    "none": None,
    "list": ["a"],
    "infinite": float("inf"),
    "with-dash": "x",
    "größe": "xl",
}


def test_a_template_is_filled_from_the_document_or_fails() -> None:
    for template, text in (
        ("https://{{.facility}}.phone.home/{{.os.slug}}", "https://da11.phone.home/ubuntu_20_04"),
        ("{{ .facility }}{{\t.count\n}}", "da113"),
        ("{{.reserved}} {{.big}} {{.os.version}}", "false 100000000000000000000 20.04"),
        ("no action } }} {", "no action } }} {"),
        ("{{.größe}}", "xl"),
        ("a{{.os.empty}}b", "ab"),
        ("", ""),
    ):
        assert rendered(template, VALUES) == text, template
    for template in (
        *("{{.nothing}}", "{{.os.nothing}}", "{{.facility.sub}}", "{{.none}}", "{{.os}}"),
        *("{{.list.0}}", "{{.infinite}}", "{{.}}", "{{}}", "{{facility}}", "{{.facility"),
        *("{{.facility}} {{", "{{.with-dash}}", "{{.facility | upper}}", "{{- .facility -}}"),
    ):
        assert rendered(template, VALUES) is None, template


def test_templates_give_missing_members_from_the_document_alone() -> None:
    templates = {"api_url": "https://{{.facility}}", "phone_home_url": "{{.x}}", "none": "y"}
    assert filled(VALUES, templates) == {**VALUES, "api_url": "https://da11"}
    document: dict[str, object] = {}
    assert filled(document, {"a": "x", "b": "{{.a}}"}) == {"a": "x"}
    assert document == {}
