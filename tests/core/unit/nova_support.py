"""What the tests of Nova's backend share."""

import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dfmeta import metrics
from dfmeta.model import Answer, GuestRequest, HttpHost, Identity
from dfmeta.proxy.backends import nova
from dfmeta.proxy.backends.nova import NovaBackend
from dfmeta.proxy.backends.nova_requests import NovaSettings
from dfmeta.runtime import clock
from tests.core.unit.support import AMPLE, INSTANCE, OTHER_INSTANCE, PROJECT
from tests.core.unit.upstream import Upstream

SECRET = b"a secret"
IDENTITY = Identity(INSTANCE, PROJECT, "port-1", "tap1", incarnation=1)
OTHER = Identity(OTHER_INSTANCE, PROJECT, "port-2", "tap2", incarnation=2)
SIGNATURE = hmac.new(SECRET, INSTANCE.encode(), hashlib.sha256).hexdigest()
PASSWORD = GuestRequest("POST", "/openstack/latest/password", body=b"cipher", guest_ip="10.0.0.5")


@pytest.fixture
def upstreams() -> Iterator[Callable[..., Upstream]]:
    """Starts servers that go with the test."""
    made: list[Upstream] = []

    def start(*args: Any, **options: Any) -> Upstream:
        made.append(Upstream(*args, **options))
        return made[-1]

    yield start
    for server in made:
        server.stop()


@pytest.fixture
def upstream(upstreams: Callable[..., Upstream]) -> Upstream:
    return upstreams()


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., NovaBackend]]:
    """Makes the backend for some servers; options as :class:`NovaSettings` has them."""
    monkeypatch.setattr(nova, "REST", 1000.0)
    made: list[NovaBackend] = []

    def build(*hosts: Upstream | HttpHost, **options: Any) -> NovaBackend:
        where = tuple(host.host if isinstance(host, Upstream) else host for host in hosts)
        made.append(NovaBackend(NovaSettings(where, SECRET, **options)))
        return made[-1]

    yield build
    for server in made:
        server.close()


@pytest.fixture
def one_round(monkeypatch: pytest.MonkeyPatch, backend: object) -> None:
    """Have each server be tried once: there is no time for the pause before the next round."""
    del backend  # it sets another pause
    monkeypatch.setattr(nova, "FIRST_PAUSE", 1000.0)


def get(path: str = "/openstack/latest/meta_data.json", **fields: Any) -> GuestRequest:
    return GuestRequest("GET", path, guest_ip="10.0.0.5", **fields)


def ask(
    backend: NovaBackend,
    request: GuestRequest | None = None,
    seconds: float = AMPLE,
    *,
    identity: Identity = IDENTITY,
) -> Answer:
    return backend.answer(request or get(), identity, deadline=clock.now() + seconds)


def nowhere() -> HttpHost:
    gone = Upstream()
    gone.stop()
    return gone.host


def answering(head: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Counted:
    """How much a counter of the daemon's has grown since the test began."""

    def __init__(self, name: str) -> None:
        self._name = f"dfmeta_backend_{name}_total"
        self._before = self._values()

    def _values(self) -> dict[str, float]:
        return {
            next(iter(sample.labels.values())): sample.value
            for family in metrics.REGISTRY.collect()
            for sample in family.samples
            if sample.name == self._name
        }

    def grown(self) -> dict[str, int]:
        """By label, those that have."""
        grown = {key: int(v - self._before.get(key, 0)) for key, v in self._values().items()}
        return {key: value for key, value in grown.items() if value}
