"""What the tests of upstream look-up share: an upstream store in this process, and its answers."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network
from typing import Any
from urllib.parse import urlsplit

import pytest

from dfmeta.errors import LookupAwayError, StoreError
from dfmeta.http.client import UrlRequest
from dfmeta.http.responses import HttpResponse
from dfmeta.store.db.record import Kind, Record, parse_document
from dfmeta.store.db.repository import Repository
from dfmeta.store.lookup.puller import Lifetimes, Puller
from dfmeta.store.lookup.upstream import Patience, Upstream
from tests.core.unit.support import INSTANCE
from tests.harness import records

ADDRESS = IPv4Address("10.1.2.3")
METADATA = f"/device-metadata/{INSTANCE}"
USERDATA = f"/device-userdata/{INSTANCE}"
METADATA_OF = f"/device-metadata?ip_address={ADDRESS}"
USERDATA_OF = f"/device-userdata?ip_address={ADDRESS}"
SCRIPT = "#!/bin/sh\n"
AWAY = LookupAwayError(upstream="upstream", cause="connection refused", whole=True)
LATE = LookupAwayError(upstream="upstream", cause="no answer in time")


def reply(content: object, *, status: int = 200, kind: str = "application/json") -> HttpResponse:
    """Return an answer; *content* is written as JSON unless it is bytes."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return HttpResponse(status, (("content-type", kind),), body)


NOT_FOUND = reply({"message": "resource not found"}, status=404)
BROKEN = reply({"message": "internal error"}, status=500)
NONSENSE = reply(b"<html>")


@dataclass(frozen=True)
class Asked:
    """A request."""

    target: str
    headers: dict[str, str]
    body: str
    deadline: float


class OtherStore:
    """Another store in the place of an HTTP client: ``answer`` returns or raises each answer."""

    url = "http://upstream.example.org"

    def __init__(self) -> None:
        self.answers: dict[str, HttpResponse] = {}
        self.answer: Callable[[Asked], HttpResponse | StoreError] = self.known
        self.asked: list[Asked] = []

    def known(self, request: Asked) -> HttpResponse | StoreError:
        """Answer from ``answers``, else 404."""
        return self.answers.get(request.target, NOT_FOUND)

    def always(self, answer: HttpResponse | StoreError) -> None:
        """Give the same answer to each request."""
        self.answer = lambda _request: answer

    def handle_request(self, request: UrlRequest) -> HttpResponse:
        """See :class:`dfmeta.http.client.HttpClient`."""
        url = urlsplit(request.url)
        target = f"{url.path}?{url.query}" if url.query else url.path
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = (request.body or b"").decode()
        asked = Asked(target, headers, body, request.deadline)
        self.asked.append(asked)
        answer = self.answer(asked)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def targets(self) -> list[str]:
        """Return the targets of all requests, in their order, and forget them."""
        targets = [request.target for request in self.asked]
        self.asked.clear()
        return targets


@pytest.fixture
def store() -> OtherStore:
    return OtherStore()


Build = Callable[..., Puller]


@pytest.fixture
def build(repository: Repository, store: OtherStore) -> Iterator[Build]:
    def build(
        *, negative: float = 10, expiry: float = 0, retries: int = 0, timeout: float = 60
    ) -> Puller:
        client: Any = store
        upstream = Upstream(store.url, client=client, patience=Patience(timeout, retries))
        return Puller(repository, upstream, lifetimes=Lifetimes(negative, expiry))

    return build


def metadata(hostname: str = "a", *, of: str = INSTANCE, **members: object) -> HttpResponse:
    document = {"id": of, "hostname": hostname}
    return reply({"id": of, "ipAddresses": [f"{ADDRESS}/28"], "metadata": document, **members})


def userdata(text: str = SCRIPT, *, of: str = INSTANCE, **members: object) -> HttpResponse:
    return reply({"id": of, "ipAddresses": [str(ADDRESS)], "userdata": text, **members})


def hostname(record: Record | None) -> object:
    assert record is not None
    return parse_document(record.id, record.metadata).get("hostname")


def content(record: Record | None) -> bytes | None:
    """Return the user-data of a record that exists."""
    assert record is not None
    return record.userdata


def numbered(number: int) -> str:
    return f"6f1c2b5e-3a44-4a55-9d0e-{number:012x}"


def push(repository: Repository, name: str, *networks: str) -> None:
    records.push(
        repository,
        Kind.METADATA,
        INSTANCE,
        content={"hostname": name},
        networks=[ip_network(network) for network in networks],
    )
