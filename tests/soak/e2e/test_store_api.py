"""A back-up and a restore should fail no request."""

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.poll import wait_for
from tests.host.e2e.support import put

PATH = "/latest/meta-data/local-hostname"


def test_backup_and_restore_fail_nothing(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    agent, guest = make_agent(), make_guest("web")
    put(agent, guest, hostname="before")
    file = str(agent.folder / "back-up.db")
    assert agent.ctl("store", "backup", file).stdout == f"{file}: 1 record\n"
    put(agent, guest, hostname="after")
    batch = guest.start_many(1_000_000, path=PATH, interval=0.02)
    agent.ctl("store", "restore", file)
    wait_for(lambda: guest.curl(PATH).text == "before", "the store that was restored")
    samples = batch.finish()
    assert {(sample.status, sample.body) for sample in samples} == {
        (200, b"after"),
        (200, b"before"),
    }
    # A store that is lost comes back under the daemon, too.
    (agent.state_path / "store.db").write_bytes(b"damaged" * 4096)
    agent.ctl("store", "restore", file)
    wait_for(lambda: guest.curl(PATH).text == "before", "the store that was restored")
