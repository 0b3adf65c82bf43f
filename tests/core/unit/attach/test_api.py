"""Each request of a VM should get its status, and none should reach the engine that may not."""

import json
import logging
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

import eventlet
import pytest
from eventlet.green import threading

from dfmeta.attach.api import Access, body_max
from dfmeta.attach.model import Attachment, AttachmentRequest
from dfmeta.errors import (
    AttachConflictError,
    AttachDriverError,
    AttachError,
    AttachFullError,
    AttachNetworkError,
    AttachQuotaError,
    AttachRateError,
)
from dfmeta.model import Answer, GuestRequest, Identity, PortKind
from dfmeta.proxy.tokens import Tokens
from tests.core.unit.attach.vm_side import (
    BODY,
    BOOT,
    DOCUMENT,
    INSTANCE,
    ONE,
    PATH,
    PORT,
    PROJECT,
    Side,
)


@pytest.fixture
def side() -> Side:
    return Side()


def read(answer: Answer) -> Any:
    assert answer.content_type == "application/json"
    return json.loads(answer.body)


def error(answer: Answer) -> tuple[int, str]:
    document = read(answer)
    assert document.keys() == {"error", "message"}
    return answer.status, document["error"]


def header(answer: Answer, name: str) -> str:
    return dict(answer.headers).get(name, "")


def test_a_token_is_issued_and_accepted(side: Side) -> None:
    ttl = {"x_dfmeta_token_ttl_seconds": "21600"}
    answer = side.ask("PUT", "/token", token="", **ttl)
    assert answer.status == 200
    assert header(answer, "x-dfmeta-token-ttl-seconds") == "21600"
    again = side.ask("GET", PATH, token=answer.body.decode())
    assert again.status == 200


def test_a_wrong_time_of_a_token_is_400(side: Side) -> None:
    for ttl in ("", "0", "21601", "1 ", "-1", "1,2", "\u0661", "1" * 6):
        answer = side.ask("PUT", "/token", x_dfmeta_token_ttl_seconds=ttl)
        assert error(answer) == (400, "bad_request"), ttl


def test_a_request_without_a_valid_token_is_401(side: Side) -> None:
    others = replace(PORT, row="row-2"), replace(PORT, instance_id=PROJECT)
    for path in ("/status", "/attachments", PATH):
        for token in ("", "x" * 56, *(side.tokens.issue(other, 60) for other in others)):
            answer = side.ask("GET", path, token=token)
            assert error(answer) == (401, "token")
            assert header(answer, "WWW-Authenticate") == "Bearer"
    assert not side.engine.asked


def test_tokens_of_the_metadata_are_of_another_kind(side: Side) -> None:
    identity = Identity(INSTANCE, PROJECT, PORT.iface_id, PORT.name, 1)
    metadata = Tokens(bytes(32))
    assert error(side.ask("GET", PATH, token=metadata.issue(identity, 60)))[0] == 401
    assert not metadata.valid(side.tokens.issue(PORT, 60), identity)


OTHER_GUESTS: list[dict[str, Any]] = [
    {"instance_id": "99999999-2222-3333-4444-555555555555"},
    {"instance_id": ""},
    {"iface_id": ""},
    {"kind": PortKind.SUBPORT},
    {"kind": PortKind.SUBPORT, "attachments": True},
    {"vid": 7, "attachments": True},
    {"unverified": True},
]
ALLOWED: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {INSTANCE}),
    ({}, {PROJECT}),
    ({"instance_id": INSTANCE.upper()}, {INSTANCE}),
    ({"kind": PortKind.PORT}, {INSTANCE}),
    ({"attachments": True}, set()),
    ({"attachments": True, "unverified": True}, set()),
]


def test_a_guest_that_is_not_allowed_gets_404_for_everything(side: Side) -> None:
    for changes in OTHER_GUESTS:
        port = replace(PORT, **changes)
        assert not side.api.allows(port)
        for method, path in (("PUT", "/token"), ("GET", "/status"), ("BREW", "/no"), ("PUT", PATH)):
            for source in (700, 40000):
                answer = side.ask(method, path, BODY, port=port, source=source)
                assert error(answer) == (404, "not_found"), changes
    assert not side.engine.asked


def test_an_allowed_guest_is_answered(side: Side) -> None:
    for changes, allow in ALLOWED:
        side.api.access = Access(frozenset(allow))
        assert side.api.allows(replace(PORT, **changes)), (changes, allow)


