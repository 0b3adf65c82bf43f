"""cloud-init's NoCloud should find a seed at /nocloud/ that says what the record says."""

from __future__ import annotations

from email import message_from_bytes
from typing import Any

import pytest
import yaml

from dfmeta.guest import snippet
from dfmeta.model import Answer
from tests.core.unit.store.guest.crawling import asker
from tests.core.unit.support import INSTANCE

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDtmDuGK3tzmR4o/7QENvMOitBvsO8uN4Z1WblfVWyAg me@host"
NETWORK = {"version": 2, "ethernets": {"eth0": {"dhcp4": True}}}


def yaml_of(answer: Answer) -> Any:
    assert answer.status == 200
    return yaml.safe_load(answer.body)


def test_a_bare_record_is_a_whole_seed() -> None:
    ask = asker({})
    assert ask("/nocloud/").body == b"meta-data\nuser-data\nvendor-data"
    assert yaml_of(ask("/nocloud/meta-data")) == {
        "instance-id": INSTANCE,
        "local-hostname": INSTANCE,
    }
    for name in ("user-data", "vendor-data"):
        assert (ask(f"/nocloud/{name}").status, ask(f"/nocloud/{name}").body) == (200, b"")
    assert ask("/nocloud/network-config").status == 404


def test_the_seed_says_what_the_record_says() -> None:
    document = {
        "hostname": "web1.example.org",
        "ssh_keys": [KEY],
        "availability_zone": "az1",
        "metro": "da",
        "launch_index": 2,
        "meta": {"role": "wéb 😀\n", "deep": [1, None, True]},
        "vendor_data": "#cloud-config\n{}\n",
        "network_config": NETWORK,
    }
    ask = asker(document, userdata=b"\x1f\x8b\0\xff")
    assert yaml_of(ask("/nocloud/meta-data")) == {
        "instance-id": INSTANCE,
        "local-hostname": "web1.example.org",
        "launch-index": 2,
        "public-keys": [KEY],
        "availability-zone": "az1",
        "region": "da",
        "meta": {"role": "wéb 😀\n", "deep": [1, None, True]},
    }
    assert ask("/nocloud/user-data").body == b"\x1f\x8b\0\xff"
    assert ask("/nocloud/vendor-data").body == b"#cloud-config\n{}\n"
    assert yaml_of(ask("/nocloud/network-config")) == NETWORK
    assert ask("/nocloud").body.endswith(b"\nnetwork-config")


def test_yaml_is_passed_on_as_it_is() -> None:
    text = "version: 2 # mine\nethernets: {}\n"
    ask = asker({"network_config": text})
    assert ask("/nocloud/network-config").body == text.encode()


def test_vendor_data_of_openstack_s_form_gives_cloud_init_s_part() -> None:
    ask = asker({"vendor_data": {"cloud-init": "#!/bin/sh\n", "a": {}}})
    assert ask("/nocloud/vendor-data").body == b"#!/bin/sh\n"
    for nothing in (5, {}, [], [5, ""]):
        ask = asker({"vendor_data": {"cloud-init": nothing}})
        assert ask("/nocloud/vendor-data").body == b""


def test_a_list_under_cloud_init_becomes_one_text() -> None:
    ask = asker({"vendor_data": {"cloud-init": ["#!/bin/sh\n"]}})
    assert ask("/nocloud/vendor-data").body == b"#!/bin/sh\n"
    texts = ["#!/bin/sh\n", "#cloud-config\n{}\n"]
    document = {"vendor_data": {"cloud-init": texts}, "tag_devices": True}
    ask = asker(document)
    message = message_from_bytes(ask("/nocloud/vendor-data").body)
    parts = [part.get_payload(decode=True) for part in message.walk() if not part.is_multipart()]
    assert parts == [one.encode() for one in (*texts, snippet.vendor_data())]


@pytest.mark.parametrize("text", ["\x7f", "\x85", "\ufeff", "😀", "\u2028", "a: b", "- x", "null"])
def test_yaml_brings_every_text_back(text: str) -> None:
    ask = asker({"meta": {text: text}})
    assert yaml_of(ask("/nocloud/meta-data"))["meta"] == {text: text}


@pytest.mark.parametrize("path", ["/nocloud/meta-data/x", "/nocloud/metadata", "/nocloudmeta-data"])
def test_what_the_seed_does_not_list_is_not_there(path: str) -> None:
    assert asker({})(path).status == 404
