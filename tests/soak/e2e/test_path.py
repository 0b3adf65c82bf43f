"""A filter of the host that drops one guest should be named with its place."""

import contextlib
import json
from collections.abc import Iterator

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import test_path
from tests.host.e2e.support import SILENCE, put
from tests.host.e2e.test_path import CHAIN, NFT, reaches

served = test_path.served


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