def test_network_with_a_list_of_its_own_is_open_to_those_alone(side: Side) -> None:
    own, default = frozenset({PROJECT}), frozenset({INSTANCE})
    table: list[tuple[Access, dict[str, Any], set[str]]] = [
        (Access(default, {"pods": own}), {}, {"pods", "bare"}),
        (Access(default, {"pods": frozenset({"another"})}), {}, {"bare"}),
        (Access(networks={"pods": own}), {}, {"pods"}),
        (Access(networks={"pods": own}), {"attachments": True}, {"pods", "bare"}),
        (Access(networks={"pods": frozenset()}), {"attachments": True}, {"bare"}),
        (Access(networks={"pods": own}), {"attachments": True, "unverified": True}, {"bare"}),
    ]
    for access, changes, networks in table:
        side.api.access, port = access, replace(PORT, **changes)
        status = read(side.ask("GET", "/status", port=port))
        assert {network["name"] for network in status["networks"]} == networks, (access, changes)
        for name in ("pods", "bare"):
            answer = side.ask("PUT", PATH, {"network": name}, port=port)
            assert (answer.status != 422) == (name in networks), (access, changes, name)


def test_an_unprivileged_port_is_403_with_any_token(side: Side) -> None:
    for source in (0, 1024, 65535):
        for method, path in (("PUT", "/token"), ("PUT", PATH), ("GET", "/no")):
            answer = side.ask(method, path, BODY, source=source)
            assert error(answer) == (403, "not_privileged"), source
    assert not side.engine.asked
    for source in (1, 1023):
        assert side.ask("GET", PATH, source=source).status == 200


def test_a_request_that_a_proxy_passed_on_is_403(side: Side) -> None:
    for path in ("/token", PATH):
        assert error(side.ask("PUT", path, BODY, forwarded=True)) == (403, "forwarded")


def test_an_unknown_path_query_or_method_is_refused(side: Side) -> None:
    absent = "/attachments/c1", "/attachments/c1/eth0/x", "/token/x", "/../status"
    for path in ("", "/", "/no", *absent):
        assert error(side.ask("GET", path)) == (404, "not_found"), path
    for method, path in (
        ("GET", "/status?x"),
        ("PUT", f"{PATH}?link=gone"),
        ("DELETE", f"{PATH}?link=no"),
    ):
        assert error(side.ask(method, path, BODY)) == (400, "bad_request"), path
    for method, path, allowed in (
        ("GET", "/token", "PUT"),
        ("POST", "/status", "GET, HEAD"),
        ("DELETE", "/attachments", "GET, HEAD"),
        ("POST", PATH, "GET, HEAD, PUT, DELETE"),
        ("GET", "/gc", "POST"),
    ):
        answer = side.ask(method, path)
        assert (error(answer), header(answer, "Allow")) == ((405, "method"), allowed)


def test_a_name_that_neither_cni_nor_the_kernel_takes_is_400(side: Side) -> None:
    for path in (
        f"/attachments/{'c' * 129}/eth0",
        "/attachments/-c/eth0",
        "/attachments/c%20/eth0",
        f"/attachments/c1/{'e' * 16}",
        "/attachments/c1/e:0",
        "/attachments/c1/e%250",
        "/attachments/c1/e%20",
    ):
        for method in ("GET", "PUT", "DELETE"):
            assert error(side.ask(method, path, BODY)) == (400, "bad_request"), path
    assert not side.engine.asked


def test_the_status_tells_numbers_and_networks(side: Side) -> None:
    networks = [{"name": "pods", "mtu": 1400}, {"name": "bare", "mtu": 1500}]
    numbers = {"used": 1, "free": 9, "quota": 10, "networks": networks}
    assert read(side.ask("GET", "/status")) == {"ready": True, **numbers}
    side.engine.new = False
    cause = AttachDriverError(cause="no trunk").vm_text
    assert "trunk" not in cause
    assert read(side.ask("GET", "/status")) == {"ready": False, "cause": cause, **numbers}


