"""Doctor should name another program of an account."""

import subprocess

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.nova import RecordingNova
from tests.host.e2e.test_accounts import WITH_WORKER, account, as_user, served, user_of


def test_doctor_names_another_program_of_the_account(
    nova: RecordingNova, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent(WITH_WORKER)
    _guest, pid = served(agent, nova, make_guest, "dfmeta.cmd.worker")
    assert account(agent)["status"] == "ok"
    with subprocess.Popen(as_user(user_of(pid), "sleep", "infinity")) as other:
        line = account(agent)
        other.kill()
    assert line["status"] == "wrong"
    assert f"sleep (pid {other.pid})" in line["text"]
    assert "[df_metadata] proxy_worker_user" in line["remedy"]
