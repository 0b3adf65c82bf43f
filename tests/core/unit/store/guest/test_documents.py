"""A document should say only what is known, under names that no listing trips over."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.exceptions import StoreError
from dfmeta.store.db.repository import Record
from dfmeta.store.guest.documents import (
    RANDOM_SEED_BYTES,
    Document,
    addresses_of,
    devices_of,
    from_record,
    hostname_of,
    meta_of,
    network_config_of,
    network_data_of,
    vendor_data2_of,
    vendor_data_of,
)

INSTANCE = "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def document(members: object = None, *, seed: bytes = b"s" * 32) -> Document:
    text = None if members is None else json.dumps(members)
    return from_record(
        Record(id=INSTANCE, seed=seed, created_at=NOW, updated_at=NOW, metadata=text)
    )


def test_an_empty_record_still_has_a_host_name() -> None:
    found = document()
    assert (found.hostname, found.name) == (INSTANCE, INSTANCE)
    assert (found.zone, found.region, found.project_id, found.keys) == ("", "", "", ())
    assert (meta_of(found), vendor_data_of(found), network_config_of(found)) == ({}, {}, {})
    assert (found.userdata, found.password) == (None, b"")


def test_the_host_name_comes_from_the_name_where_none_is_given() -> None:
    found = document({"name": "My Web_Server #1"})
    assert (found.hostname, found.name) == ("my-web-server-1", "My Web_Server #1")


def test_a_given_host_name_stands() -> None:
    found = document({"name": "web", "hostname": "Web.example.org"})
    assert (found.hostname, found.name) == ("Web.example.org", "web")


MEMBERS = (
    *("id", "hostname", "name", "availability_zone", "facility", "region", "metro", "plan"),
    *("class", "ssh_keys", "public_keys", "meta", "instance_tags", "launch_index", "network"),
    *("devices", "vendor_data2", "network_data"),
)


@pytest.mark.parametrize("wrong", [-1, None, [], {}, True, "a\nb", "\0", " ", [[]], 1.5])
def test_a_member_of_the_wrong_kind_counts_as_not_there(wrong: object) -> None:
    if wrong in ("a\nb", "\0", " "):
        # Vendor data is a text of any lines.
        members = dict.fromkeys(set(MEMBERS) - {"vendor_data2"}, wrong)
    else:
        members = dict.fromkeys(MEMBERS, wrong)
    found = document(members)
    assert replace(found, text=None, members={}) == document()
    assert meta_of(found) == vendor_data2_of(found) == {}
    assert devices_of(found) == []
    assert network_data_of(found) is None


@pytest.mark.parametrize("wrong", [0, None, [], {}, True, "", 1.5])
def test_vendor_data_and_network_of_the_wrong_kind_count_as_not_there(wrong: object) -> None:
    found = document({"vendor_data": wrong, "network_config": wrong})
    assert vendor_data_of(found) == {}
    assert not network_config_of(found)


def test_its_own_id_stands_before_the_record_s() -> None:
    assert document({"id": "device-1"}).instance_id == "device-1"
    assert document({"id": 5}).instance_id == INSTANCE


def test_a_zone_stands_before_a_facility_and_a_region_before_a_metro() -> None:
    where = {"facility": "da11", "metro": "da"}
    assert (document(where).zone, document(where).region) == ("da11", "da")
    found = document({**where, "availability_zone": "az1", "region": "r1"})
    assert (found.zone, found.region) == ("az1", "r1")
    assert document({**where, "availability_zone": ["az1"]}).zone == "da11"


def test_addresses_are_sorted_by_family_and_public() -> None:
    found = document(
        {
            "network": {
                "addresses": [
                    {"address": "192.0.2.1", "public": True},
                    {"address": "10.0.0.1", "public": False, "address_family": 6},
                    {"address": "2001:0db8:0::9", "public": True},
                    {"address": "10.0.0.2"},
                    {"address": "10.0.0.0/8"},
                    {"address": 5},
                    {"address": "10.0.0.3", "public": "true"},
                    "10.0.0.4",
                ]
            }
        }
    )
    assert addresses_of(found, 4, public=True) == ["192.0.2.1"]
    assert addresses_of(found, 4, public=False) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert addresses_of(found, 6, public=True) == ["2001:0db8:0::9"]


@pytest.mark.parametrize("key", ["Role", "a:b", "a+b@c", "x" * 128, "...", "_index2"])
def test_a_tag_that_a_listing_can_hold_is_there(key: str) -> None:
    assert document({"instance_tags": {key: " web "}}).instance_tags == {key: "web"}


@pytest.mark.parametrize(
    "key", ["", ".", "..", "_index", "a/b", "a b", "0=x", "a\n", "x" * 129, "é", "a%2fb"]
)
def test_a_tag_that_no_listing_can_hold_is_left_out(key: str) -> None:
    assert document({"instance_tags": {key: "web", "good": ""}}).instance_tags == {"good": ""}


@pytest.mark.parametrize("value", [1, None, ["web"], "a\nb", "\0"])
def test_a_tag_that_is_no_line_of_text_is_left_out(value: object) -> None:
    assert document({"instance_tags": {"role": value}}).instance_tags == {}


def test_vendor_data_as_a_text_is_cloud_init_s() -> None:
    text = "#cloud-config\n{}\n"
    assert vendor_data_of(document({"vendor_data": text})) == {"cloud-init": text}
    assert vendor_data2_of(document({"vendor_data2": text})) == {"cloud-init": text}
    assert vendor_data_of(document({"vendor_data": {"a": [1]}})) == {"a": [1]}


def test_what_is_handed_on_is_json_that_everybody_can_read() -> None:
    deep: object = "x"
    for _ in range(100):
        deep = [deep]
    text = json.dumps({"meta": {"a": 1, "deep": deep, "big": 0}}).replace(
        '"big": 0', '"big": 1e999'
    )
    found = meta_of(
        from_record(Record(id=INSTANCE, seed=b"", created_at=NOW, updated_at=NOW, metadata=text))
    )
    assert (found["a"], found["big"]) == (1, None)
    assert len(json.dumps(found)) < 100


@pytest.mark.parametrize("text", ["[]", "{", '"x"'])
def test_a_broken_document_is_an_error(text: str) -> None:
    record = Record(id=INSTANCE, seed=b"", created_at=NOW, updated_at=NOW, metadata=text)
    with pytest.raises(StoreError, match=INSTANCE):
        from_record(record)


def test_the_random_seed_is_stable_and_its_record_s_own() -> None:
    assert document().random_seed == document({"name": "x"}).random_seed
    assert document().random_seed != document(seed=b"t" * 32).random_seed
    assert len(document().random_seed) == RANDOM_SEED_BYTES


@given(st.text())
def test_a_host_name_made_of_any_text_is_one(name: str) -> None:
    made = hostname_of(name)
    labels = made.split(".") if made else []
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", label) for label in labels)


def test_secrets_are_in_no_repr() -> None:
    record = Record(
        id=INSTANCE, seed=b"", created_at=NOW, updated_at=NOW, userdata=b"hush", password=b"hush"
    )
    assert "hush" not in repr(from_record(record))