def test_a_new_attachment_is_201_and_the_same_again_200(side: Side) -> None:
    answer = side.ask("PUT", PATH, BODY)
    assert (answer.status, read(answer)) == (201, DOCUMENT)
    side.engine.new = False
    body = {
        "network": "pods",
        "boot_id": BOOT.upper(),
        "mac": "FA:16:3E:00:00:09",
        "ip": "10.20.0.9",
        "avoid": [7, 7, 4094],
        "owner": "cni",
        "labels": {"pod": "web"},
    }
    assert side.ask("PUT", PATH, body).status == 200
    ((bare,), (whole,)) = side.engine.asked
    assert bare == AttachmentRequest(container="c1", ifname="eth0", network="pods")
    assert whole == replace(
        bare,
        boot_id=BOOT,
        mac="fa:16:3e:00:00:09",
        ip=IPv4Address("10.20.0.9"),
        avoid=frozenset({7, 4094}),
        owner="cni",
        labels={"pod": "web"},
    )


WRONG_BODIES: list[Any] = [
    *(b"", b"[]", b"{", {}, {**BODY, "more": 1}),
    b'{"network": "pods", "network": "pods"}',
    b'{"network": "po\\u0000ds"}',
]
WRONG_MEMBERS: dict[str, tuple[Any, ...]] = {
    "network": ("", 1, "Pods", "p" * 64),
    "mac": ("01:00:00:00:00:01", "00:00:00:00:00:00", "fa163e000001"),
    "ip": ("10.20.0.300", "::1", 1),
    "avoid": (7, [0], [4095], [True], ["7"], [7] * 65),
    "owner": ("o" * 129, "a\nb"),
    "labels": (
        *([], {"": "x"}, {"a": 1}, {"a": "x" * 257}),
        {f"l{number}": "" for number in range(17)},
        {f"l{number}": "x" * 240 for number in range(5)},
        {f"l{number}": "\u00e9" * 200 for number in range(3)},
    ),
}


def test_a_wrong_body_is_400(side: Side) -> None:
    wrong = [{**BODY, name: value} for name, values in WRONG_MEMBERS.items() for value in values]
    for body in (*WRONG_BODIES, *wrong):
        assert error(side.ask("PUT", PATH, body)) == (400, "bad_request"), body
    assert not side.engine.asked


def test_lists_of_a_vm_are_made_one_at_a_time(side: Side) -> None:
    gate, running, most = threading.Event(), [0], [0]

    def listed(_parent: object) -> list[Attachment]:
        running[0] += 1
        most[0] = max(most[0], running[0])
        gate.wait()
        running[0] -= 1
        return [ONE]

    side.engine.listed = listed  # type: ignore[method-assign]
    asks = [eventlet.spawn(side.ask, "GET", "/attachments") for _ in range(3)]
    eventlet.sleep(0)
    gate.set()
    assert [answer.wait().status for answer in asks] == [200] * 3
    assert most == [1]


def test_one_and_all_are_returned(side: Side) -> None:
    assert read(side.ask("GET", PATH)) == DOCUMENT
    assert read(side.ask("HEAD", PATH)) == DOCUMENT
    assert read(side.ask("GET", "/attachments/")) == {"attachments": [DOCUMENT]}
    assert error(side.ask("GET", "/attachments/c2/eth0")) == (404, "not_found")
    # A network without a gateway has no route, and one that was removed no MTU.
    side.engine.there = [replace(ONE, network="bare"), replace(ONE, network="removed")]
    bare, removed = read(side.ask("GET", "/attachments"))["attachments"]
    assert (bare["ips"], bare["routes"], bare["dns"]) == ([{"address": "10.20.0.5/24"}], [], {})
    assert removed["ips"] == [{"address": "10.20.0.5/32"}]
    assert "mtu" not in removed


def test_a_deletion_is_204_whether_there_is_one_or_not(side: Side) -> None:
    for query, gone in (("", False), ("?link=gone", True)):
        for container in ("c1", "c2"):
            answer = side.ask("DELETE", f"/attachments/{container}/eth0{query}")
            assert (answer.status, answer.body, answer.content_type) == (204, b"", "")
            assert side.engine.asked[-1] == (container, "eth0", gone)


def test_garbage_collection_names_network_owner_and_what_stays(side: Side) -> None:
    valid = [{"container": "c1", "ifname": "eth0"}, {"container": "c2", "ifname": "eth1"}]
    body = {"network": "pods", "owner": "cni", "valid": valid}
    answer = side.ask("POST", "/gc", body)
    assert (answer.status, read(answer)) == (200, {"removed": 2})
    assert side.engine.asked == [("pods", "cni", {("c1", "eth0"), ("c2", "eth1")})]


