"""The application should hand requests for attachments to the API, and nothing else to it."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import eventlet
import pytest
from eventlet.green import socket

from dfmeta.attach.api import Access, AttachmentApi
from dfmeta.attach.documents import NOT_HERE
from dfmeta.errors import BadRequestError
from dfmeta.http.exchange import Abandoned, Exchange
from dfmeta.http.sockets import limit_hops
from dfmeta.identity.registry import Claim, Registry
from dfmeta.model import Endpoint, GuestRequest
from dfmeta.proxy.application import Application, AppSettings
from dfmeta.proxy.attachments import AttachmentResponder, LocalAttachments, is_ours
from dfmeta.proxy.engines.workers.calls import RemoteAttachments, WorkerAnswers
from dfmeta.proxy.engines.workers.pipe import Pipe
from dfmeta.proxy.rate import RateLimiter, RateSettings, Window
from dfmeta.proxy.tokens import Tokens
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import Complaints
from tests.core.unit.attach.vm_side import BODY, DOCUMENT, PATH, PORT, FakeEngine, Side
from tests.core.unit.support import AMPLE, claim_of
from tests.core.unit.test_application import FakeBackend

HERE = Endpoint(4)
TTL = {"x-dfmeta-token-ttl-seconds": "60"}
FEW = RateSettings(enabled=True, base=Window(1, 1000), burst=Window(1, 1000), tolerated=0)


class World:
    """An allowed VM, the application and the API, in one process or in two."""

    def __init__(self, *, worker: bool = False, enabled: bool = True) -> None:
        self.side = Side()
        self.engine: FakeEngine = self.side.engine
        self.api: AttachmentApi = self.side.api
        self.registry = Registry()
        self.registry.set_port(PORT)
        self.claim = claim_of(self.registry, HERE)
        self.backend = FakeBackend()
        self.hops: list[int] = []
        self.local = LocalAttachments(self.api, self.registry)
        attachments: AttachmentResponder | None = self.local if enabled else None
        if worker:
            complaints = Complaints(logging.getLogger("daemon"))
            self.answers = WorkerAnswers(
                self.backend, lambda _identity: [], RateLimiter(FEW), complaints, self.local
            )
            one, other = socket.socketpair()
            self.near, self.far = Pipe(one), Pipe(other)
            self.threads = [
                eventlet.spawn(self.near.run, self.answers.functions()),
                eventlet.spawn(self.far.run, {}),
            ]
            attachments = RemoteAttachments(self.far, quota=10)
        self.application = Application(
            self.registry,
            self.backend,
            AppSettings(),
            tokens=Tokens(bytes(32)),
            rates=RateLimiter(FEW),
            complaints=Complaints(logging.getLogger("dfmeta.proxy")),
            attachments=attachments,
        )

    def exchange(self, request: GuestRequest, **values: Any) -> Exchange[Claim]:
        fields: dict[str, Any] = {
            "claim": self.claim,
            "deadline": clock.now() + AMPLE,
            "acquire": lambda _deadline: True,
            "read": lambda _most: b"",
            "limit_hops": self.hops.append,
            "source_port": 700,
        }
        return Exchange(request=request, **fields | values)

    def ask(
        self, method: str, path: str, body: bytes = b"", *, source: int = 700, **headers: str
    ) -> tuple[int, bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named |= {"content-length": str(len(body))} if body else {}
        request = GuestRequest(method, path, headers=named)
        return self.answer(request, read=lambda most: body[:most], source_port=source)

    def answer(self, request: GuestRequest, **values: Any) -> tuple[int, bytes]:
        answer = self.application.answer(self.exchange(request, **values))
        return answer.status, answer.body

    def token(self) -> str:
        status, token = self.ask("PUT", "/dfmeta/v1/token", **TTL)
        assert status == 200
        return token.decode()


@pytest.fixture(params=[False, True], ids=["daemon", "worker"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(worker=request.param)
    yield made
    for thread in made.threads if request.param else ():
        thread.kill()


def test_path_is_of_the_api_in_any_spelling() -> None:
    api_paths = ("/dfmeta", "/dfmeta/", "//dfmeta/v1/token", "/%64fmeta/v1")
    # Another server may resolve these.
    odd = ("/dfmeta/v1/attachments/..%2fx", "/x/../dfmeta/v1", "/x/%2e%2e/%64fmeta", "/dfmeta/%00")
    for path in (*api_paths, *odd):
        assert is_ours(path), path
    for path in ("/dfmetas", "/latest/dfmeta", "/latest/../dfmetas", "/%", "/"):
        assert not is_ours(path), path


def test_without_the_api_its_paths_are_404() -> None:
    world = World(enabled=False)
    for method in ("GET", "PUT", "DELETE"):
        assert world.ask(method, "/dfmeta/v1/token", **TTL) == (404, NOT_HERE.body)
        world.application._rates.forget(HERE)
    assert world.backend.asked == []


def test_no_path_of_the_api_reaches_the_backend(world: World) -> None:
    for path in ("/dfmeta/v1/attachments/..%2f..%2fetc/eth0", "/x/../dfmeta/v1/attachments"):
        assert world.ask("GET", path)[0] == 404, path
        world.application._rates.forget(HERE)
    assert world.backend.asked == []


def test_each_answer_leaves_with_one_hop(world: World) -> None:
    token = world.token()
    assert world.hops == [1]
    status, document = world.ask("GET", f"/dfmeta/v1{PATH}", x_dfmeta_token=token)
    assert (status, json.loads(document)) == (200, DOCUMENT)
    body = json.dumps(BODY).encode()
    status, document = world.ask("PUT", f"/dfmeta/v1{PATH}", body, x_dfmeta_token=token)
    assert (status, json.loads(document)) == (201, DOCUMENT)
    assert world.ask("DELETE", f"/dfmeta/v1{PATH}", x_dfmeta_token=token) == (204, b"")
    assert world.hops == [1] * 4
    assert world.backend.asked == []


def test_an_unprivileged_port_is_refused(world: World) -> None:
    status, answer = world.ask("PUT", "/dfmeta/v1/token", source=1024, **TTL)
    assert (status, json.loads(answer)["error"]) == (403, "not_privileged")
    status, answer = world.ask("PUT", "/dfmeta/v1/token", x_forwarded_for="10.0.0.1", **TTL)
    assert (status, json.loads(answer)["error"]) == (403, "forwarded")


def test_rates_of_the_metadata_count_only_guests_that_are_not_allowed(world: World) -> None:
    for _ in range(5):
        world.token()
    world.api.access = Access()
    assert world.ask("PUT", "/dfmeta/v1/token", **TTL)[0] == 404
    assert world.ask("PUT", "/dfmeta/v1/token", **TTL)[0] == 429


def test_lists_of_attachments_count_as_any_request(world: World) -> None:
    token = world.token()
    for path in ("/dfmeta/v1/attachments", "/dfmeta/v1/status", "/dfmeta/v1//attachments/"):
        assert world.ask("GET", path, x_dfmeta_token=token)[0] == 200, path
        assert world.ask("HEAD", path, x_dfmeta_token=token)[0] == 429, path
        world.application._rates.forget(HERE)
    turns: list[float] = []
    request = GuestRequest("GET", "/dfmeta/v1/status", headers={"x-dfmeta-token": token})
    assert world.answer(request, acquire=turns.append)[0] == 503
    assert len(turns) == 1


def test_a_body_that_is_too_large_is_413(world: World) -> None:
    def read(most: int) -> bytes:
        assert most == 8192
        raise BadRequestError(status=413, reason="body", cause="too large")

    headers = {"x-dfmeta-token": world.token(), "content-length": "9999"}
    request = GuestRequest("PUT", f"/dfmeta/v1{PATH}", headers=headers)
    status, answer = world.answer(request, read=read)
    assert (status, json.loads(answer)["error"]) == (413, "too_large")

    def late(most: int) -> bytes:
        raise BadRequestError(status=408, reason="body_timeout", cause="late")

    with pytest.raises(BadRequestError):
        world.answer(request, read=late)


def test_a_guest_that_changes_while_the_engine_works_gets_no_answer(world: World) -> None:
    token = world.token()
    registry, port = world.registry, PORT

    def wait(_port: object) -> int:
        registry.remove_port(port.id)
        return 0

    world.api._wait = wait
    with pytest.raises(Abandoned):
        world.ask("GET", f"/dfmeta/v1{PATH}", x_dfmeta_token=token)
    # And before it is asked.
    request = GuestRequest("GET", f"/dfmeta/v1{PATH}")
    with pytest.raises(Abandoned):
        world.local.answer(world.exchange(request))
    assert not world.local.allows(world.claim)
    assert not world.local.allows_at(HERE)
    assert world.local.of_worker(HERE, world.claim.identity.incarnation, request, 700) is None


def test_worker_whose_daemon_is_silent_answers_503() -> None:
    near, _other = socket.socketpair()
    silent = RemoteAttachments(Pipe(near), quota=10)
    world = World()
    exchange = world.exchange(GuestRequest("GET", "/dfmeta/v1/status"), deadline=0)
    assert not silent.allows(world.claim)
    for answer in (silent.refuse(exchange), silent.answer(exchange)):
        assert answer is not None
        assert (answer.status, dict(answer.headers)["Retry-After"]) == (503, "2")
    assert silent.quota == 10


def test_the_hop_limit_is_that_of_the_sockets_family() -> None:
    import socket as plain

    with plain.socket() as sock:
        limit_hops(sock, 1)
        assert sock.getsockopt(plain.IPPROTO_IP, plain.IP_TTL) == 1
    with plain.socket(plain.AF_INET6) as sock:
        limit_hops(sock, 1)
        assert sock.getsockopt(plain.IPPROTO_IPV6, plain.IPV6_UNICAST_HOPS) == 1
    with plain.socket(plain.AF_UNIX) as sock, pytest.raises(OSError, match="no hop limit"):
        limit_hops(sock, 1)
