"""The admin API should attach and detach devices with their tags, and lose none of the others."""

import json

import pytest
from webob import Response

from dfmeta.store.db.record import Kind, Push
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.api.support import INSTANCE, OTHER, Client, make_api
from tests.core.unit.store.support import read
from tests.harness import records

NOT_FOUND = {"message": "resource not found"}
ONE = f"/device-metadata/{INSTANCE}/devices"
MAC = "fa:16:3e:11:22:33"
NIC = {"type": "nic", "bus": "pci", "address": "0000:00:03.0", "mac": MAC, "tags": ["mgmt"]}
DISK = {"type": "disk", "bus": "scsi", "address": "0:0:2:1", "serial": "vol-1", "tags": ["db"]}
IDE = {"type": "disk", "bus": "ide", "address": "0:0", "serial": "vol-2", "tags": ["root"]}
XEN = {"type": "disk", "bus": "xen", "address": "51712", "serial": "vol-2", "tags": ["root"]}
BARE_NIC = {"type": "nic", "bus": "none", "mac": MAC}
BARE_DISK = {"type": "disk", "bus": "none", "serial": "vol-3"}
BY_PATH = {"type": "disk", "bus": "none", "path": "/dev/sda"}
GPU = {"type": "gpu", "model": "x", "bus": "pci"}
ETH0 = {**BARE_NIC, "devname": "eth0", "tags": ["wan"]}
ETH1 = {**BARE_NIC, "devname": "eth1", "tags": ["lan"]}
KEYS = "mac|serial|address|path|devname"
"""What an error calls what a query may name devices by."""


@pytest.fixture
def client(repository: Repository) -> Client:
    return Client(make_api(repository))


def push(client: Client, *devices: object, **members: object) -> None:
    document = {"hostname": "web1", **members} | ({"devices": [*devices]} if devices else {})
    assert client.push("metadata", metadata=document, ipAddresses=["192.0.2.7"]).status_int == 200


def attach(client: Client, device: object, path: str = ONE) -> Response:
    return client.ask("POST", path, json.dumps(device).encode())


def detach(client: Client, query: str) -> Response:
    return client.ask("DELETE", f"{ONE}?{query}")


def errors(response: Response) -> list[str]:
    assert (response.status_int, response.json["message"]) == (400, "Invalid request")
    return list(response.json["errors"])


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
def test_a_device_is_attached_read_and_detached(client: Client, prefix: str) -> None:
    push(client, n=1.5)
    path = prefix + ONE
    assert client.get(path).json == []
    for device, listed in ((NIC, [NIC]), (DISK, [NIC, DISK])):
        answer = attach(client, device, path)
        assert (answer.status_int, answer.content_type) == (200, "application/json")
        assert answer.json == listed == client.get(path).json
    whole = client.get(f"/device-metadata/{INSTANCE}").json
    assert whole == {"hostname": "web1", "n": 1.5, "devices": [NIC, DISK]}
    assert client.ask("DELETE", f"{path}?mac={MAC}").json == [DISK]
    assert client.ask("DELETE", f"{path}?serial=vol-1").json == []
    assert client.get(path).json == []
    result = client.get("/device-metadata?ip_address=192.0.2.7").json
    assert result["metadata"] == {"hostname": "web1", "n": 1.5, "devices": []}


def test_a_device_is_replaced_in_its_place_and_another_is_added(client: Client) -> None:
    for stored, new, replaced in (
        (NIC, {**NIC, "mac": "fa:16:3e:00:00:00"}, True),
        (DISK, {**DISK, "serial": "vol-9"}, True),
        (BARE_NIC, {**BARE_NIC, "mac": MAC.upper(), "address": "none"}, True),
        (ETH0, {**ETH0, "tags": ["after"]}, True),
        (BY_PATH, {**BY_PATH, "tags": ["after"]}, True),
        (BARE_DISK, {**BARE_DISK, "address": "none", "note": "x"}, True),
        (IDE, XEN, False),
        (NIC, {**NIC, "address": "0000:00:04.0", "tags": ["data"]}, False),
        (BY_PATH, {**BY_PATH, "path": "/dev/sdb"}, False),
        (GPU, {**GPU, "model": "y"}, False),
        (ETH0, ETH1, False),
        (BARE_DISK, {**BARE_DISK, "path": "/dev/sdb"}, False),
        ({"type": "disk", "bus": "pci", "tags": ["a"]}, {"type": "disk", "bus": "pci"}, False),
    ):
        other = {"type": "disk", "bus": "usb", "address": "0:2.1"}
        push(client, stored, other)
        for _ in range(2):
            expected = [new, other] if replaced else [stored, other, new]
            assert attach(client, new).json == expected, new


def test_a_device_that_breaks_a_rule_with_the_others_changes_nothing(client: Client) -> None:
    for device, place in [
        ({**DISK, "tags": ["a/b"]}, "devices[1].tags[0]"),
        ({**NIC, "address": "0000:00:04.0"}, "devices[1].tags[0]"),
        ({"type": ["nic"], "address": {"a": [1]}, "mac": 1}, "devices[1].type"),
        ({}, "devices[1]"),
    ]:
        push(client, NIC)
        message = errors(attach(client, device))
        assert message == [f"validation failed on metadata.{place}, condition: device"], device
        assert client.get(ONE).json == [NIC], device


