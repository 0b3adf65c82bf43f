"""No other account of the host should get anything of the processes that answer guests."""

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from dfmeta.host.process import named_sockets
from tests.harness.agent import HAPROXY, Agent, Options
from tests.harness.certificates import Authority
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e import thief
from tests.host.e2e.support import (
    META_DATA,
    NOVA_OPTIONS,
    asks_own,
    children,
    project_ids,
    put_nova,
    status_of,
)

OTHERS = ("65534", "1000")
"""Users of the host: nobody, as dnsmasq may be, and a login."""
WITH_WORKER = {
    **NOVA_OPTIONS,
    "df_metadata": {**NOVA_OPTIONS["df_metadata"], "engine": "wsgi", "proxy_workers": 1},
}
PRIVATE = b"PRIVATE KEY"
PYTHON = ("/usr/bin/python3", "-IS", "-c")
"""Each user may start it, also where the checkout is in a private folder."""


def as_user(uid: str, *command: str) -> list[str]:
    """The command, run as another user without capabilities."""
    user = (f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--bounding-set=-all")
    return ["setpriv", *user, "--", *command]


def taken(uid: str, pid: int, mark: str) -> list[str]:
    """What a process of that user gets of a process."""
    command = as_user(uid, *PYTHON, Path(thief.__file__).read_text(), str(pid), mark)
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/")
    return [str(member) for member in json.loads(done.stdout)]


def user_of(pid: int) -> str:
    """The user id of a process."""
    return status_of(pid)["Uid"].split()[0]


def served(
    agent: Agent, nova: RecordingNova, make_guest: MakeGuest, program: str
) -> tuple[Guest, int]:
    """A guest with its metadata, and the process that has answered it."""
    guest = make_guest("one", ids=project_ids("one"))
    put_nova(nova, guest)
    asks_own(guest)
    (pid,) = (
        child
        for child in children(agent.pid)
        if program in Path(f"/proc/{child}/cmdline").read_text()
    )
    return guest, pid


@pytest.fixture
def tls(host: OpenvSwitch, tmp_path: Path) -> tuple[RecordingNova, Options]:
    """A Nova that requires a client's certificate, and the options of a daemon that has it."""
    authority = Authority(tmp_path)
    client = authority.issue("compute-1")
    nova = RecordingNova(
        host.namespace,
        certificate=authority.issue("localhost"),
        client_authority=authority.certificate,
    )
    default: dict[str, object] = {
        "metadata_proxy_shared_secret": SECRET,
        "nova_metadata_host": "localhost",
        "nova_metadata_protocol": "https",
        "auth_ca_cert": authority.certificate,
        "nova_client_cert": client.certificate,
        "nova_client_priv_key": client.key,
    }
    engine = {"backend": "nova", "engine": "haproxy", "proxy_workers": 0}
    return nova, {"DEFAULT": default, "df_metadata": engine, "haproxy": {"binary": HAPROXY}}


def test_no_other_account_reads_haproxy(
    tls: tuple[RecordingNova, Options], make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    nova, options = tls
    with nova:
        agent = make_agent(options)
        guest, pid = served(agent, nova, make_guest, str(HAPROXY))
        signature = nova.signature(guest.instance_id)
        for uid in OTHERS:
            assert taken(uid, pid, signature) == [], uid
        # The account itself may: that is why no other program has it.
        assert taken(user_of(pid), pid, signature) == [
            "memory",
            "files",
            "environment",
            "descriptor",
        ]
        files = [
            path for path in Path(f"/proc/{pid}/fd").iterdir() if "memfd" in str(path.readlink())
        ]
        assert any("dfmeta-cert" in str(file.readlink()) for file in files)
        assert [file for file in files if PRIVATE in file.read_bytes()] == []
        assert not any(file.lstat().st_mode & 0o222 for file in files), (
            "a descriptor that can write"
        )
        asks_own(guest)


def entrance(pid: int) -> str:
    """The process' descriptor of the listener that haproxy connects to."""
    result = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # It is closed meanwhile.
            if "/handover-" in os.readlink(link):
                result.append(str(link))
    (path,) = result
    return path


KNOCK = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


def connects(uid: str, path: str) -> bool:
    """Whether a process of that user can connect to a socket."""
    command = as_user(uid, *PYTHON, KNOCK, path)
    return subprocess.run(command, check=False, capture_output=True, cwd="/").returncode == 0


def test_no_other_account_connects_where_haproxy_hands_requests_over(
    nova: RecordingNova, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent(
        {
            "DEFAULT": {"metadata_proxy_shared_secret": SECRET},
            "df_metadata": {"backend": "nova", "engine": "haproxy", "proxy_workers": 0},
            "haproxy": {"binary": HAPROXY},
        }
    )
    guest, pid = served(agent, nova, make_guest, str(HAPROXY))
    of_haproxy, of_daemon = entrance(pid), entrance(agent.pid)
    names = {socket_row.name for socket_row in named_sockets(proc=Path(f"/proc/{agent.pid}"))}
    for path in (of_haproxy, of_daemon, *(name for name in names if name.startswith("/proc/"))):
        for uid in OTHERS:
            assert not connects(uid, path), (uid, path)
    assert connects(user_of(pid), of_haproxy), "the account itself may"
    assert list(agent.state_path.glob("handover-*")) == []
    assert guest.curl(f"{META_DATA}?handed=over").status == 200
    assert "Connect() failed" not in agent.log()


def test_no_other_account_reads_a_worker(
    nova: RecordingNova, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent(WITH_WORKER)
    _guest, pid = served(agent, nova, make_guest, "dfmeta.cmd.worker")
    for uid in (*OTHERS, user_of(pid)):
        assert taken(uid, pid, SECRET) == [], uid
