"""A back-up and a restore should fail no request."""

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.postgres import Postgres
from tests.host.e2e.support import asks_own, put

PATH = "/latest/meta-data/local-hostname"


def test_a_back_up_and_a_restore_fail_no_request(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent, guest = make_agent(), make_guest("web")
    put(agent, guest, hostname="before")
    file = str(agent.folder / "back-up.db")
    assert agent.ctl("store", "backup", file).stdout == f"{file}: 1 record\n"
    put(agent, guest, hostname="after")
    batch = guest.start_many(1_000_000, path=PATH, interval=0.02)
    agent.ctl("store", "restore", file)
    wait_for(lambda: guest.curl(PATH).text == "before", "the store that was restored")
    samples = batch.finish()
    assert {(one.status, one.body) for one in samples} == {(200, b"after"), (200, b"before")}
    # A store that is lost comes back under the daemon, too.
    (agent.state_path / "store.db").write_bytes(b"damaged" * 4096)
    agent.ctl("store", "restore", file)
    wait_for(lambda: guest.curl(PATH).text == "before", "the store that was restored")


def test_a_lost_database_is_missing_in_readiness_until_it_is_back(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    with Postgres(address="127.0.0.1", namespace=host.namespace) as server:
        agent, guest = make_agent({"store": {"connection": server.create_database()}}), make_guest()
        put(agent, guest)
        asks_own(guest)
        server.kill()
        answer = agent.admin("/healthz/readiness")
        assert (answer.status, answer.json()) == (503, {"status": "DOWN", "missing": ["store"]})
        assert guest.curl("/latest/meta-data/instance-id").status == 503
        server.start()
        wait_for(agent.ready, "the store to be back")
        asks_own(guest)
        agent.stop()
