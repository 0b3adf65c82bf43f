"""A back-up and a restore should be nothing that a guest notices but by what it is told."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.harness.poll import wait_for
from tests.host.e2e.support import put

PATH = "/latest/meta-data/local-hostname"


def hostname(guest: Guest) -> str:
    reply = guest.curl(PATH)
    assert reply.status == 200, reply
    return reply.text


@pytest.mark.parametrize("workers", [0, 1])
def test_a_guest_that_asks_all_the_time_is_answered_from_before_or_after(
    make_agent: MakeAgent, make_guest: MakeGuest, workers: int
) -> None:
    agent, guest = make_agent({"df_metadata": {"proxy_workers": workers}}), make_guest("web")
    pid = agent.pid
    put(agent, guest, hostname="before")
    file = str(agent.folder / "back-up.db")
    assert agent.ctl("store", "backup", file).stdout == f"{file}: 1 record\n"
    put(agent, guest, hostname="after")
    stop, replies = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            replies.append(guest.curl(PATH))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        wait_for(lambda: replies, "the first answer")
        for _ in range(3):
            agent.ctl("store", "restore", file)
            assert hostname(guest) == "before"
            put(agent, guest, hostname="after")
            assert hostname(guest) == "after"
    finally:
        stop.set()
        thread.join()
    assert {(reply.status, reply.text) for reply in replies} <= {(200, "before"), (200, "after")}
    assert agent.pid == pid
    assert agent.running


def harm(path: Path, how: str) -> None:
    if how == "gone":
        for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            name.unlink(missing_ok=True)
    else:
        path.write_bytes(b"damaged" * 4096)


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_store_that_is_lost_comes_back_under_the_daemon(
    make_agent: MakeAgent, make_guest: MakeGuest, how: str
) -> None:
    agent, guest = make_agent(), make_guest("web")
    put(agent, guest, hostname="before")
    agent.ctl("store", "backup", str(agent.folder / "back-up.db"))
    harm(agent.state_path / "store.db", how)
    agent.ctl("store", "restore", str(agent.folder / "back-up.db"))
    wait_for(lambda: guest.curl(PATH).text == "before", "the store that was restored")
    put(agent, guest, hostname="after")
    assert hostname(guest) == "after"


def test_the_password_and_the_random_seed_are_in_the_back_up(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent, guest = make_agent(), make_guest("web")
    put(agent, guest)
    meta_data, password = "/openstack/latest/meta_data.json", "/openstack/latest/password"
    assert guest.curl(password, data=b"secret").status == 200
    before = guest.curl(meta_data).text
    agent.ctl("store", "backup", str(agent.folder / "back-up.db"))
    agent.ctl("store", "delete", guest.instance_id)
    assert guest.curl(meta_data).status == 404
    agent.ctl("store", "restore", str(agent.folder / "back-up.db"))
    assert (guest.curl(meta_data).text, guest.curl(password).text) == (before, "secret")
    assert "secret" not in agent.log()


def test_a_back_up_that_is_none_changes_nothing(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent, guest = make_agent(), make_guest("web")
    put(agent, guest, hostname="now")
    file = agent.folder / "newer.db"
    agent.ctl("store", "backup", str(file))
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    put(agent, guest, hostname="later")
    done = agent.ctl("store", "restore", str(file), check=False)
    assert done.returncode == 1
    assert "has schema 9999" in done.stderr.splitlines()[-1]
    assert hostname(guest) == "later"


def leftovers(agent: Agent) -> list[str]:
    return [one.name for one in agent.state_path.iterdir() if one.name.startswith(".store")]


def test_nothing_is_left_in_the_folder(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    agent, guest = make_agent(), make_guest("web")
    put(agent, guest)
    agent.ctl("store", "backup", str(agent.folder / "back-up.db"))
    agent.ctl("store", "restore", str(agent.folder / "back-up.db"))
    assert leftovers(agent) == []
    assert (agent.state_path / "store.db").stat().st_mode & 0o777 == 0o600
