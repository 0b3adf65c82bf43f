"""The way through the host, proved by a SYN of the daemon's own: each fault that drops guests'
frames behind the switch is named by doctor and by readiness, and the guest's curl shows it."""

from __future__ import annotations

import contextlib
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
"""A filter at which the product looks where nft is installed."""
INPUT = f"{CHAIN} add rule inet f c tcp dport {PROXY_PORT}"
FILTERS = {
    f"{INPUT} drop": ("does not answer", True),
    f"{INPUT} reject with tcp reset": ("refuses", True),
    (
        "add table netdev f; add chain netdev f c { type filter hook ingress device "
        f'"{TAP}" priority 0; policy drop; }}'
    ): ("does not answer", False),
}
"""Commands of nft, the probe's word, and whether a look at the chains finds it."""


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
@pytest.mark.parametrize("has_nft", [False, True], ids=["without nft", "with nft"])
def test_a_packet_filter_is_named_with_its_remedy(
    served: tuple[OpenvSwitch, Agent, Guest], monkeypatch: pytest.MonkeyPatch, has_nft: bool
) -> None:
    host, agent, guest = served
    assert reaches(guest)
    assert path_line(agent)["status"] == "ok"
    with path_with(*([NFT] if has_nft else [])) as path:
        monkeypatch.setenv("PATH", path)
        for command, (word, is_seen) in FILTERS.items():
            if has_nft and not is_seen:
                continue
            host.namespace.run([str(NFT), command])
            line = path_line(agent)
            assert (line["status"], word in line["text"]) == ("wrong", True), command
            assert "nft list ruleset" in line["remedy"]
            assert not reaches(guest, timeout=SILENCE)
            traced = agent.ctl("trace", guest.port, check=False)
            end = traced.stdout.splitlines()[-1]
            if has_nft:
                assert f"nftables' chain inet f c drops TCP to port {PROXY_PORT}" in end
                assert "`nft insert rule inet f c" in end
            else:
                assert word in end, command
            assert traced.returncode == 1
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
        host.namespace.run([str(NFT), next(iter(FILTERS))])
        agent.start(wait=False)
        said = "path: guests' SYNs do not reach the proxy: the host does not answer"
        wait_for(lambda: said in agent.stderr.read_text(), "the log")
        assert down(agent) == ["path"]
        host.namespace.run([str(NFT), "flush ruleset"])
        wait_for(lambda: agent.admin("/healthz/readiness").status == 200, "readiness")
        wait_for(lambda: "path is UP again" in agent.stderr.read_text(), "the log")


@contextlib.contextmanager
def asking(guest: Guest) -> Iterator[None]:
    """Let the guest begin a connection again and again."""
    batch = guest.start_many(1_000_000, timeout=SILENCE)
    try:
        yield
    finally:
        batch.stop()


def no_connection(agent: Agent, port: str) -> str:
    """The state's cause, once there is one; doctor and the status page name it as well."""
    wait_for(lambda: state(agent, port)[0] == "no connection", "the state of the port")
    cause = state(agent, port)[1]
    done = agent.ctl("doctor", "--format", "json", "--root", str(agent.folder), check=False)
    lines = [line for line in json.loads(done.stdout) if line["check"] == "ports"]
    assert done.returncode == 1
    assert any(line["status"] == "wrong" and port in line["text"] for line in lines), lines
    traced = agent.ctl("trace", port, check=False)
    assert traced.returncode == 1
    assert "in the state 'no connection'" in traced.stdout.splitlines()[-1]
    assert "no connection" in agent.admin("/").text
    # The metric has the state of the last review, which is at most a second old.
    wait_for(
        lambda: agent.metric("dfmeta_ports", state="no connection") == 1, "the metric to follow"
    )
    return cause


def state(agent: Agent, port: str) -> tuple[str, str]:
    (row,) = [one for one in json.loads(agent.admin("/ports").body) if one["port"] == port]
    return row["state"], row["fault"]


def well_again(agent: Agent, guest: Guest) -> None:
    assert reaches(guest)
    wait_for(lambda: state(agent, guest.port) == ("served", ""), "the port to be served")
    assert (
        f"Port {guest.port} is no longer in the state 'no connection'" in agent.stderr.read_text()
    )


def test_a_filter_that_drops_one_guest_names_where(
    served: tuple[OpenvSwitch, Agent, Guest],
) -> None:
    host, agent, _guest = served
    with Guest(host, "web2") as guest:
        put(agent, guest)
        assert reaches(guest)
        wait_for(lambda: state(agent, guest.port)[0] == "served", "the port")
        for place, rule, word in (
            (host.namespace, f"ip saddr {key(agent, guest.port)} drop", "behind the switch"),
            (guest.namespace, "tcp sport 80 drop", "SYN-ACKs"),
        ):
            place.run([str(NFT), f"{CHAIN} add rule inet f c {rule}"])
            with asking(guest):
                assert word in no_connection(agent, guest.port)
            place.run([str(NFT), "flush ruleset"])
            well_again(agent, guest)


def key(agent: Agent, port: str) -> str:
    (row,) = [one for one in json.loads(agent.admin("/ports").body) if one["port"] == port]
    return str(row["key"])


def doctor_line(agent: Agent, check: str) -> dict[str, Any]:
    done = agent.ctl("doctor", "--format", "json", "--root", str(agent.folder), check=False)
    (found,) = [line for line in json.loads(done.stdout) if line["check"] == check]
    return dict(found)
