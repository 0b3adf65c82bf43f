"""doc/source/store-documents.rst should say of each member where a guest finds it, no more."""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from dfmeta.model import Answer
from dfmeta.store.db.repository import Record
from dfmeta.store.guest import dialects, documents, ec2, equinix, nocloud, openstack, values
from dfmeta.store.guest.dialects import AnswerSettings, answer
from dfmeta.store.guest.requests import split_path
from tests.core.docs import page as reader
from tests.core.unit.store.guest.crawling import crawl_ec2, crawl_equinix, crawl_flat

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "doc/source/store-documents.rst").read_text(encoding="utf-8")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY, MAC = "ssh-ed25519 AAAA me", "fa:16:3e:00:00:01"
SAMPLES: Mapping[str, object] = {
    **dict.fromkeys(
        (
            *("id", "hostname", "name", "availability_zone", "facility", "region", "metro"),
            *("plan", "class", "iqn", "ec2_instance_id"),
        ),
        "sample",
    ),
    "ssh_keys": [{"label": "mine", "key": KEY}],
    "public_keys": {"mine": KEY},
    "keys": [{"name": "mine", "type": "ssh", "data": KEY}],
    "project_id": "p1",
    "launch_index": 7,
    "meta": {"role": "web"},
    "instance_tags": {"role": "web", "a/b": "x", "0=x": "y"},
    "tags": ["worker"],
    "devices": [{"type": "nic", "bus": "none", "mac": MAC, "tags": ["lan"]}],
    "dedicated_cpus": [3],
    "vendor_data": "#cloud-config\n",
    "tag_devices": True,
    "vendor_data2": {"a": 1},
    "network_config": {
        "version": 2,
        "ethernets": {"lan": {"match": {"macaddress": MAC}, "addresses": ["10.0.0.1/24"]}},
    },
    "network_data": {
        "links": [{"id": "a", "type": "phy", "ethernet_mac_address": MAC}],
        "networks": [
            {"link": "a", "type": "ipv4", "ip_address": "10.0.0.1", "netmask": "255.255.255.0"}
        ],
    },
    "network": {
        "interfaces": [{"name": "eth0", "mac": MAC}],
        "addresses": [
            {"address": "10.0.0.1", "cidr": 24, "public": False},
            {"address": "192.0.2.1", "cidr": 24, "public": True, "gateway": "192.0.2.2"},
            {"address": "2001:db8::1", "cidr": 64, "public": True, "gateway": "2001:db8::2"},
        ],
    },
    "operating_system": {
        "slug": "s",
        "distro": "d",
        "version": "v",
        "image_tag": "i",
        "license_activation": {"state": "a"},
    },
    "spot": {"termination_time": "t"},
}
"""Member → what a document might have there."""
_LITERAL = re.compile(r"``([^`]+)``")
_READ = re.compile(r'members\.get\("(\w+)"\)')
DIALECTS = ("NoCloud", "OpenStack", "EC2", "Equinix")

Ask = Callable[[str], Answer]


def rows(page: str) -> dict[str, dict[str, set[str]]]:
    """Member → dialect → where the page says that it is."""
    return {
        member: {
            dialect: set(_LITERAL.findall(cell))
            for dialect, cell in zip(DIALECTS, cells, strict=True)
        }
        for members, _form, *cells in (row for row in reader.rows(page) if len(row) == 6)
        for member in _LITERAL.findall(members)
    }


def asker(members: Mapping[str, object]) -> Ask:
    """Ask as the guest of that document, with Equinix Metal's tree."""
    text = json.dumps(members)
    document = documents.from_record(
        Record(id="record", seed=b"", created_at=NOW, updated_at=NOW, metadata=text)
    )

    def ask(path: str) -> Answer:
        result = answer(document, split_path(path) or [], AnswerSettings(ec2_tree="equinix"))
        return result or Answer(404)

    return ask


def facts(ask: Ask) -> Iterator[tuple[str, str, object]]:
    """Yield dialect, name and value of all that a guest can read."""
    for path, result in crawl_flat(ask, "/nocloud"):
        yield from named("NoCloud", path.removeprefix("/nocloud/"), result)
    for path, result in crawl_flat(ask, "/openstack/latest"):
        yield from named("OpenStack", path.removeprefix("/openstack/latest/"), result)
    for path, result in crawl_ec2(ask, "/latest/"):
        inner = re.sub("^/latest/(meta-data/|dynamic/instance-identity/)?", "", path)
        if not path.endswith("/"):
            yield from named("EC2", inner, result)
    for path, result in crawl_equinix(ask, "/2009-04-04/meta-data"):
        inner = path.removeprefix("/2009-04-04/meta-data").removeprefix("/")
        if inner not in ("", "spot"):
            yield from named("Equinix", inner, result)


def named(dialect: str, name: str, result: Answer) -> Iterator[tuple[str, str, object]]:
    """Yield the members of what is read as a whole, and everything else as it is."""
    content: Any = result.body
    if name in ("meta-data", "meta_data.json", "document"):
        content = yaml.safe_load(result.body)
        yield from ((dialect, f"{name}: {key}", value) for key, value in content.items())
    elif not name.startswith("/"):
        yield dialect, name, content


def differences(member: str) -> dict[str, set[str]]:
    """Dialect → what is not as it is for an empty document."""
    before = {(dialect, name): value for dialect, name, value in facts(asker({}))}
    after = {
        (dialect, name): value for dialect, name, value in facts(asker({member: SAMPLES[member]}))
    }
    assert before.keys() <= after.keys()
    changed = [place for place, value in after.items() if before.get(place) != value]
    return {dialect: {name for kind, name in changed if kind == dialect} for dialect in DIALECTS}


def test_page_has_the_places_of_each_member() -> None:
    listed = rows(PAGE)
    for member in SAMPLES:
        assert listed[member] == differences(member), member


def test_the_page_has_each_member_that_is_read_and_no_other() -> None:
    readers = [documents, dialects, ec2, equinix, nocloud, openstack, values]
    texts = [inspect.getsource(module) for module in readers]
    read = {*documents.MEMBERS, *(name for text in texts for name in _READ.findall(text))}
    assert read == rows(PAGE).keys() == SAMPLES.keys()
