"""A guest's request should get its own answer, a clear refusal, or none at all."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import eventlet
import pytest

from dfmeta import metrics
from dfmeta.errors import (
    BackendError,
    BackendTimeoutError,
    BackendUnreachableError,
    BadRequestError,
)
from dfmeta.http.connection import message_of
from dfmeta.http.exchange import Abandoned, Exchange
from dfmeta.identity.numbering import SwitchDevice
from dfmeta.identity.registry import Registry
from dfmeta.model import Answer, AnswerTerms, Endpoint, GuestRequest, Identity, View
from dfmeta.proxy.application import Application, AppSettings
from dfmeta.proxy.rate import RateLimiter, RateSettings, Window
from dfmeta.proxy.recent import REASONS, RECENT, Failure
from dfmeta.proxy.tokens import TokenMode, Tokens
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import Complaints
from tests.core.unit.support import AMPLE, INSTANCE, OTHER_INSTANCE, claim_of, let_hub_run, port

HERE = Endpoint(13)
PASSWORD = "/openstack/latest/password"
TTL = {"x-aws-ec2-metadata-token-ttl-seconds": "60"}
AWAY = BackendUnreachableError(backend="fake", cause="it is away")
SLOW = BackendTimeoutError(backend="fake", cause="it is slow")


class FakeBackend:
    """Answers what a test says, and keeps what it was asked."""

    name = "fake"

    def __init__(self) -> None:
        self.asked: list[tuple[GuestRequest, Identity, float]] = []
        self.reply: Answer | Exception = Answer(200, b"hello", "text/x")
        self.meanwhile: Callable[[], object] = lambda: None
        self.tokens: str | None = ""

    def open(self, request: GuestRequest, identity: Identity, terms: AnswerTerms) -> View:
        def answer() -> Answer:
            self.asked.append((request, identity, terms.deadline))
            self.meanwhile()
            if isinstance(self.reply, Exception):
                raise self.reply
            return self.reply

        return View(self.say(identity), answer)

    def say(self, identity: Identity) -> str | None:
        del identity
        return self.tokens


class Given:
    def __init__(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = int(status.split()[0])
        self.reason = status.partition(" ")[2]
        self.headers = {name.lower(): value for name, value in headers}
        self.body = body


class World:
    """A guest, a backend and the application between them."""

    def __init__(
        self,
        instance_project: str = "p1",
        *,
        rate: RateSettings | None = None,
        ask: Callable[[], int] = lambda: 0,
        **options: Any,
    ) -> None:
        RECENT.forget(HERE)
        self.registry = Registry(ask=ask)
        self.registry.set_port(port(project=instance_project))
        self.claim = claim_of(self.registry)
        self.backend = FakeBackend()
        self.tokens = Tokens(bytes(32))
        self.news: list[Callable[[], object]] = []
        self.at_turn: Callable[[], object] = lambda: None
        self.echoed: Callable[[float], bool] = lambda _deadline: True
        self.application = Application(
            self.registry,
            self.backend,
            AppSettings(**options),
            tokens=self.tokens,
            rates=RateLimiter(rate or RateSettings()),
            complaints=Complaints(logging.getLogger("dfmeta.proxy")),
            drain_switch_messages=self.drain_switch_messages,
            echo=lambda: self.echoed,
        )

    def drain_switch_messages(self) -> None:
        """Stand in for the switch's latest messages: :attr:`news` has what each call changes."""
        if self.news:
            self.news.pop(0)()

    def ask(
        self,
        path: str = "/",
        method: str = "GET",
        *,
        body: bytes = b"",
        seconds: float = AMPLE,
        late: bool = False,
        unread: Any = None,
        **headers: str,
    ) -> Given:
        def acquire(_deadline: float) -> bool:
            self.at_turn()
            return not late

        named = {name.replace("_", "-"): value for name, value in headers.items()}
        path, _mark, query = path.partition("?")
        exchange = Exchange(
            claim=self.claim,
            request=GuestRequest(
                method, path, query=query, headers=named, body=body, guest_ip="10.0.0.5"
            ),
            deadline=clock.now() + seconds,
            acquire=acquire,
            read=(lambda _most: b"") if unread is None else unread.read,
            limit_hops=lambda _hops: None,
        )
        return Given(*message_of(self.application.answer(exchange), bodiless=method == "HEAD"))


@pytest.fixture
def world() -> World:
    return World()


