"""Whatever a document holds, each dialect should answer all that it lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.model import Answer
from dfmeta.store.db.repository import Kind
from dfmeta.store.guest.dialects import EC2_TREES, Settings, need
from tests.core.unit.store.guest.crawling import asker as asker_of
from tests.core.unit.store.guest.crawling import crawl
from tests.core.unit.support import INSTANCE
from tests.harness.examples import examples

Ask = Callable[..., Answer]
NEVER_LISTED = (
    *("/openstack/latest/user_data", "/latest/user-data", "/nocloud/network-config", "/nothing"),
    *("/openstack/latest/network_data.json", "/2009-04-04/user-data", "/2009-04-04/nothing"),
    *("/openstack/1999-01-01", "/latest/meta-data/nothing", "/nocloud/nothing", "/../x"),
)
"""Paths that some documents have, or none."""
TEMPLATES = {"api_url": "{{.hostname}}/{{.operating_system.slug}}"}
NIC = {
    "type": "nic",
    "bus": "pci",
    "address": "0000:00:03.0",
    "mac": "fa:16:3e:00:00:01",
    "vlan": 7,
    "vf_trusted": False,
    "tags": ["lan"],
}
NAMES = (
    *("id", "hostname", "name", "availability_zone", "facility", "region", "metro", "plan"),
    *("class", "launch_index", "ssh_keys", "public_keys", "meta", "instance_tags", "devices"),
    *("vendor_data", "vendor_data2", "network_config", "network_data", "network", "iqn"),
    *("operating_system", "spot", "tags", "api_url", "links", "addresses", "address", "public"),
    *("key", "label", "slug", "termination_time", "state", "license_activation", "cloud-init"),
)
TEXTS = st.text(max_size=20) | st.sampled_from(
    [
        *("web1", "a/b", "0=x", "..", "10.0.0.1", "2001:db8::1", "ssh-rsa AAAA a/b", "\n", " "),
        *("_index", "%2e", "%2f", "\ud800", "\x85", "😀", "meta-data/"),
    ]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES) | TEXTS, inner, max_size=4)
    ),
    max_leaves=12,
)
ADDRESSES = st.fixed_dictionaries(
    {"addresses": st.lists(st.fixed_dictionaries({"address": LEAVES, "public": LEAVES}))}
)
LIKELY: Mapping[str, st.SearchStrategy[Any]] = {
    "instance_tags": st.dictionaries(TEXTS, LEAVES),
    "meta": st.dictionaries(TEXTS, JSON),
    "ssh_keys": st.lists(TEXTS | st.fixed_dictionaries({"key": TEXTS, "label": LEAVES})),
    "public_keys": st.dictionaries(TEXTS, TEXTS),
    "network": ADDRESSES,
}
DOCUMENTS = st.builds(
    lambda any_, likely: {**any_, **likely},
    st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, JSON)),
    st.fixed_dictionaries({}, optional=LIKELY),
)


asker = partial(asker_of, templates=TEMPLATES)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@settings(deadline=None, max_examples=examples(50))
@given(
    members=st.none() | DOCUMENTS,
    userdata=st.none() | st.binary(max_size=9),
    tree=st.sampled_from(EC2_TREES),
)
def test_a_listed_path_exists_and_depends_on_the_needed_halves_alone(
    members: dict[str, object] | None, userdata: bytes | None, tree: str
) -> None:
    if members is None and userdata is None:
        return
    whole = asker(members, userdata=userdata, ec2_tree=tree)
    if members is not None:
        check(whole, tree)
    listed = [path for path, _ in crawl(whole, ec2_tree=tree)]
    for path in {*listed, "/metadata", "/userdata", "/api/v1/userdata", *NEVER_LISTED}:
        needed = need(path, Settings(ec2_tree=tree))
        shown = members if Kind.METADATA in needed.halves else None
        given = userdata if Kind.USERDATA in needed.halves else None
        known = [(shown, given)]
        if shown is None and given is None:
            # Either half would do, where it matters at all that there is a record.
            known = [(members, None), (None, userdata)] if needed.record else []
            assert needed.record or whole(path).status == 404
        for one, other in known:
            if one is not None or other is not None:
                assert asker(one, userdata=other, ec2_tree=tree)(path) == whole(path), path


def check(ask: Ask, tree: str) -> None:
    """All that is listed is there, once, has a tag, and is what its type says."""
    found = [*crawl(ask, ec2_tree=tree), ("/metadata", ask("/metadata"))]
    assert {path: one.status for path, one in found if one.status != 200} == {}
    assert len({path for path, _one in found}) == len(found)
    for path, one in found:
        assert ask(path, if_none_match=dict(one.headers)["ETag"]).status == 304
        if one.content_type == "application/json" and path != "/metadata":
            json.loads(one.body, parse_constant=refuse_constant)
    keys = ask("/latest/meta-data/public-keys")
    if keys.status == 200:
        names = [line.partition("=")[2] for line in keys.body.decode().split("\n")]
        shown = json.loads(ask("/openstack/latest/meta_data.json").body)["public_keys"]
        assert names == [*shown], "the names of keys are the same in each dialect"
    assert isinstance(yaml.safe_load(ask("/nocloud/meta-data").body), dict)
    assert isinstance(json.loads(ask("/metadata").body), dict)


# EC2: what the tree has of the document


WHOLE = {
    "hostname": "web1",
    "facility": "da11",
    "metro": "da",
    "plan": "c3",
    "launch_index": 3,
    "instance_tags": {"role": "web", "a/b": "x", "empty": ""},
    "network": {
        "addresses": [
            {"address": "10.0.0.1"},
            {"address": "10.0.0.2"},
            {"address": "192.0.2.1", "public": True},
            {"address": "2001:db8::1", "public": True},
        ]
    },
}


def test_ec2_has_the_members_of_the_document() -> None:
    for item, body in [
        ("ami-launch-index", "3"),
        ("instance-type", "c3"),
        ("local-ipv4", "10.0.0.1"),
        ("public-ipv4", "192.0.2.1"),
        ("ipv6", "2001:db8::1"),
        ("placement/", "availability-zone\nregion"),
        ("placement/region", "da"),
        ("tags/", "instance/"),
        ("tags/instance", "role\nempty"),
        ("tags/instance/role", "web"),
    ]:
        found = asker(WHOLE)(f"/2021-03-23/meta-data/{item}")
        assert (found.status, found.body.decode()) == (200, body), item
    for version in ("2016-09-02", "2018-09-24"):
        assert b"tags" not in asker(WHOLE)(f"/{version}/meta-data/").body, version
        assert asker(WHOLE)(f"/{version}/meta-data/tags/instance/role").status == 404, version
    assert (
        asker({"tags": ["worker"], "meta": {"role": "web"}})("/latest/meta-data/tags").status == 404
    )


def test_the_identity_document_identifies_the_guest() -> None:
    ask = asker(WHOLE)
    assert ask("/latest/dynamic/").body == b"instance-identity/"
    assert ask("/latest/dynamic/instance-identity/").body == b"document"
    assert json.loads(ask("/latest/dynamic/instance-identity/document").body) == {
        "instanceId": INSTANCE,
        "instanceType": "c3",
        "availabilityZone": "da11",
        "region": "da",
        "privateIp": "10.0.0.1",
        "pendingTime": "2026-01-02T03:04:05Z",
        "version": "2017-09-30",
    }


# OpenStack: what comes of the members that Nova has as well


def test_openstack_has_networks_devices_and_vendor_data() -> None:
    link = {"id": "tap1", "type": "phy", "ethernet_mac_address": "fa:16:3e:00:00:01"}
    ask = asker(
        {
            "network_data": {"links": [link, "odd"], "networks": 5, "more": 1},
            "devices": [NIC],
            "vendor_data": "#cloud-config\n",
            "vendor_data2": {"static": {"cloud-init": "x"}},
            "launch_index": 4,
        }
    )
    latest = {path: one for path, one in crawl(ask) if path.startswith("/openstack/latest/")}
    found = {path.rpartition("/")[2]: one.body for path, one in latest.items()}
    assert json.loads(found["network_data.json"]) == {
        "links": [link],
        "networks": [],
        "services": [],
    }
    metadata = json.loads(found["meta_data.json"])
    assert metadata["devices"] == [NIC]
    assert metadata["launch_index"] == 4
    assert json.loads(found["vendor_data.json"]) == {"cloud-init": "#cloud-config\n"}
    assert json.loads(found["vendor_data2.json"]) == {"static": {"cloud-init": "x"}}


def test_a_version_of_openstack_has_what_nova_has_of_devices_in_it() -> None:
    ask = asker({"devices": [NIC]})

    def told(version: str) -> Any:
        return json.loads(ask(f"/openstack/{version}/meta_data.json").body).get("devices")

    bare = {name: one for name, one in NIC.items() if name not in ("vlan", "vf_trusted")}
    assert told("2015-10-15") is None
    assert told("2016-06-30") == told("2016-10-06") == [bare]
    assert told("2017-02-22") == [{**bare, "vlan": 7}]
    assert told("2018-08-27") == told("latest") == [NIC]
    broken = asker({"name": "web", "devices": [NIC, {**NIC, "bus": "usb"}]})
    found = json.loads(broken("/openstack/latest/meta_data.json").body)
    assert (found["name"], "devices" in found) == ("web", False)
