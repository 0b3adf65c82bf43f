"""``dfmeta trace``: where a SYN ends, in words, on hosts where it ends there."""

import shlex
from pathlib import Path

import pytest

from tests.harness.agent import Agent, program
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.netns import ROOT
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.host.e2e.support import put
from tests.host.e2e.test_doctor import pretend_nft

pytestmark = pytest.mark.early

LEADS = (
    "The path leads to the proxy and back. The flows were traced on the switch, and the host "
    "answered a SYN of dfmeta-agent's own."
)


@pytest.fixture(autouse=True)
def _filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with an empty packet filter, whatever the test machine has."""
    pretend_nft(tmp_path, {"nftables": []})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def trace(agent: Agent, port: str, status: int, family: int | None = 4) -> str:
    """What it prints; its last line is the verdict.

    :param family: version of IP to trace; None: those that the guest uses.
    """
    options = ("--family", str(family)) if family is not None else ()
    done = agent.ctl("trace", port, *options, check=False)
    assert (done.returncode, done.stderr) == (status, ""), done.stdout
    return done.stdout


def verdict(agent: Agent, port: str, status: int = 1) -> str:
    """The last line."""
    return trace(agent, port, status).splitlines()[-1]


def test_known_address_leads_there_and_back(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    guest, agent = make_guest(), make_agent()
    assert guest.curl("/").status == 404
    text = trace(agent, guest.port, 0)
    head, *steps, end = text.splitlines()
    assert head == (
        f"{guest.port} (ofport {guest.ofport}), instance {guest.instance_id}, "
        f"{guest.ip} {guest.mac}, key 128.0.0.{guest.ofport}"
    )
    result = [step.split(":")[0].split(maxsplit=1) for step in steps if "proxy  " not in step]
    assert result == [
        ["there", "classification"],
        ["there", "metadata service"],
        ["host", "ok"],
        ["back", "classification"],
        ["back", "metadata service reply"],
        ["probe", "a SYN from br-int to 169.254.169.254"],
    ]
    assert f"output:{guest.ofport}" in steps[-2]
    # Where the way leads, and what its guest gets there, are two things.
    assert "proxy  the guest gets an answer, and fails: 404 (no record) since" in text
    assert end == LEADS


def test_a_shell_completes_ports_instances_and_names(
    make_agent: MakeAgent, make_guest: MakeGuest, tmp_path: Path
) -> None:
    guest, agent = make_guest(), make_agent()
    put(agent, guest, hostname="web.example.org")
    (tmp_path / "dfmeta").write_text(f'#!/bin/sh\nexec {shlex.join(program("dfmeta"))} "$@"\n')
    (tmp_path / "dfmeta").chmod(0o755)
    script = f""". {ROOT}/etc/completion/dfmeta
        COMP_WORDS=(dfmeta --config-file {agent.config_file} trace "$1") COMP_CWORD=4
        _dfmeta_completion dfmeta; printf "%s\\n" "${{COMPREPLY[@]}}"
    """

    def complete(word: str) -> set[str]:
        done = agent.host.namespace.run(["bash", "-c", script, "bash", word])
        assert done.stderr == ""
        return set(done.stdout.split())

    assert complete("") == {guest.port, guest.instance_id, "web.example.org"}
    assert complete("web") == {"web.example.org"}
    agent.kill()
    assert complete("") == {guest.port, guest.instance_id}, "from the switch"


def test_a_foreign_flow_before_our_hooks_is_named(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    flow = f"cookie=0xbad,priority=400,in_port={guest.ofport},ip,actions=NORMAL"
    host.ofctl("add-flow", BRIDGE, flow)
    end = verdict(agent, guest.port)
    assert end.startswith("Stops in the classification table: another program's flow")
    assert "(cookie 0xbad, priority 400, actions=NORMAL)" in end
    host.ofctl("add-flow", BRIDGE, "cookie=0xbad2,priority=500,tcp,tcp_flags=+syn+ack,actions=drop")
    host.ofctl("del-flows", BRIDGE, "cookie=0xbad/-1")
    end = verdict(agent, guest.port)
    assert end.startswith("On the return path: stops in the classification table:")
    assert "cookie 0xbad2" in end