def test_a_guest_gets_the_backends_answer(world: World) -> None:
    world.backend.reply = Answer(200, b"\0\xff", "text/x", headers=(("etag", "abc"),))
    given = world.ask("/latest/meta-data?a=b")
    assert (given.status, given.reason, given.body) == (200, "OK", b"\0\xff")
    assert given.headers == {"content-type": "text/x", "content-length": "2", "etag": "abc"}
    ((request, identity, _deadline),) = world.backend.asked
    assert (request.method, request.path, request.query) == ("GET", "/latest/meta-data", "a=b")
    assert request.guest_ip == "10.0.0.5"
    assert identity.instance_id == INSTANCE


def test_an_answer_has_the_headers_that_its_status_and_body_allow(world: World) -> None:
    for reply, headers in (
        (Answer(200, b"x", ""), {"content-length": "1"}),
        (Answer(200, b"", ""), {"content-length": "0"}),
        (Answer(204, b"", ""), {}),
        (Answer(304, b"", ""), {}),
    ):
        world.backend.reply = reply
        given = world.ask()
        assert (given.status, given.headers, given.body) == (reply.status, headers, reply.body)


ADMIN_PATHS = (
    *("/healthz", "/healthz/readiness", "/ports", "/probe", "/options", "/metrics", "/version"),
    *("/device-metadata", "/device-metadata/x", "/device-userdata"),
    *("/records", "/records/", "/records/x"),
    *("/api/v1/device-metadata", "/api/v1/anything", "/api/v1/metadata/x", "/api/v1/metadatax"),
)
GUEST_PATHS = (
    *("/", "/versions", "/metricsx", "/healthzz", "/device-metadatax", "/recordsx"),
    *("/metadata", "/api/v1/metadata", "/api/v1/userdata/"),
)


def test_admin_paths_are_404_and_similar_paths_are_the_backends(world: World) -> None:
    for path in ADMIN_PATHS:
        for method in ("GET", "POST", "DELETE"):
            assert world.ask(path, method).status == 404, (method, path)
    assert world.backend.asked == []
    for count, path in enumerate(GUEST_PATHS, 1):
        world.ask(path)
        assert len(world.backend.asked) == count, path


def test_other_methods_are_405_with_the_allowed_ones(world: World) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"):
        given = world.ask("/latest/meta-data", method)
        assert (given.status, given.headers["allow"]) == (405, "GET, HEAD"), method
    assert world.backend.asked == []


def test_post_is_allowed_for_the_password_alone(world: World) -> None:
    assert world.ask(PASSWORD, "POST", body=b"cipher").status == 200
    assert world.backend.asked[0][0].body == b"cipher"
    assert world.ask(PASSWORD, "PUT").headers["allow"] == "GET, HEAD, POST"
    assert world.ask("/openstack/latest/x/password", "POST").status == 405


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_each_spelling_of_a_path_is_that_path_for_each_method(world: World, method: str) -> None:
    for path in (f"/{PASSWORD}", f"{PASSWORD}/", "/openstack//latest/%70assword"):
        assert world.ask(path, method).status == 200, path
        assert world.ask(path, "DELETE").headers["allow"] == "GET, HEAD, POST", path
    asked = len(world.backend.asked)
    for path in ("//healthz", "/ports/", "/%70orts", "/api//v1/records", f"/x/..{PASSWORD}"):
        assert world.ask(path, method).status == 404, path
    assert len(world.backend.asked) == asked


def test_a_head_has_the_length_that_is_known_and_no_body(world: World) -> None:
    for reply, length in (
        (Answer(200, b"hello"), "5"),
        (Answer(200, b"", headers=(("content-length", "999"),)), "999"),
        (Answer(200, b""), None),
    ):
        world.backend.reply = reply
        given = world.ask(method="HEAD")
        assert (given.body, given.headers.get("content-length")) == (b"", length)


def test_unregistered_status_is_passed_on(world: World) -> None:
    world.backend.reply = Answer(299)
    assert (world.ask().status, world.ask().reason) == (299, "Unknown")


def test_out_of_time_is_answered_as_the_option_says() -> None:
    for error in (AWAY, SLOW, BackendError(backend="fake", cause="x")):
        for mode, path, answered in (
            ("auto", "/", True),
            ("auto", "/openstack", True),
            ("auto", "/openstack/", True),
            ("auto", "/latest/meta-data", True),
            ("auto", "/openstack/latest/meta_data.json", False),
            ("auto", "//openstack//latest/meta_data.json", False),
            ("503", "/openstack/latest/meta_data.json", True),
            ("close", "/", False),
        ):
            world = World(timeout_answer=mode)
            world.backend.reply = error
            if answered:
                given = world.ask(path)
                assert (given.status, given.headers["retry-after"]) == (503, "2"), (mode, path)
            else:
                with pytest.raises(Abandoned, match="timeout"):
                    world.ask(path)
                assert failures(world)[0].status == 0