def test_garbage_collection_without_a_whole_list_is_400(side: Side) -> None:
    whole = {"network": "pods", "owner": "", "valid": []}
    lists: list[Any] = [
        *({}, ["c1"], [{"container": "c1"}], [{"container": 1, "ifname": "eth0"}]),
        *([{"container": "c1", "ifname": name}] for name in ("a/b", "..")),
    ]
    for given in (
        *({"owner": "", "valid": []}, {"network": "pods", "owner": ""}, {**whole, "owner": 1}),
        *({**whole, "valid": valid} for valid in lists),
    ):
        assert error(side.ask("POST", "/gc", given)) == (400, "bad_request"), given
    assert not side.engine.asked


def test_a_list_may_be_as_long_as_the_quota(side: Side) -> None:
    request = GuestRequest("POST", "/dfmeta/v1/gc")
    assert body_max(request, 1) == 8192
    assert body_max(request, 256) == body_max(request, side.api.quota) * 8
    assert body_max(GuestRequest("PUT", f"/dfmeta/v1{PATH}"), 256) == 8192


def kinds(base: type[AttachError]) -> set[type[AttachError]]:
    return {base}.union(*map(kinds, base.__subclasses__()))


def test_an_error_of_the_engine_has_its_status(side: Side) -> None:
    for kind, status, word, after in (
        (AttachConflictError, 409, "conflict", ""),
        (AttachNetworkError, 422, "network", ""),
        (AttachQuotaError, 429, "quota", "1"),
        (AttachRateError, 429, "rate", "1"),
        (AttachDriverError, 503, "driver", "2"),
        (AttachFullError, 507, "full", ""),
    ):
        side.engine.error = failure = kind(cause="x")
        answer = side.ask("PUT", PATH, BODY)
        assert (error(answer), header(answer, "Retry-After")) == ((status, word), after)
        assert read(answer)["message"] == failure.vm_text


def test_a_vm_is_told_a_cause_only_where_it_names_its_own() -> None:
    """An error of the data plane may name ports and files of the host."""
    own = {AttachConflictError, AttachNetworkError, AttachQuotaError, AttachRateError}
    for kind in kinds(AttachError):
        failure = kind(cause="br-int has no port tap7", remedy="Run `dfmeta trunk enable tap7`")
        assert ("tap7" in failure.vm_text) == (kind in own | {AttachFullError}), kind
        assert "br-int has no port tap7" in str(failure)


def test_too_many_requests_are_429(side: Side) -> None:
    side.pause = 3
    answer = side.ask("GET", PATH)
    assert error(answer) == (429, "rate")
    assert header(answer, "Retry-After") == "3"
    # A request for a token costs no more than its refusal would.
    assert side.ask("PUT", "/token", x_dfmeta_token_ttl_seconds="1").status == 200


def test_each_change_has_a_line_without_token(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = side.ask("PUT", "/token", x_dfmeta_token_ttl_seconds="60").body.decode()
    side.ask("PUT", PATH, BODY, token=token)
    side.ask("DELETE", PATH, token=token)
    side.ask("DELETE", "/attachments/c2/eth0", token=token)
    valid = [{"container": "c1", "ifname": "eth0"}]
    side.ask("POST", "/gc", {"network": "pods", "owner": "", "valid": valid}, token=token)
    side.ask("GET", PATH, token="wrong" + token)
    side.ask("GET", "/status", token=token)
    begins = f"Attachments: tpi-1 ({INSTANCE}): "
    values = "network pods, VLAN 5, 10.20.0.5"
    assert caplog.messages == [
        f"{begins}added eth0 of container c1, {values}",
        f"{begins}deleted eth0 of container c1, {values}",
        f"{begins}1 of network pods removed by garbage collection",
        f"{begins}GET attachment refused with 401, token",
    ]
    assert token not in caplog.text


def test_kind_of_refusal_is_one_line_a_minute(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        side.ask("BREW", "/status", token="")
    assert len(caplog.messages) == 1
    assert "a request" in caplog.messages[0]
    side.ask("GET", "/status", token="")
    side.ask("GET", "/status", port=replace(PORT, ofport=99), token="")
    assert len(caplog.messages) == 3
