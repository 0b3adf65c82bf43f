"""Requests that do not end should take little."""

from pathlib import Path

import pytest

from tests.host.store import test_floods
from tests.host.store.admin_flood import Flood
from tests.host.store.server import ApiServer
from tests.host.store.test_floods import is_answered

server = test_floods.server

TAKEN = 1 << 20
"""Bytes of a refused request that the kernel's buffers and dfmeta take at most."""


@pytest.mark.parametrize("kind", ["trailers", "trailers of a body", "a refused body"])
def test_little_is_taken_of_a_request_that_does_not_end(tmp_path: Path, kind: str) -> None:
    with ApiServer(f"sqlite:///{tmp_path}/store.db", secured=True) as server:
        with Flood(kind, server.port) as flood:
            flood.wait()
        (accepted,) = flood.accepted
        assert accepted < TAKEN
        assert is_answered(server, "127.0.0.1")