def test_password_that_may_have_been_stored_is_504(world: World) -> None:
    world.backend.reply = SLOW
    assert world.ask(PASSWORD, "POST").status == 504
    world.backend.reply = AWAY
    with pytest.raises(Abandoned):
        world.ask(PASSWORD, "POST")


def test_defect_is_500_and_logged_whole(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.backend.reply = RuntimeError("secret words")
    given = world.ask()
    assert given.status == 500
    assert b"secret" not in given.body
    assert INSTANCE in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("reply", [Answer(200, b"secret"), AWAY, RuntimeError("x")])
def test_no_answer_leaves_to_a_changed_guest(world: World, reply: Answer | Exception) -> None:
    world.backend.reply = reply
    world.backend.meanwhile = lambda: world.registry.set_port(port(instance=OTHER_INSTANCE))
    with pytest.raises(Abandoned, match="changed"):
        world.ask()


def test_request_waits_for_the_project() -> None:
    world = World("", needs_project=True)
    asking = eventlet.spawn(world.ask)
    let_hub_run()
    assert world.backend.asked == []
    world.registry.set_port(port(project="p1"))
    assert asking.wait().status == 200
    ((_request, identity, _deadline),) = world.backend.asked
    assert identity.project_id == "p1"


class Unread:
    def __init__(self, content: bytes, seconds: float = 0.0) -> None:
        self.asked = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self._content, self._seconds = content, seconds

    def read(self, _most: int) -> bytes:
        self.asked += 1
        self.meanwhile()
        eventlet.sleep(self._seconds)
        return self._content


class Doubtful(World):
    """The number of the guest's port is in doubt from a moment on; question 1 decides."""

    def __init__(self, moment: str) -> None:
        super().__init__(ask=lambda: 1)
        unread = Unread(b"cipher")
        match moment:
            case "news":
                self.news = [self.doubt]
            case "body":
                unread.meanwhile = self.doubt
            case "turn":
                self.at_turn = self.doubt
            case "answer":
                self.backend.meanwhile = self.doubt
        self.asking = eventlet.spawn(
            self.ask, PASSWORD, "POST", unread=unread, content_length="6", seconds=10
        )
        eventlet.sleep(5)
        assert len(self.backend.asked) == (moment == "answer"), moment
        assert not self.asking.dead

    def doubt(self) -> None:
        self.registry.set_devices({HERE.ofport: SwitchDevice(b"tap1")}, gap=True)


@pytest.mark.parametrize("moment", ["news", "body", "turn", "answer"])
def test_a_request_waits_while_the_number_of_its_port_is_in_doubt(moment: str) -> None:
    world = Doubtful(moment)
    world.registry.answered(1)
    assert world.asking.wait().status == 200
    assert len(world.backend.asked) == 1
    with pytest.raises(Abandoned, match="timeout"):
        Doubtful(moment).asking.wait()
    world = Doubtful(moment)
    world.registry.set_port(port(instance=OTHER_INSTANCE))
    world.registry.answered(1)
    with pytest.raises(Abandoned, match="changed"):
        world.asking.wait()
    assert len(world.backend.asked) == (moment == "answer")


def test_the_switchs_latest_messages_count_before_the_answer_leaves() -> None:
    world = World(ask=lambda: 1)
    after = port(instance=OTHER_INSTANCE)
    world.backend.meanwhile = lambda: world.news.append(lambda: world.registry.set_port(after))
    with pytest.raises(Abandoned, match="changed"):
        world.ask()
    assert len(world.backend.asked) == 1


def test_answer_leaves_only_when_all_until_the_request_is_known() -> None:
    after = port(instance=OTHER_INSTANCE)
    for comes, reason in ((True, "changed"), (False, "timeout")):
        world = World(ask=lambda: 1)

        def echoed(_deadline: float, world: World = world, comes: bool = comes) -> bool:
            if comes:
                world.registry.set_port(after)
            return comes

        world.echoed = echoed
        with pytest.raises(Abandoned, match=reason):
            world.ask()
        assert len(world.backend.asked) == 1, "it is not waited for before"


def test_a_guest_that_changes_while_it_waits_for_its_project_is_abandoned() -> None:
    world = World("", needs_project=True)
    asking = eventlet.spawn(pytest.raises, Abandoned, world.ask)
    let_hub_run()
    world.registry.set_port(port(instance=OTHER_INSTANCE, project="p2"))
    assert asking.wait().value.reason == "changed"
    assert world.backend.asked == []


def test_a_body_is_read_before_the_backend_is_asked(world: World) -> None:
    unread = Unread(b"cipher")
    assert world.ask(PASSWORD, "POST", unread=unread, content_length="6").status == 200
    assert world.backend.asked[0][0].body == b"cipher"
    assert world.ask(PASSWORD, "POST", unread=unread, transfer_encoding="chunked").status == 200
    assert unread.asked == 2


def test_time_of_the_body_extends_the_deadline(world: World) -> None:
    slow = Unread(b"cipher", seconds=5)
    begun = clock.now()
    world.ask(PASSWORD, "POST", unread=slow, seconds=AMPLE, content_length="6")
    ((_request, _identity, deadline),) = world.backend.asked
    assert deadline == pytest.approx(begun + AMPLE + 5)


def test_the_body_of_a_refused_request_is_not_read() -> None:
    world = World(rate=RateSettings(True, base=Window(1, 60), delay_max=0.0, tolerated=0))
    unread = Unread(b"x")
    given = world.ask("/latest/meta-data", "POST", unread=unread, content_length="1")
    assert given.status == 405
    given = world.ask(PASSWORD, "POST", unread=unread, content_length="1")
    assert given.status == 429, "what was refused counts"
    assert unread.asked == 0


def test_malformed_body_raises_to_the_server(world: World) -> None:
    class Wrong(Unread):
        def read(self, most: int) -> bytes:
            raise BadRequestError(status=413, reason="chunks", cause="too many")

    with pytest.raises(BadRequestError):
        world.ask(PASSWORD, "POST", unread=Wrong(b""), content_length="1")


def test_failed_queries_count_among_the_backends_times(world: World) -> None:
    def asked() -> float:
        name, labels = "dfmeta_backend_seconds_count", {"backend": world.backend.name}
        return metrics.REGISTRY.get_sample_value(name, labels) or 0.0

    before = asked()
    world.backend.reply = AWAY
    assert world.ask().status == 503
    with pytest.raises(Abandoned):
        world.ask("/openstack/latest/meta_data.json")
    assert asked() == before + 2
    with pytest.raises(Abandoned):
        world.ask("/openstack/latest/meta_data.json", late=True)
    assert asked() == before + 2, "of a request that the backend was not asked about, nothing"


def test_a_status_counts_in_one_of_four_classes(world: World) -> None:
    for status, shown in ((204, "2xx"), (302, "3xx"), (404, "4xx"), (999, "5xx")):
        labels = {"status": shown, "backend": world.backend.name}
        counted = partial(metrics.REGISTRY.get_sample_value, "dfmeta_requests_total", labels)
        before = counted() or 0
        world.backend.reply = Answer(status)
        world.ask()
        assert counted() == before + 1


def test_a_refused_request_waits_for_no_turn() -> None:
    few = RateSettings(
        enabled=True, base=Window(1, 60), burst=Window(1, 60), delay_max=0.01, tolerated=0
    )
    world = World(rate=few)
    assert world.ask(late=True).status == 503
    assert world.ask(late=True).status == 429


# Through a proxy


def test_a_forwarded_request_is_refused_if_the_option_is_set() -> None:
    for header in ("x-forwarded-for", "x_forwarded_for", "forwarded", "via"):
        refusing, lenient = World(refuse_forwarded=True), World()
        for world, status in ((refusing, 403), (lenient, 200)):
            assert world.ask("/latest/user-data", **{header: "203.0.113.1"}).status == status
        assert (len(refusing.backend.asked), len(lenient.backend.asked)) == (0, 1), header
        assert refusing.ask().status == 200


# Tokens


def test_an_optional_token_has_to_be_valid(world: World) -> None:
    token = world.ask("/latest/api/token", "PUT", **TTL).body.decode()
    assert world.ask().status == 200
    assert world.ask(**{"x-aws-ec2-metadata-token": token}).status == 200
    assert world.ask(**{"x-aws-ec2-metadata-token": token + "A"}).status == 401
    assert len(world.backend.asked) == 2


def test_an_instances_own_token_mode_has_precedence() -> None:
    for configured, recorded, of_instance, status in (
        ("optional", "", None, 200),
        ("required", "", None, 401),
        ("off", "", None, 200),
        ("optional", "required", None, 401),
        ("required", "optional", None, 200),
        ("optional", "", "required", 401),
        ("optional", "off", "required", 401),
        ("required", "required", "off", 200),
    ):
        modes = {INSTANCE: TokenMode(of_instance)} if of_instance else {}
        world = World(http_tokens=TokenMode(configured), http_tokens_of=modes)
        world.backend.tokens = recorded
        assert world.ask("/openstack").status == status, (configured, recorded, of_instance)
        assert len(world.backend.asked) == (status == 200)


def test_a_record_that_needs_the_project_can_require_a_token() -> None:
    class Wary(FakeBackend):
        def say(self, identity: Identity) -> str | None:
            return "required" if identity.project_id else None

    world = World("", needs_project=True)
    world.application.replace(Wary(), AppSettings(needs_project=True))
    asking = eventlet.spawn(world.ask)
    let_hub_run()
    world.registry.set_port(port(project="p1"))
    assert asking.wait().status == 401


def test_unknown_guest_gets_no_token(world: World) -> None:
    world.backend.tokens = None
    assert world.ask("/latest/api/token", "PUT", **TTL).status == 404
    assert world.ask("/latest//api/token/", "PUT", **TTL).status == 404
    assert world.ask("/latest/meta-data", "PUT").status == 405


def test_failed_lookup_of_the_token_mode_is_503(world: World) -> None:
    class Broken(FakeBackend):
        def say(self, identity: Identity) -> str | None:
            raise AWAY

    world.application.replace(Broken(), AppSettings())
    assert world.ask().status == 503


# Rates


def test_a_guest_above_its_rate_is_delayed_and_then_refused() -> None:
    few = RateSettings(
        enabled=True, base=Window(1, 60), burst=Window(1, 60), delay_max=0.01, tolerated=1
    )
    world = World(rate=few)
    assert [world.ask().status for _ in range(3)] == [200, 200, 429]
    assert int(world.ask().headers["retry-after"]) >= 1
    assert len(world.backend.asked) == 2


# What is logged


def test_kinds_of_errors_have_their_remedy(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for reply in (
        BackendUnreachableError(backend="fake", cause="it is away", remedy="Start it"),
        Answer(403, b"no", remark="Mend it"),
        BackendUnreachableError(backend="fake", cause="it is elsewhere", remedy="Look for it"),
    ):
        world.backend.reply = reply
        for _ in range(5):
            world.ask()
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(". ")[-1] for line in lines] == ["Start it", "Mend it", "Look for it"]
    assert all(INSTANCE in line for line in lines)


def test_line_of_a_request_has_no_content(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world.backend.reply = Answer(200, b"confidential", headers=(("x-secret", "confidential"),))
    world.ask(PASSWORD + "?confidential", "POST", body=b"confidential", accept="confidential")
    (line,) = [record.getMessage() for record in caplog.records]
    assert "confidential" not in line
    assert f"{INSTANCE} POST {PASSWORD}: 200, 12 bytes" in line


def failures(world: World) -> list[Failure]:
    """How the guest failed, as its port shows it, the latest first."""
    asked = RECENT.of(HERE, world.claim.identity.incarnation)
    assert asked is not None
    return asked.failures()


def test_a_port_shows_how_its_guest_failed_and_why() -> None:
    odd = BackendError(backend="fake", cause="it is odd", remedy="Mend it")
    wrong = Answer(403, remark="secrets differ")
    for reply, status, reason in (
        (AWAY, 503, "it is away"),
        (odd, 503, "it is odd. Mend it"),
        (wrong, 403, "fake answered 403. secrets differ"),
        (Answer(429), 429, "fake answered 429"),
        (Answer(404), 404, REASONS["document"]),
        (Answer(404, known=False), 404, REASONS["absent"]),
        (RuntimeError("a secret"), 500, REASONS["defect"]),
    ):
        world = World(timeout_answer="503")
        world.backend.reply = reply
        assert world.ask("/openstack/latest/<b>?a=secret").status == status
        failure = failures(world)[0]
        assert (failure.status, failure.path, failure.reason) == (status, "openstack", reason)


def test_a_port_shows_why_dfmeta_refused_its_guest() -> None:
    world = World("", needs_project=True, refuse_forwarded=True)
    assert world.ask("/", seconds=0.01).status == 503
    assert world.backend.asked == []
    assert failures(world)[0].reason == REASONS["project"]
    assert world.ask("/", x_forwarded_for="192.0.2.1").status == 403
    reasons = {failure.reason for failure in failures(world)}
    assert reasons == {REASONS["project"], REASONS["forwarded"]}
