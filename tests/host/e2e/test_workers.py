"""Workers: without rights, told the identities of guests, and replaced when they end."""

import contextlib
import functools
import os
import signal
from pathlib import Path

import pytest

from dfmeta.host.accounts import NUMBERS
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, uuid_of
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import (
    META_DATA,
    NOVA_OPTIONS,
    asks_own,
    children,
    project_ids,
    put,
    put_nova,
    served,
    status_of,
    uuid_in,
)
from tests.host.e2e.test_ofports import PATIENCE, swap

pytestmark = pytest.mark.early

TWO = {"df_metadata": {"proxy_workers": 2}}


def workers(agent: Agent) -> list[int]:
    """Process ids of a daemon's workers."""
    return [pid for pid in children(agent.pid) if b"dfmeta.cmd.worker" in cmdline(pid)]


def uid_of(pid: int) -> int:
    """The user id of a process that has become another user for good; 0: it has not."""
    uids = set(status_of(pid)["Uid"].split())
    return int(uids.pop()) if len(uids) == 1 else 0


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def opened(pid: int) -> list[str]:
    """The kinds of a process' open files (proc(5), fd); one that closes meanwhile is left out."""
    kinds = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            kinds.append(os.readlink(path))
    return kinds


def sockets(pid: int) -> list[str]:
    return [kind for kind in opened(pid) if kind.startswith("socket:")]


def with_both(agent: Agent) -> Agent:
    """The daemon serves with the first of two, while the other one may still begin."""
    wait_for(
        lambda: len({uid for worker in workers(agent) if (uid := uid_of(worker))}) == 2, "both"
    )
    return agent


def asking(agent: Agent, make_guest: MakeGuest) -> Guest:
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)
    return guest


@pytest.fixture
def agent(make_agent: MakeAgent) -> Agent:
    return with_both(make_agent(TWO))


@pytest.fixture
def guest(agent: Agent, make_guest: MakeGuest) -> Guest:
    return asking(agent, make_guest)


def test_a_worker_may_do_nothing_but_answer(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    agent = with_both(make_agent(TWO))
    guest = asking(agent, make_guest)
    mine = workers(agent)
    assert len(mine) == 2
    assert os.getpriority(os.PRIO_PROCESS, agent.pid) < 0
    for pid in mine:
        assert os.getpriority(os.PRIO_PROCESS, pid) == 0, "the daemon goes first"
        status = status_of(pid)
        assert uid_of(pid) in NUMBERS
        assert set(status["Gid"].split()) == set(status["Uid"].split())
        assert status["Groups"] == ""
        assert {int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {
            0
        }
        assert status["NoNewPrivs"] == "1"
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert "Max core file size        0" in limits
        # Two listeners and two to the daemon; the guest's connection ends after its answer.
        wait_for(lambda pid=pid: len(sockets(pid)) == 4, "no other sockets")
        others = {kind for kind in opened(pid) if not kind.startswith(("socket:", "anon_inode:"))}
        assert others <= {"/dev/null", str(agent.stderr)}
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "sqlalchemy" not in maps, "no store"
    asks_own(guest)


def test_no_secret_is_on_a_workers_command_line_or_in_its_environment(
    make_agent: MakeAgent, nova: RecordingNova, make_guest: MakeGuest
) -> None:
    options = {**NOVA_OPTIONS, "df_metadata": {"backend": "nova", "proxy_workers": 1}}
    agent = make_agent(options)
    guest = make_guest("one", ids=project_ids("one"))
    put_nova(nova, guest)
    asks_own(guest)
    (pid,) = workers(agent)
    for file in ("cmdline", "environ"):
        assert SECRET.encode() not in Path(f"/proc/{pid}/{file}").read_bytes()


def lost(agent: Agent, reason: str) -> float:
    return agent.metric("dfmeta_workers_lost_total", reason=reason)


def test_a_late_worker_answers_no_guest_by_an_old_identity(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent({"df_metadata": {"proxy_workers": 1}})
    guest, other = make_guest("one"), make_guest("two")
    put(agent, guest)
    put(agent, other)
    asks_own(guest)
    successor = uuid_of("successor")
    agent.put(successor, "successor")
    (late,) = workers(agent)
    learned = agent.metric("dfmeta_packet_ins_total", outcome="learned")
    os.kill(late, signal.SIGSTOP)
    try:
        guest.set_external_ids(**{"vm-uuid": successor})
        batches = [guest_.start_many(1, path=META_DATA) for guest_ in (guest, other)]
        wait_for(
            lambda: agent.metric("dfmeta_packet_ins_total", outcome="learned") == learned + 2,
            "both first SYNs",
        )
    finally:
        if late in workers(agent):
            os.kill(late, signal.SIGCONT)
    result = [
        (sample.status, uuid_in(sample.body)) for batch in batches for sample in batch.samples()
    ]
    assert result == [(200, successor), (200, other.instance_id)]
    assert lost(agent, "full") == 0


def test_no_worker_answers_by_a_number_before_the_daemon_knows_of_its_exchange(
    host: OpenvSwitch, nova: RecordingNova, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    make = functools.partial(make_guest, mac="fa:16:3e:00:00:07")
    options = {**NOVA_OPTIONS["df_metadata"], "engine": "wsgi", "proxy_workers": 1}
    agent = make_agent({**NOVA_OPTIONS, "df_metadata": options})
    twins = [make(name, ids=project_ids(name)) for name in ("one", "two")]
    for guest in twins:
        put_nova(nova, guest)
        guest.forget_neighbours()
        asks_own(guest)
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        swap(host, *twins)
        replies = [guest.curl(META_DATA, timeout=PATIENCE) for guest in twins]
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    assert [reply.body for reply in replies] == [b"", b""]
    for guest in twins:
        wait_for(lambda guest=guest: served(guest), f"{guest.name} to be served")
        asks_own(guest)


def test_a_daemon_that_is_killed_takes_its_workers_with_it(agent: Agent, guest: Guest) -> None:
    mine = workers(agent)
    agent.kill()
    wait_for(lambda: not any(cmdline(pid) for pid in mine), "the workers to end")
    agent.start()
    asks_own(guest)


def test_sighup_has_others_take_over_and_no_request_is_lost(agent: Agent, guest: Guest) -> None:
    before = workers(agent)
    batch = guest.start_many(400, path=META_DATA)
    agent.configure({"guest_limits": {"header_lines_max": 8}})
    agent.signal(signal.SIGHUP)
    wait_for(lambda: not set(workers(agent)) & set(before), "the workers to be others")
    assert len(workers(agent)) == 2
    assert [sample.status for sample in batch.samples()] == [200] * 400
    many = [option for n in range(9) for option in ("-H", f"X-{n}: 1")]
    assert guest.curl(META_DATA, *many).status == 431
    # Of the workers that have ended as well, each once.
    page = agent.admin("/").text
    for name, words in (("requests", "requests"), ("first_answers", "first answers")):
        count = agent.metric(f"dfmeta_{name}_total")
        assert f'<tspan class="count">{count:,.0f}</tspan> {words}</text>' in page
    assert (count, agent.metric("dfmeta_failed_requests_total")) == (1, 0)
