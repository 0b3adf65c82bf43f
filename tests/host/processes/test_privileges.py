"""A process that has dropped its privileges should have none, and no way to get one."""

import json
import os
import subprocess
import sys

import pytest

from dfmeta.cmd import privileges
from dfmeta.host import accounts

SCRIPT = """
import json, os, resource, sys
from dfmeta.cmd import privileges
privileges.drop("", descriptors=123)
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
try:
    open("/etc/shadow").close()
    read = True
except PermissionError:
    read = False
print(json.dumps({
    "ids": [*os.getresuid(), *os.getresgid()],
    "groups": os.getgroups(),
    "capabilities": [int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")],
    "no_new_privs": status["NoNewPrivs"].strip(),
    "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "read": read,
}))
"""


def test_process_has_no_capability_and_gets_none() -> None:
    assert os.access("/etc/shadow", os.R_OK), "this test needs root"
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True)
    dropped = json.loads(done.stdout)
    assert len(set(dropped["ids"])) == 1
    assert dropped["ids"][0] in accounts.NUMBERS
    assert dropped["groups"] == []
    assert dropped["capabilities"] == [0] * 5
    assert dropped["no_new_privs"] == "1"
    assert not dropped["read"]
    assert dropped["descriptors"] == [123, 123]
    assert dropped["core"] == [0, 0]


TAKEN = """
import os, sys
from dfmeta.cmd import privileges
from dfmeta.host import accounts
number = int(sys.argv[1])
accounts.unused = lambda: accounts.Account(number, number)
privileges.drop("", descriptors=123)
"""


def test_user_id_that_another_process_has_taken_meanwhile_is_refused() -> None:
    number = str(accounts.unused().uid)
    command = [sys.executable, "-c", TAKEN, number]
    user = ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups"]
    subprocess.run(command, check=True)
    with subprocess.Popen([*user, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(b"x")
        other.stdin.flush()
        other.stdout.read(1)  # It is that user now.
        refused = subprocess.run(command, check=False, capture_output=True, text=True)
        other.kill()
    assert f"user id {number} is in use" in refused.stderr


@pytest.mark.parametrize("capability", ["setuid", "setgid", "setpcap"])
def test_process_without_a_capability_ends_with_one_line(capability: str) -> None:
    lacking = ["setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}"]
    refused = subprocess.run(
        [*lacking, sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "give dfmeta-agent CAP_SETUID" in refused.stderr


def test_refusal_of_the_kernel_raises() -> None:
    with pytest.raises(OSError, match="prctl"):
        privileges._prctl(privileges._PR_CAPBSET_DROP, 9999)
