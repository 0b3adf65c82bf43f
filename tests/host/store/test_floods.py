"""A client of the admin listener should keep no other client from it, and take no more than a
share of the daemon."""

import http.client
from collections.abc import Iterator

import pytest

from tests.harness.poll import DEADLINE, wait_for
from tests.host.store.admin_flood import SILENT, Flood, room_for
from tests.host.store.server import ApiServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    room_for(SILENT)
    url = f"sqlite:///{tmp_path_factory.mktemp('flooded')}/store.db"
    with ApiServer(url, secured=True) as served:
        yield served
        assert served.complaints() == ""


def is_answered(server: ApiServer, peer: str) -> bool:
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.port, timeout=DEADLINE, source_address=(peer, 0)
    )
    try:
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        return (response.status, response.read()) == (200, b'{"status": "UP"}')
    except ConnectionResetError:
        # For a moment there were a thousand of its peer that were no longer silent.
        return False
    finally:
        connection.close()


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.0.0.2"], ids=["of its peer", "of another"])
@pytest.mark.parametrize("kind", ["pipelined metrics", "connections", "half a request", "no body"])
def test_a_flood_keeps_no_other_client_from_its_answer(
    server: ApiServer, kind: str, peer: str
) -> None:
    with Flood(kind, server.port) as flood:
        assert flood.begun.wait(DEADLINE)
        wait_for(lambda: is_answered(server, peer), "an answer")


def test_silent_connections_of_many_peers_keep_no_client_out(server: ApiServer) -> None:
    peers = tuple(f"127.0.1.{number}" for number in range(1, 201))
    with Flood("silent connections", server.port, peers=peers) as flood:
        assert flood.begun.wait(DEADLINE)
        assert is_answered(server, "127.0.0.1")
