"""The admin API should attach and detach devices with their tags, and lose none of the others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from webob import Response

from dfmeta.devices.check import DEVICES_MAX
from dfmeta.model import Answer
from dfmeta.store.api.admin import LARGE
from dfmeta.store.auth.scopes import accepted
from dfmeta.store.db.record import FetchedHalf, Kind, parse_document
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.api.support import INSTANCE, OTHER, Client, Tokens, make_api
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
    found = client.get("/device-metadata?ip_address=192.0.2.7").json
    assert found["metadata"] == {"hostname": "web1", "n": 1.5, "devices": []}


def test_the_guest_is_told(client: Client, ask: Callable[..., Answer]) -> None:
    push(client)
    attach(client, DISK)
    assert json.loads(ask("/openstack/latest/meta_data.json").body)["devices"] == [DISK]
    detach(client, "serial=vol-1")
    assert "devices" not in json.loads(ask("/openstack/latest/meta_data.json").body)


def test_head_and_an_etag_are_as_for_every_get(client: Client) -> None:
    push(client, NIC)
    got, head = client.get(ONE), client.ask("HEAD", ONE)
    assert (head.body, {**head.headers}) == (b"", {**got.headers})
    assert client.get(ONE, if_none_match=got.headers["ETag"]).status_int == 304
    attach(client, DISK)
    assert client.get(ONE, if_none_match=got.headers["ETag"]).json == [NIC, DISK]


@pytest.mark.parametrize("device", [NIC, DISK, BARE_NIC, ETH0, BARE_DISK, BY_PATH])
def test_attaching_again_replaces_the_device_in_its_place(
    client: Client, device: dict[str, Any]
) -> None:
    other = {"type": "disk", "bus": "usb", "address": "0:2.1"}
    push(client, {**device, "tags": ["before"]}, other)
    new = {**device, "tags": ["after"]}
    for _ in range(2):
        assert attach(client, new).json == [new, other]


@pytest.mark.parametrize(
    ("there", "new"),
    [
        (NIC, {**NIC, "mac": "fa:16:3e:00:00:00"}),
        (DISK, {**DISK, "serial": "vol-9"}),
        (BARE_NIC, {**BARE_NIC, "mac": MAC.upper(), "address": "none"}),
        (BARE_DISK, {**BARE_DISK, "address": "none", "note": "x"}),
    ],
)
def test_an_address_comes_before_a_mac_or_a_serial(
    client: Client, there: dict[str, Any], new: dict[str, Any]
) -> None:
    push(client, there)
    assert attach(client, new).json == [new]


@pytest.mark.parametrize(
    ("there", "new"),
    [
        (IDE, XEN),
        (NIC, {**NIC, "address": "0000:00:04.0", "tags": ["data"]}),
        (NIC, {**DISK, "bus": "pci", "address": NIC["address"], "tags": ["mgmt"]}),
        (BY_PATH, {**BY_PATH, "path": "/dev/sdb"}),
        (GPU, {**GPU, "model": "y"}),
        (GPU, {**GPU, "tags": ["render"]}),
        (ETH0, ETH1),
        (BARE_DISK, {**BARE_DISK, "path": "/dev/sdb"}),
        ({"type": "disk", "bus": "pci", "tags": ["a"]}, {"type": "disk", "bus": "pci"}),
    ],
)
def test_another_device_and_another_view_are_added(
    client: Client, there: dict[str, Any], new: dict[str, Any]
) -> None:
    push(client, there)
    for _ in range(2):
        assert attach(client, new).json == [there, new]


def test_a_container_s_nics_of_one_mac_come_and_go_each_by_its_name(client: Client) -> None:
    push(client)
    attach(client, ETH0)
    attach(client, ETH1)
    assert attach(client, {**ETH1, "tags": ["dmz"]}).json == [ETH0, {**ETH1, "tags": ["dmz"]}]
    assert detach(client, "devname=eth1").json == [ETH0]
    assert detach(client, "type=disk&devname=eth0").status_int == 404
    assert detach(client, "devname=eth0&type=nic").json == []


@pytest.mark.parametrize(
    ("device", "place"),
    [
        ({**DISK, "tags": ["a/b"]}, "devices[1].tags[0]"),
        ({**DISK, "address": "0:0:2:2", "bus": "sata"}, "devices[1].bus"),
        ({**NIC, "mac": "no"}, "devices[0].mac"),
        ({**NIC, "address": "0000:00:04.0"}, "devices[1].tags[0]"),
        ({**DISK, "tags": None}, "devices[1].tags"),
        ({"type": ["nic"], "address": {"a": [1]}, "mac": 1}, "devices[1].type"),
        ({}, "devices[1]"),
    ],
)
def test_a_device_that_breaks_a_rule_with_the_others_changes_nothing(
    client: Client, device: dict[str, Any], place: str
) -> None:
    push(client, NIC)
    told = errors(attach(client, device))
    assert told == [f"validation failed on metadata.{place}, condition: device"]
    assert client.get(ONE).json == [NIC]


def test_there_are_no_more_devices_than_a_document_may_have(client: Client) -> None:
    disks = [
        {"type": "disk", "bus": "none", "serial": f"vol-{number}"} for number in range(DEVICES_MAX)
    ]
    push(client, *disks)
    told = errors(attach(client, NIC))
    assert told == ["validation failed on metadata.devices, condition: device"]
    assert attach(client, {**disks[7], "tags": ["db"]}).status_int == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"a":1,"a":2}', b'{"a":"\\u0000"}'])
def test_a_body_that_is_no_object_is_called_that(client: Client, body: bytes) -> None:
    push(client, NIC)
    response = client.ask("POST", ONE, body)
    assert (response.status_int, response.json) == (400, {"message": "invalid request body"})


def test_a_large_body_is_read_aside(repository: Repository) -> None:
    threads = []

    def aside(step: Callable[[], Any]) -> Any:
        threads.append(step)
        return step()

    api = make_api(repository)
    api._aside = aside
    client = Client(api)
    push(client)
    attach(client, NIC)
    assert not threads
    assert attach(client, {**DISK, "note": "x" * LARGE}).status_int == 200
    assert len(threads) == 1


@pytest.mark.parametrize(
    ("query", "left"),
    [
        (f"mac={MAC.upper()}", [DISK, IDE, XEN, BY_PATH]),
        ("serial=vol-2", [NIC, DISK, BY_PATH]),
        ("address=ide:0:0", [NIC, DISK, XEN, BY_PATH]),
        ("address=pci:0000:00:03.0", [DISK, IDE, XEN, BY_PATH]),
        ("path=/dev/sda", [NIC, DISK, IDE, XEN]),
        ("path=%2Fdev%2Fsda", [NIC, DISK, IDE, XEN]),
    ],
)
def test_all_that_a_query_means_go_and_no_others(
    client: Client, query: str, left: list[object]
) -> None:
    push(client, NIC, DISK, IDE, XEN, BY_PATH)
    response = detach(client, query)
    assert (response.status_int, response.json) == (200, left)
    again = detach(client, query)
    assert (again.status_int, again.json) == (404, NOT_FOUND)
    assert client.get(ONE).json == left


@pytest.mark.parametrize(("kind", "left"), [("nic", "disk"), ("disk", "nic")])
def test_what_devices_of_two_types_have_needs_the_type(
    client: Client, kind: str, left: str
) -> None:
    vif = {"type": "nic", "bus": "xen", "address": "0", "mac": MAC}
    vbd = {"type": "disk", "bus": "xen", "address": "0", "path": "/dev/xvda"}
    push(client, vif, vbd)
    told = errors(detach(client, "address=xen:0"))
    assert told == ["validation failed on type, condition: required"]
    assert client.get(ONE).json == [vif, vbd]
    kept = {"nic": vif, "disk": vbd}[left]
    assert detach(client, f"address=xen:0&type={kind}").json == [kept]
    assert detach(client, "address=xen:0").json == []


@pytest.mark.parametrize(
    ("query", "path", "condition"),
    [
        ("", KEYS, "oneof"),
        ("serial=", KEYS, "oneof"),
        ("mac=&serial=", KEYS, "oneof"),
        (f"mac={MAC}&serial=vol-1", KEYS, "oneof"),
        ("serial=vol-1&serial=vol-1", KEYS, "oneof"),
        ("serial=vol-1&force=1", KEYS, "oneof"),
        ("tag=db", KEYS, "oneof"),
        ("type=nic", KEYS, "oneof"),
        ("devname=", KEYS, "oneof"),
        ("serial=vol-1&type=", "type", "oneof"),
        ("serial=vol-1&type=gpu", "type", "oneof"),
        ("serial=vol-1&type=disk&type=disk", "type", "oneof"),
        ("type=nic&mac=no", "mac", "mac"),
        ("mac=no", "mac", "mac"),
        (f"mac={MAC}%0A", "mac", "mac"),
        ("address=0000:00:03.0", "address", "bus:address"),
        ("address=pci:", "address", "bus:address"),
        ("address=none:none", "address", "bus:address"),
        ("address=scsi:none", "address", "bus:address"),
    ],
)
def test_a_query_that_does_not_say_what_goes_is_refused(
    client: Client, query: str, path: str, condition: str
) -> None:
    push(client, NIC, DISK, BARE_DISK)
    told = errors(detach(client, query))
    assert told == [f"validation failed on {path}, condition: {condition}"]
    assert len(client.get(ONE).json) == 3


def test_without_a_document_there_is_nothing_to_attach_to(client: Client) -> None:
    client.push("userdata", userdata="x")
    for path in (ONE, f"/device-metadata/{OTHER}/devices", "/device-metadata/x/devices"):
        for response in (
            client.get(path),
            attach(client, NIC, path),
            client.ask("DELETE", f"{path}?mac={MAC}"),
        ):
            assert (response.status_int, response.json) == (404, NOT_FOUND)
    assert client.get(f"/device-metadata/{INSTANCE}").status_int == 404


def test_what_another_program_wrote_is_shown_and_kept_from_being_made_worse(
    client: Client, repository: Repository
) -> None:
    for broken, listed in (("x", []), (None, []), ([1, IDE], [1, IDE])):
        content = {"devices": broken}
        records.push(repository, Kind.METADATA, INSTANCE, content=content)
        assert client.get(ONE).json == listed
        assert errors(attach(client, NIC))[0].startswith("validation failed on metadata.devices")
        assert client.get(f"/device-metadata/{INSTANCE}").json == content
    assert detach(client, "serial=vol-2").json == [1]


def test_user_data_has_no_devices(client: Client) -> None:
    response = client.get(f"/device-userdata/{INSTANCE}/devices")
    assert (response.status_int, response.json["message"]) == (
        404,
        "invalid request - route not found",
    )
    other = client.ask("PUT", ONE)
    assert (other.status_int, other.headers["Allow"]) == (405, "GET, HEAD, POST, DELETE")


@pytest.mark.parametrize(
    ("method", "operation"),
    [("GET", "read"), ("HEAD", "read"), ("POST", "upsert"), ("DELETE", "upsert")],
)
def test_attaching_and_detaching_take_the_scopes_of_a_push(
    repository: Repository, method: str, operation: Any
) -> None:
    tokens = Tokens()
    client = Client(make_api(repository, authorizer=tokens))
    assert client.ask(method, ONE).status_int == 401
    needed = accepted(operation, "metadata")
    assert tokens.asked == [(None, needed)]
    assert (
        client.ask(method, ONE, authorization="Bearer metadata:delete:metadata").status_int == 403
    )
    for scope in needed:
        answered = client.ask(method, ONE, authorization=f"Bearer {scope}")
        assert answered.status_int in (400, 404)


def test_what_came_from_upstream_counts_as_pushed_once_it_is_changed(
    client: Client, repository: Repository
) -> None:
    def fetch() -> None:
        content = {"hostname": "up", "devices": [DISK]}
        fetched = FetchedHalf(INSTANCE, content, [])
        repository.store_fetched(Kind.METADATA, fetched, over=repository.get(INSTANCE))

    for change in (lambda: attach(client, DISK), lambda: detach(client, "serial=vol-1")):
        fetch()
        assert attach(client, {}).status_int == 400
        assert detach(client, "serial=none").status_int == 404
        record = repository.get(INSTANCE)
        assert record is not None
        assert record.metadata_fetched_at is not None
        assert change().status_int == 200
        record = repository.get(INSTANCE)
        assert record is not None
        assert record.pushed(Kind.METADATA)


@pytest.fixture
def writers(database_url: str) -> Iterator[list[Client]]:
    opened = [Repository(database_url) for _ in range(6)]
    yield [Client(make_api(one)) for one in opened]
    for one in opened:
        one.close()


def test_those_who_attach_and_detach_at_once_lose_nothing(
    client: Client, repository: Repository, writers: list[Client]
) -> None:
    push(client, NIC)
    start = threading.Barrier(len(writers))

    def write(number: int) -> None:
        start.wait()
        for turn in range(8):
            serial = f"vol-{number}-{turn}"
            device = {"type": "disk", "bus": "none", "serial": serial, "tags": [serial]}
            assert attach(writers[number], device).status_int == 200
            if turn % 2:
                assert detach(writers[number], f"serial={serial}").status_int == 200

    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(write, range(len(writers))))
    record = repository.get(INSTANCE)
    assert record is not None
    devices = parse_document(INSTANCE, record.metadata)["devices"]
    expected = {f"vol-{number}-{turn}" for number in range(6) for turn in (0, 2, 4, 6)}
    assert devices[0] == NIC
    assert sorted(one["serial"] for one in devices[1:]) == sorted(expected)


def test_a_change_that_is_not_made_leaves_the_record_alone(repository: Repository) -> None:
    def refuse(document: dict[str, Any]) -> None:
        document["hostname"] = "never"

    assert repository.change(INSTANCE, dict) is None
    records.push(repository, Kind.METADATA, INSTANCE, content={"hostname": "web1"})
    before = repository.get(INSTANCE)
    assert repository.change(INSTANCE, refuse) is None

    def fail(document: dict[str, Any]) -> None:
        raise KeyError(document["hostname"])

    with pytest.raises(KeyError, match="web1"):
        repository.change(INSTANCE, fail)
    assert repository.get(INSTANCE) == before
    assert repository.change(INSTANCE.upper(), lambda one: {**one, "n": 1}) == {
        "hostname": "web1",
        "n": 1,
    }
