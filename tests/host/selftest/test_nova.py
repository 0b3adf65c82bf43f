"""The recording Nova answers as Nova does."""

import pytest

from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest, Reply
from tests.harness.nova import RecordingNova
from tests.harness.nova_tree import Instance

ADDRESS = "10.0.0.6"
INSTANCE = Instance(
    instance_id="9d2a8f4e-8a52-4f3f-9a05-0d2f4b8e7c11",
    project_id="5f705ae0b9a94e0c8f0a1d9d5d3b3b1c",
    hostname="web-1",
    keys={"key-1": "ssh-ed25519 AAAA key-1"},
    user_data=b"\x1f\x8b\x00\xff not text",
)


@pytest.fixture
def client(make_guest: MakeGuest) -> Guest:
    return make_guest("client", address="10.0.0.5/24")


@pytest.fixture
def server(make_guest: MakeGuest) -> Guest:
    return make_guest("server", address=f"{ADDRESS}/24")


@pytest.fixture
def api(server: Guest) -> RecordingNova:
    nova = RecordingNova(server.namespace, host=ADDRESS)
    server.host.on_close(nova.close)
    nova.put(INSTANCE)
    return nova


def headers(nova: RecordingNova, **changes: str | None) -> list[tuple[str, str]]:
    known: dict[str, str | None] = {
        "X-Instance-ID": INSTANCE.instance_id,
        "X-Tenant-ID": INSTANCE.project_id,
        "X-Instance-ID-Signature": nova.signature(INSTANCE.instance_id),
    }
    known |= {name.replace("_", "-"): value for name, value in changes.items()}
    return [(name, value) for name, value in known.items() if value is not None]


def ask(guest: Guest, path: str, *options: str, sent: list[tuple[str, str]]) -> Reply:
    return guest.curl(path, *options, host=f"{ADDRESS}:8775", headers=sent)


def test_a_request_that_is_not_right_is_refused(client: Guest, api: RecordingNova) -> None:
    upper = api.signature(INSTANCE.instance_id).upper()
    for changes, status in (
        ({"X_Instance_ID": None}, 400),
        ({"X_Tenant_ID": None}, 400),
        ({"X_Instance_ID_Signature": None}, 400),
        ({"X_Instance_ID_Signature": "0" * 64}, 403),
        ({"X_Instance_ID_Signature": upper}, 403),
        ({"X_Instance_ID": "someone-else"}, 403),
        ({"X_Tenant_ID": "another"}, 404),
        ({}, 200),
    ):
        api.clear()
        reply = ask(client, "/latest/meta-data/", sent=headers(api, **changes))
        assert reply.status == status, changes
        assert [request.status for request in api.requests()] == [status], changes
    assert ask(client, "/", sent=[]).status == 200
    assert ask(client, "//openstack", sent=headers(api)).status == 400
    assert ask(client, "/openstack/latest/nothing", sent=headers(api)).status == 404
