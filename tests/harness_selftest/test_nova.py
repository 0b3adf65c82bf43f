"""The recording Nova answers as Nova does, and fails as it is told."""

from __future__ import annotations

import contextlib
import json
import ssl
from pathlib import Path

import pytest

from tests.harness.certificates import Authority
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest, Reply
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.nova_tree import Instance
from tests.harness.ovs import OpenvSwitch

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
    return guest.curl(path, *options, host=f"{ADDRESS}:8775", headers=sent, timeout=5)


def test_a_signed_request_is_answered(client: Guest, api: RecordingNova) -> None:
    reply = ask(client, "/openstack/latest/meta_data.json", sent=headers(api))
    assert reply.status == 200
    assert reply.header("content-type") == "application/json"
    assert json.loads(reply.body)["uuid"] == INSTANCE.instance_id
    binary = ask(client, "/openstack/latest/user_data", sent=headers(api))
    assert binary.body == INSTANCE.user_data


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"X_Instance_ID": None}, 400),
        ({"X_Tenant_ID": None}, 400),
        ({"X_Instance_ID_Signature": None}, 400),
        ({"X_Instance_ID_Signature": "0" * 64}, 403),
        ({"X_Instance_ID": "someone-else"}, 403),
        ({"X_Tenant_ID": "another"}, 404),
    ],
)
def test_a_request_that_is_not_right_is_refused(
    client: Guest, api: RecordingNova, changes: dict[str, str | None], status: int
) -> None:
    reply = ask(client, "/latest/meta-data/", sent=headers(api, **changes))
    assert reply.status == status
    assert [request.status for request in api.requests()] == [status]


def test_an_upper_case_signature_is_refused(client: Guest, api: RecordingNova) -> None:
    upper = api.signature(INSTANCE.instance_id).upper()
    sent = headers(api, X_Instance_ID_Signature=upper)
    assert ask(client, "/latest/meta-data/", sent=sent).status == 403


def test_an_unknown_instance_is_404(client: Guest, api: RecordingNova) -> None:
    sent = headers(api)
    api.remove(INSTANCE.instance_id)
    assert ask(client, "/latest/meta-data/", sent=sent).status == 404


def test_the_root_needs_no_headers_and_odd_targets_are_400(
    client: Guest, api: RecordingNova
) -> None:
    assert ask(client, "/", sent=[]).status == 200
    assert ask(client, "//openstack", sent=headers(api)).status == 400
    assert ask(client, "/openstack/latest/nothing", sent=headers(api)).status == 404


def test_a_password_is_taken_once(client: Guest, api: RecordingNova) -> None:
    path = "/openstack/2013-04-04/password"
    sent = headers(api)
    assert ask(client, path, "-d", "x" * 1021, sent=sent).status == 400
    assert ask(client, path, "-d", "secret", sent=sent).status == 200
    assert ask(client, path, "-d", "again", sent=sent).status == 409
    assert ask(client, path, sent=sent).body == b"secret"
    assert api.password(INSTANCE.instance_id) == b"secret"


def test_requests_are_recorded_with_doubled_headers(client: Guest, api: RecordingNova) -> None:
    ask(client, "/?a=b", "-d", "body", sent=[("X-Twice", "1"), ("X-Twice", "2"), ("x_odd", "3")])
    (request,) = api.requests()
    assert (request.method, request.path, request.body) == ("POST", "/?a=b", b"body")
    assert [v for k, v in request.headers if k == "X-Twice"] == ["1", "2"]
    assert request.header("x_odd") == "3"
    with pytest.raises(AssertionError, match="2 times"):
        request.header("x-twice")
    api.clear()
    assert api.requests() == []
    assert api.accepted() == 0


def test_faults(client: Guest, api: RecordingNova) -> None:
    sent = headers(api)
    api.fault("user_data", status=503, times=1)
    assert ask(client, "/openstack/latest/user_data", sent=sent).status == 503
    assert ask(client, "/openstack/latest/user_data", sent=sent).status == 200
    api.fault("GET /latest", close=True, times=1)
    assert ask(client, "/latest/", sent=sent).exit_code == 52
    api.fault(delay=0.3, times=1)
    assert ask(client, "/latest/", sent=sent).seconds >= 0.3
    api.fault(trickle=0.03, times=1)
    slow = ask(client, "/latest/meta-data/", sent=sent)
    assert slow.seconds >= 0.3
    assert slow.status == 200
    api.fault(cut=3, times=1)
    assert "18" in str(ask(client, "/latest/meta-data/", sent=sent).exit_code)
    api.fault(status=500)
    api.mend()
    assert ask(client, "/latest/", sent=sent).status == 200


def test_away_refuses_and_back_answers(client: Guest, api: RecordingNova) -> None:
    api.away()
    assert ask(client, "/", sent=[]).exit_code == 7
    api.back()
    assert ask(client, "/", sent=[]).status == 200


def test_connections_are_kept_and_can_be_cut(client: Guest, api: RecordingNova) -> None:
    done = client.namespace.run(
        ["curl", "-sS", f"http://{ADDRESS}:8775/", f"http://{ADDRESS}:8775/"]
    )
    assert done.stdout.count("latest") == 2
    assert api.accepted() == 1
    with client.namespace.connect(ADDRESS, 8775) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        api.cut()
        while data := connection.recv(65536):
            assert b"HTTP/1.1" not in data


def test_the_fixture_listens_on_the_hosts_loopback(host: OpenvSwitch, nova: RecordingNova) -> None:
    assert nova.secret == SECRET
    with host.namespace.connect("127.0.0.1", 8775):
        pass


def tls_status(client: Guest, trusted: Authority, signer: Authority | None) -> bytes:
    """How an unsigned request over TLS is answered."""
    context = ssl.create_default_context(cafile=trusted.certificate)
    if signer is not None:
        pair = signer.issue("client")
        context.load_cert_chain(pair.certificate, pair.key)
    with (
        client.namespace.connect(ADDRESS, 8775) as plain,
        context.wrap_socket(plain, server_hostname=ADDRESS) as connection,
    ):
        # It may have closed already, and its reason is there to be read.
        with contextlib.suppress(OSError):
            connection.sendall(b"GET /latest HTTP/1.1\r\nHost: nova\r\n\r\n")
        return connection.recv(12)


def test_over_tls_it_wants_a_certificate_of_its_clients(
    client: Guest, server: Guest, tmp_path: Path
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    pair = authority.issue(ADDRESS)
    nova = RecordingNova(
        server.namespace,
        host=ADDRESS,
        certificate=pair,
        client_authority=authority.certificate,
    )
    server.host.on_close(nova.close)
    nova.put(INSTANCE)
    assert tls_status(client, authority, authority) == b"HTTP/1.1 400"
    with pytest.raises(ssl.SSLError, match="ALERT_UNKNOWN_CA"):
        tls_status(client, authority, stranger)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        tls_status(client, authority, None)
    assert len(nova.requests()) == 1


def test_it_answers_with_the_bytes_it_is_told(client: Guest, api: RecordingNova) -> None:
    api.fault(raw=b"HTTP/1.1 299 Odd\r\nX-A: 1\r\n\r\n\xff", times=1)
    reply = ask(client, "/", sent=headers(api))
    assert (reply.status, reply.header("X-A"), reply.body) == (299, "1", b"\xff")
    assert ask(client, "/", sent=headers(api)).status == 200
