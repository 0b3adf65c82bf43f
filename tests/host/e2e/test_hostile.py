"""Connections without end are cut for the guest that opens them."""

import contextlib

from dfmeta.proxy.limits import Limits
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.poll import wait_for
from tests.host.e2e.support import asks_own, open_connection, put

BEYOND = 20
ALLOWED = Limits().connections_per_port + Limits().waiting_per_port


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
        for _ in range(ALLOWED + BEYOND):
            # The kernel may tell of the cut before it tells of the connection.
            with contextlib.suppress(ConnectionResetError):
                opened.enter_context(open_connection(greedy))
        wait_for(lambda: cut() == BEYOND, "what is too much to be cut")
        asks_own(other)
        assert greedy.curl("/latest/meta-data/instance-id").status == 0
        assert cut() == BEYOND + 1

    def served() -> bool:
        return greedy.curl("/latest/meta-data/instance-id").status == 200

    wait_for(served, "the guest to be served again")
