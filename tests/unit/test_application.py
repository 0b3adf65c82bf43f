"""A guest's request should get its own answer, a clear refusal, or none at all."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

import eventlet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dfmeta.exceptions import BackendError, BackendTimeoutError, BackendUnreachableError
from dfmeta.flows.key import key_of
from dfmeta.model import Answer, Endpoint, GuestRequest, Identity
from dfmeta.proxy.wsgi import (
    BODY_MAX,
    CLAIM,
    DEADLINE,
    LAST,
    Abandoned,
    Application,
    Settings,
)
from dfmeta.registry import Claim, Registry
from tests.unit.support import INSTANCE, OTHER_INSTANCE, address, let_hub_run, port

HERE = Endpoint(13)
PASSWORD = "/openstack/latest/password"
AWAY = BackendUnreachableError(backend="fake", cause="it is away")
SLOW = BackendTimeoutError(backend="fake", cause="it is slow")


class FakeBackend:
    """Answers what a test says, and keeps what it was asked."""

    name = "fake"

    def __init__(self) -> None:
        self.asked: list[tuple[GuestRequest, Identity, float]] = []
        self.reply: Answer | Exception = Answer(200, b"hello", "text/x")
        self.meanwhile: Callable[[], object] = lambda: None

    def answer(self, request: GuestRequest, identity: Identity, *, deadline: float) -> Answer:
        self.asked.append((request, identity, deadline))
        self.meanwhile()
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


class Given:
    """What a guest was answered."""

    def __init__(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = int(status.split()[0])
        self.reason = status.partition(" ")[2]
        self.headers = {name.lower(): value for name, value in headers}
        self.body = body


class World:
    """A guest, a backend and the application between them."""

    def __init__(self, instance_project: str = "p1", **options: Any) -> None:
        self.registry = Registry()
        self.registry.set_port(port(project=instance_project))
        self.registry.learn(HERE, address(), 0)
        claim = self.registry.claim(key_of(HERE, 0))
        assert claim is not None
        self.claim: Claim = claim
        self.backend = FakeBackend()
        self.application = Application(self.registry, self.backend, Settings(**options))
        self.last = 0

    def ask(
        self,
        path: str = "/",
        method: str = "GET",
        *,
        body: bytes = b"",
        seconds: float = 5.0,
        **environ: Any,
    ) -> Given:
        given: list[Any] = []

        def start_response(status: str, headers: list[tuple[str, str]]) -> None:
            given.extend([status, headers])

        base = {
            "REQUEST_METHOD": method,
            "RAW_PATH_INFO": path,
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "SERVER_NAME": "169.254.169.254",
            "SERVER_PORT": "80",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "CONTENT_LENGTH": str(len(body)),
            CLAIM: self.claim,
            DEADLINE: time.monotonic() + seconds,
            LAST: self._last,
        }
        answer = b"".join(self.application(base | environ, start_response))
        return Given(*given, answer)

    def _last(self) -> None:
        self.last += 1


@pytest.fixture
def world() -> World:
    return World()


def test_a_guest_gets_what_the_backend_says(world: World) -> None:
    world.backend.reply = Answer(200, b"\0\xff", "text/x", headers=(("etag", "abc"),))
    given = world.ask("/latest/meta-data", QUERY_STRING="a=b")
    assert (given.status, given.reason, given.body) == (200, "OK", b"\0\xff")
    assert given.headers == {"content-type": "text/x", "content-length": "2", "etag": "abc"}
    ((request, identity, _deadline),) = world.backend.asked
    assert (request.method, request.path, request.query) == ("GET", "/latest/meta-data", "a=b")
    assert request.guest_ip == "10.0.0.5"
    assert identity.instance_id == INSTANCE


def test_a_path_goes_as_the_guest_wrote_it(world: World) -> None:
    world.ask("/a%2Fb//%2e%2e", PATH_INFO="/a/b//..")
    assert world.backend.asked[0][0].path == "/a%2Fb//%2e%2e"


def test_headers_come_in_lower_case(world: World) -> None:
    world.ask(HTTP_X_AWS_EC2_METADATA_TOKEN="t", HTTP_ACCEPT="a/b", CONTENT_TYPE="c/d")
    headers = world.backend.asked[0][0].headers
    assert headers == {"x-aws-ec2-metadata-token": "t", "accept": "a/b", "content-type": "c/d"}


@pytest.mark.parametrize(
    "path", ["", "*", "http://169.254.169.254/", "relative", "/a b", "/\x7f", "/\xe9", "/a\tb"]
)
def test_what_is_not_in_origin_form_is_a_bad_request(world: World, path: str) -> None:
    assert world.ask(path).status == 400
    assert world.backend.asked == []


def test_a_query_with_control_characters_is_a_bad_request(world: World) -> None:
    assert world.ask(QUERY_STRING="a\x00").status == 400


@pytest.mark.parametrize(
    "path",
    [
        "/healthz",
        "/healthz/readiness",
        "/metrics",
        "/version",
        "/device-metadata",
        "/device-metadata/x",
        "/device-userdata",
        "/api/v1/device-metadata",
        "/api/v1/anything",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_admin_paths_are_not_there_for_guests(world: World, path: str, method: str) -> None:
    assert world.ask(path, method).status == 404
    assert world.backend.asked == []


@pytest.mark.parametrize("path", ["/", "/versions", "/metricsx", "/healthzz", "/device-metadatax"])
def test_paths_that_only_look_so_are_the_backends(world: World, path: str) -> None:
    world.ask(path)
    assert len(world.backend.asked) == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_a_method_that_is_not_allowed_says_which_are(world: World, method: str) -> None:
    given = world.ask("/latest/meta-data", method)
    assert (given.status, given.headers["allow"]) == (405, "GET, HEAD")
    assert world.backend.asked == []


def test_a_password_may_be_posted_and_nowhere_else(world: World) -> None:
    assert world.ask(PASSWORD, "POST", body=b"cipher").status == 200
    assert world.backend.asked[0][0].body == b"cipher"
    assert world.ask(PASSWORD, "PUT").headers["allow"] == "GET, HEAD, POST"
    assert world.ask("/openstack/latest/x/password", "POST").status == 405


def test_the_body_of_a_get_is_not_read(world: World) -> None:
    world.ask(body=b"ignored")
    assert world.backend.asked[0][0].body == b""


def test_the_longest_body_passes_and_a_longer_one_ends_the_connection(world: World) -> None:
    assert world.ask(PASSWORD, "POST", body=b"x" * BODY_MAX).status == 200
    assert world.last == 0
    assert world.ask(PASSWORD, "POST", body=b"x" * (BODY_MAX + 1)).status == 413
    assert world.last == 1
    assert len(world.backend.asked) == 1


@pytest.mark.parametrize("error", [OSError("cut"), ValueError("chunk")])
def test_a_body_that_cannot_be_read_ends_the_connection(world: World, error: Exception) -> None:
    class Broken(io.BytesIO):
        def read(self, _size: int | None = -1) -> bytes:
            raise error

    given = world.ask(PASSWORD, "POST", **{"wsgi.input": Broken()})
    assert (given.status, world.last) == (400, 1)


def test_a_head_has_a_length_and_no_body(world: World) -> None:
    given = world.ask(method="HEAD")
    assert (given.body, given.headers["content-length"]) == (b"", "5")
    world.backend.reply = Answer(200, b"", headers=(("content-length", "999"),))
    assert world.ask(method="HEAD").headers["content-length"] == "999"


def test_a_status_that_http_does_not_know_is_passed_on(world: World) -> None:
    world.backend.reply = Answer(299)
    assert (world.ask().status, world.ask().reason) == (299, "Unknown")


@pytest.mark.parametrize(
    ("mode", "path", "answered"),
    [
        ("auto", "/", True),
        ("auto", "/openstack", True),
        ("auto", "/openstack/", True),
        ("auto", "/latest/meta-data", True),
        ("auto", "/openstack/latest/meta_data.json", False),
        ("auto", "//openstack//latest/meta_data.json", False),
        ("503", "/openstack/latest/meta_data.json", True),
        ("close", "/", False),
    ],
)
@pytest.mark.parametrize("error", [AWAY, SLOW, BackendError(backend="fake", cause="x")])
def test_out_of_time_is_answered_as_the_option_says(
    mode: str, path: str, answered: bool, error: BackendError
) -> None:
    world = World(timeout_answer=mode)
    world.backend.reply = error
    if answered:
        given = world.ask(path)
        assert (given.status, given.headers["retry-after"]) == (503, "2")
    else:
        with pytest.raises(Abandoned) as caught:
            world.ask(path)
        assert caught.value.reason == "timeout"


def test_a_password_that_may_have_been_taken_is_not_to_be_sent_again(world: World) -> None:
    world.backend.reply = SLOW
    assert world.ask(PASSWORD, "POST").status == 504
    world.backend.reply = AWAY
    with pytest.raises(Abandoned):
        world.ask(PASSWORD, "POST")


def test_a_defect_costs_one_request_and_tells_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.backend.reply = RuntimeError("secret words")
    given = world.ask()
    assert given.status == 500
    assert b"secret" not in given.body
    assert INSTANCE in caplog.text


def test_a_guest_that_has_changed_before_is_not_asked_for(world: World) -> None:
    world.registry.set_port(port(instance=OTHER_INSTANCE))
    with pytest.raises(Abandoned) as caught:
        world.ask()
    assert caught.value.reason == "changed"


@pytest.mark.parametrize("reply", [Answer(200, b"secret"), AWAY, RuntimeError("x")])
def test_an_answer_does_not_leave_when_the_guest_changed_meanwhile(
    world: World, reply: Answer | Exception
) -> None:
    world.backend.reply = reply
    world.backend.meanwhile = lambda: world.registry.set_port(port(instance=OTHER_INSTANCE))
    with pytest.raises(Abandoned) as caught:
        world.ask()
    assert caught.value.reason == "changed"


def test_without_its_project_a_guest_waits_until_the_time_is_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World("", needs_project=True)
    assert world.ask(seconds=0.01).status == 503
    assert world.backend.asked == []
    assert "its project is not known" in caplog.text


def test_a_backend_that_needs_no_project_is_asked_without() -> None:
    world = World("")
    assert world.ask().status == 200


def test_a_guest_whose_project_comes_meanwhile_is_answered() -> None:
    world = World("", needs_project=True)
    asking = eventlet.spawn(world.ask)
    let_hub_run()
    assert world.backend.asked == []
    world.registry.set_port(port(project="p1"))
    assert asking.wait().status == 200
    ((_request, identity, _deadline),) = world.backend.asked
    assert identity.project_id == "p1"


def test_a_guest_that_changes_while_it_waits_for_its_project_is_abandoned() -> None:
    world = World("", needs_project=True)
    asking = eventlet.spawn(pytest.raises, Abandoned, world.ask)
    let_hub_run()
    world.registry.set_port(port(instance=OTHER_INSTANCE, project="p2"))
    assert asking.wait().value.reason == "changed"
    assert world.backend.asked == []


def test_a_replaced_backend_answers_from_the_next_request_on(world: World) -> None:
    other = FakeBackend()
    world.application.replace(other, Settings())
    world.ask()
    assert (len(world.backend.asked), len(other.asked)) == (0, 1)


TEXT = st.text(st.characters(max_codepoint=0xFF), max_size=40)


@settings(deadline=None, max_examples=150)
@given(TEXT.map("/".__add__), TEXT, st.sampled_from(["GET", "HEAD", "POST", "PUT", "BREW"]))
@example("/openstack/latest/password", "\xe9", "POST")
@example("/healthz/../latest", "", "GET")
def test_any_request_has_an_answer_and_the_backend_sees_only_sound_ones(
    path: str, query: str, method: str
) -> None:
    world = World()
    given = world.ask(path, method, QUERY_STRING=query)
    assert given.status in (200, 400, 404, 405)
    for request, _identity, _deadline in world.backend.asked:
        assert request.path.isascii()
        assert request.path.isprintable()
        assert request.query.isprintable()
        assert request.method in ("GET", "HEAD", "POST")