def test_a_body_that_is_no_object_is_refused(client: Client) -> None:
    push(client, NIC)
    for body in [b"", b"{", b"[]", b'{"a":1,"a":2}']:
        response = client.ask("POST", ONE, body)
        assert response.status_int == 400, body
        assert response.json == {"message": "invalid request body"}, body


def test_a_query_detaches_each_device_that_it_matches(client: Client) -> None:
    for query, left in [
        (f"mac={MAC.upper()}", [DISK, IDE, XEN, BY_PATH]),
        ("serial=vol-2", [NIC, DISK, BY_PATH, ETH0]),
        ("address=ide:0:0", [NIC, DISK, XEN, BY_PATH, ETH0]),
        ("path=%2Fdev%2Fsda", [NIC, DISK, IDE, XEN, ETH0]),
        ("devname=eth0&type=nic", [NIC, DISK, IDE, XEN, BY_PATH]),
    ]:
        push(client, NIC, DISK, IDE, XEN, BY_PATH, ETH0)
        response = detach(client, query)
        assert (response.status_int, response.json) == (200, left), query
        again = detach(client, query)
        assert (again.status_int, again.json) == (404, NOT_FOUND), query
        assert client.get(ONE).json == left, query


def test_an_address_of_devices_of_two_types_needs_the_type(client: Client) -> None:
    vif = {"type": "nic", "bus": "xen", "address": "0", "mac": MAC}
    vbd = {"type": "disk", "bus": "xen", "address": "0", "path": "/dev/xvda"}
    for kind, kept in (("nic", vbd), ("disk", vif)):
        push(client, vif, vbd)
        refused = errors(detach(client, "address=xen:0"))
        assert refused == ["validation failed on type, condition: required"]
        assert client.get(ONE).json == [vif, vbd]
        assert detach(client, f"address=xen:0&type={kind}").json == [kept], kind
        assert detach(client, "address=xen:0").json == []


def test_a_query_that_names_no_device_is_refused(client: Client) -> None:
    for query, path, condition in [
        ("", KEYS, "oneof"),
        ("serial=", KEYS, "oneof"),
        (f"mac={MAC}&serial=vol-1", KEYS, "oneof"),
        ("serial=vol-1&serial=vol-1", KEYS, "oneof"),
        ("serial=vol-1&force=1", KEYS, "oneof"),
        ("type=nic", KEYS, "oneof"),
        ("serial=vol-1&type=gpu", "type", "oneof"),
        ("serial=vol-1&type=disk&type=disk", "type", "oneof"),
        ("type=nic&mac=no", "mac", "mac"),
        (f"mac={MAC}%0A", "mac", "mac"),
        ("address=0000:00:03.0", "address", "bus:address"),
        ("address=pci:", "address", "bus:address"),
        ("address=scsi:none", "address", "bus:address"),
    ]:
        push(client, NIC, DISK, BARE_DISK)
        message = errors(detach(client, query))
        assert message == [f"validation failed on {path}, condition: {condition}"], query
        assert len(client.get(ONE).json) == 3, query


def test_a_record_without_a_document_has_no_devices(client: Client) -> None:
    client.push("userdata", userdata="x")
    for path in (ONE, f"/device-metadata/{OTHER}/devices", "/device-metadata/x/devices"):
        for response in (
            client.get(path),
            attach(client, NIC, path),
            client.ask("DELETE", f"{path}?mac={MAC}"),
        ):
            assert (response.status_int, response.json) == (404, NOT_FOUND)
    assert client.get(f"/device-metadata/{INSTANCE}").status_int == 404


def test_broken_devices_are_shown_and_not_added_to(client: Client, repository: Repository) -> None:
    for broken, listed in (("x", []), (None, []), ([1, IDE], [1, IDE])):
        content = {"devices": broken}
        records.push(repository, Kind.METADATA, INSTANCE, content=content)
        assert client.get(ONE).json == listed
        assert errors(attach(client, NIC))[0].startswith("validation failed on metadata.devices")
        assert client.get(f"/device-metadata/{INSTANCE}").json == content
    assert detach(client, "serial=vol-2").json == [1]


def test_changed_devices_make_a_document_pushed(client: Client, repository: Repository) -> None:
    def fetch() -> None:
        content = {"hostname": "up", "devices": [DISK]}
        fetched = Push(kind=Kind.METADATA, record_id=INSTANCE, content=content, networks=[])
        repository.store_fetched(fetched, over=repository.get(INSTANCE))

    for change in (lambda: attach(client, DISK), lambda: detach(client, "serial=vol-1")):
        fetch()
        assert attach(client, {}).status_int == 400
        assert detach(client, "serial=none").status_int == 404
        assert read(repository).metadata_fetched_at is not None
        assert change().status_int == 200
        assert read(repository).pushed(Kind.METADATA)
