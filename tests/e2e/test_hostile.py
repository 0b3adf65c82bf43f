"""A guest that takes all it can get takes it from itself."""

from __future__ import annotations

import contextlib

from dfmeta.proxy.server import CONNECTIONS_PER_GUEST
from tests.e2e.support import asks_own, open_connection, put
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.poll import wait_for

BEYOND = 20


def test_connections_without_end_are_cut_for_the_guest_that_opens_them(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent()
    greedy, other = (make_guest(name) for name in ("greedy", "other"))
    for guest in (greedy, other):
        put(agent, guest)
        asks_own(guest)

    def cut() -> float:
        return agent.metric("dfmeta_closed_connections_total", reason="too_many")

    with contextlib.ExitStack() as opened:
        for _ in range(CONNECTIONS_PER_GUEST + BEYOND):
            # The kernel may tell of the cut before it tells of the connection.
            with contextlib.suppress(ConnectionResetError):
                opened.enter_context(open_connection(greedy))
        wait_for(lambda: cut() == BEYOND, 5, "what is too much to be cut")
        asks_own(other)
        assert greedy.curl("/latest/meta-data/instance-id").status == 0
        assert cut() == BEYOND + 1

    def served() -> bool:
        return greedy.curl("/latest/meta-data/instance-id").status == 200

    wait_for(served, 5, "the guest to be served again")
