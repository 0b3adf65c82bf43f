"""The way through the host, proved by a SYN of the daemon's own: each fault that drops guests'
frames behind the switch is named by doctor and by readiness, and the guest's curl shows it."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.ovs import UNPACKED, OpenvSwitch
from tests.harness.poll import DEADLINE, wait_for
from tests.harness.programs import path_with
from tests.harness.scheme import SIDE
from tests.host.e2e.support import PROXY_PORT, SILENCE, put

pytestmark = pytest.mark.early

NFT = UNPACKED / "usr/sbin/nft"
TAP = SIDE.tap
SYN_RECV = "03"
"""The state in /proc/net/tcp (Linux, tcp_states.h)."""
CHAIN = "add table inet f; add chain inet f c { type filter hook input priority 0; }; "
INPUT = f"{CHAIN} add rule inet f c tcp dport {PROXY_PORT}"
REFUSED = f"{INPUT} reject with tcp reset"
DROPPED = (
    "add table netdev f; add chain netdev f c { type filter hook ingress device "
    f'"{TAP}" priority 0; policy drop; }}'
)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[OpenvSwitch, Agent, Guest]]:
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        agent = stack.enter_context(Agent(host)).start()
        guest = stack.enter_context(Guest(host))
        put(agent, guest)
        yield host, agent, guest


def path_line(agent: Agent) -> dict[str, Any]:
    return doctor_line(agent, "path")


def reaches(guest: Guest, *, timeout: float = DEADLINE) -> bool:
    return guest.curl("/latest/meta-data/hostname", timeout=timeout).status == 200


def down(agent: Agent) -> list[str]:
    document = json.loads(agent.admin("/healthz/readiness").body)
    return list(document.get("missing", ()))


@pytest.fixture
def unfiltered(served: tuple[OpenvSwitch, Agent, Guest]) -> Iterator[None]:
    """Provide a host that has no filter after the test, and is ready then."""
    host, agent, guest = served
    yield
    host.namespace.run([str(NFT), "flush ruleset"])
    wait_for(lambda: not down(agent), "readiness to be back")
    # Its port is no longer in the state "no connection".
    assert reaches(guest)


@pytest.mark.usefixtures("unfiltered")
@pytest.mark.parametrize(
    ("has_nft", "command", "word", "chain"),
    [
        (False, REFUSED, "refuses", ""),
        (True, DROPPED, "does not answer", "nftables' chain netdev f c"),
    ],
    ids=["without nft", "with nft"],
)
def test_a_packet_filter_is_named_with_its_remedy(
    served: tuple[OpenvSwitch, Agent, Guest],
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_nft: bool,
    command: str,
    word: str,
    chain: str,
) -> None:
    host, agent, guest = served
    assert reaches(guest)
    assert path_line(agent)["status"] == "ok"
    with path_with(*([NFT] if has_nft else [])) as path:
        monkeypatch.setenv("PATH", path)
        host.namespace.run([str(NFT), command])
        line = path_line(agent)
        assert (line["status"], word in line["text"]) == ("wrong", True), line
        assert "nft list ruleset" in line["remedy"]
        assert not reaches(guest, timeout=SILENCE)
        traced = agent.ctl("trace", guest.port, check=False)
        assert traced.returncode == 1
        assert word in traced.stdout.splitlines()[-1], traced.stdout
        assert chain in doctor_line(agent, "firewall")["text"]
        # One failure may be a packet that was lost; the next one makes it so.
        wait_for(lambda: down(agent) == ["path"], "readiness to be down")
        host.namespace.run([str(NFT), "flush ruleset"])
        wait_for(lambda: not down(agent), "readiness to be back")


def test_a_probe_leaves_no_connection_behind(served: tuple[OpenvSwitch, Agent, Guest]) -> None:
    _host, agent, _guest = served

    def half_open() -> list[str]:
        sockets = Path(f"/proc/{agent.pid}/net/tcp").read_text().splitlines()[1:]
        return [line for line in sockets if line.split()[3] == SYN_RECV]

    wait_for(lambda: not half_open(), "SYN-ACKs of the tests before to be given up")
    closed = agent.metric("dfmeta_closed_connections_total")
    for _ in range(3):
        assert json.loads(agent.admin("/probe").body)["answered"]
    # Without the reset they stay for as long as SYN-ACKs are repeated.
    wait_for(lambda: not half_open(), "the resets of the probes")
    assert agent.metric("dfmeta_closed_connections_total") == closed


def test_readiness_is_not_up_before_the_path_is_proved(host: OpenvSwitch) -> None:
    with Agent(host) as agent:
        host.namespace.run([str(NFT), f"{INPUT} drop"])
        agent.start(wait=False)
        message = "path: guests' SYNs do not reach the proxy: the host does not answer"
        wait_for(lambda: message in agent.stderr.read_text(), "the log")
        assert down(agent) == ["path"]
        host.namespace.run([str(NFT), "flush ruleset"])
        wait_for(lambda: agent.admin("/healthz/readiness").status == 200, "readiness")
        wait_for(lambda: "path is UP again" in agent.stderr.read_text(), "the log")


def doctor_line(agent: Agent, check: str) -> dict[str, Any]:
    done = agent.ctl("doctor", "--format", "json", "--root", str(agent.folder), check=False)
    (result,) = [line for line in json.loads(done.stdout) if line["check"] == check]
    return dict(result)
