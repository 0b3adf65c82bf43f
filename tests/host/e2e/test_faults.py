"""Faults of a host while guests send requests: a pause at worst, and never another's data."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import METADATA_IP, OPENSTACK6, Batch, Guest, Sample
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import DEADLINE, wait_for
from tests.harness.scheme import SIDE
from tests.harness.stand_in import ENGINE
from tests.host.e2e import shared
from tests.host.e2e.support import ADDRESS_FLOWS, FIXED_FLOWS, PORT_FLOWS, failures

PATH = "/latest/meta-data/hostname"
MAC = "fa:16:3e:00:00:07"
MANY = 1_000_000
"""More requests than are sent until the end."""
INTERVAL = 0.04
"""Seconds: the four clients send a request each 10 ms. None may fail, however short the fault."""
BEFORE, AFTER = 40, 100
"""Requests that are answered before the fault and after it."""
GUEST_FLOWS = PORT_FLOWS + 2 * ADDRESS_FLOWS
"""Of its port, and of one address of each version of IP."""
SERVICES = (METADATA_IP, OPENSTACK6)
NORMAL = "priority=0,actions=NORMAL"

Fault = Callable[[OpenvSwitch, Agent], None]

host, agent = shared.host, shared.agent_with()


def twins(make_guest: MakeGuest) -> list[Guest]:
    """Make two guests with the same addresses and MAC."""
    return [make_guest(name, mac=MAC) for name in ("first", "second")]


class Busy:
    """Guests that ask for their names, over IPv4 and IPv6, a connection for each time."""

    def __init__(self, agent: Agent, guests: Sequence[Guest]) -> None:
        self.agent = agent
        self.guests = guests
        for guest in self.guests:
            agent.put(guest.instance_id, guest.name)
        # Both are known before the fault: on a busy machine one may start late.
        self.ask_once()

    def through(
        self, fault: Callable[[], None], *, interval: float = INTERVAL
    ) -> dict[Guest, list[Sample]]:
        """Ask before the *fault*, all the time that it takes, and after it.

        :param interval: seconds between two requests of a guest to one service. 0: the next one
            follows the answer, so that one of each is always under way.
        """
        batches = [
            (
                guest,
                guest.start_many(MANY, path=PATH, host=host, timeout=DEADLINE, interval=interval),
            )
            for guest in self.guests
            for host in SERVICES
        ]
        try:
            running = [batch for _guest, batch in batches]
            await_answers(running, BEFORE)
            fault()
            assert all(batch.running for batch in running)
            await_answers(running, AFTER)
        except BaseException:
            for _guest, batch in batches:
                batch.stop()
            raise
        samples: dict[Guest, list[Sample]] = {guest: [] for guest in self.guests}
        for guest, batch in batches:
            samples[guest] += batch.finish()
        # Also the one that the others have not waited for.
        self.ask_once()
        return samples

    @property
    def taken_by_a_killed_daemon(self) -> int:
        """Return how many requests a daemon takes with it at most that is killed.

        The one of each guest and service that it had accepted. A haproxy is killed a moment after
        its daemon, and may have accepted another one of each by then.
        """
        return len(self.guests) * len(SERVICES) * (2 if ENGINE == "haproxy" else 1)

    def ask_once(self) -> None:
        """Have each guest ask once over each version of IP."""
        for guest in self.guests:
            assert all(guest.curl(PATH, host=host).text == guest.name for host in SERVICES)


def await_answers(batches: Sequence[Batch], more: int) -> None:
    """Wait until so many requests have been answered from now on."""

    def answered() -> int:
        return sum(batch.answered for batch in batches)

    before = answered()
    wait_for(lambda: answered() >= before + more, f"{more} requests to be answered")


@pytest.fixture(scope="module")
def busy(host: OpenvSwitch, agent: Agent) -> Iterator[Busy]:
    """Two busy guests, which outlive all faults."""
    with ExitStack() as guests:
        yield Busy(agent, twins(MakeGuest(host, guests)))


def delete_all_flows(host: OpenvSwitch, agent: Agent) -> None:
    """Somebody deletes everything on the bridge, and puts back what is his."""
    host.ofctl("del-flows", "br-int")
    host.ofctl("add-flow", "br-int", NORMAL)
    await_repair(host, agent)


def delete_tap(host: OpenvSwitch, agent: Agent) -> None:
    """The port goes, and with it device, address and route."""
    host.vsctl("del-port", SIDE.bridge, SIDE.tap)
    await_repair(host, agent)


def delete_host_side(host: OpenvSwitch, agent: Agent) -> None:
    """systemd-networkd's habit."""
    rules = [f"rule del priority {priority}" for priority in SIDE.rules]
    host.namespace.ip(f"addr flush dev {SIDE.tap}")
    for six in (False, True):
        host.namespace.ip(f"route flush table {SIDE.table} dev {SIDE.tap}", *rules, six=six)

    def back() -> bool:
        shown = [host.namespace.ip("rule show", six=six) for six in (False, True)]
        rules = all(f"{rule}:" in text for rule in SIDE.rules for text in shown)
        return rules and all(has_route(host, version) for version in (4, 6))

    wait_for(back, "rules and routes to be back")
    await_repair(host, agent)


def kill_vswitchd(host: OpenvSwitch, agent: Agent) -> None:
    """All flows are gone."""
    host.kill("ovs-vswitchd")
    host.start("ovs-vswitchd")
    await_repair(host, agent)


def kill_ovsdb(host: OpenvSwitch, agent: Agent) -> None:
    """OVSDB is away for a moment."""
    host.kill("ovsdb-server")
    wait_for(lambda: not agent.ready(), "the daemon to notice")
    assert agent.admin("/healthz/readiness").json()["missing"] == ["ovsdb"]
    host.start("ovsdb-server")
    wait_for(lambda: agent.ready(), "the daemon to be ready")


def has_route(host: OpenvSwitch, version: int) -> bool:
    """Whether the host has the route to all keys of a version of IP."""
    shown = host.namespace.ip(
        f"route show table {SIDE.table} dev {SIDE.tap}", six=version == 6, check=False
    )
    return f"{SIDE.routes[version]} " in shown


def await_repair(host: OpenvSwitch, agent: Agent) -> None:
    """Wait until everything is back: the fixed flows, and those of each guest."""

    def repaired() -> bool:
        flows = host.ofctl("dump-flows", "br-int").count("cookie=0x64666d65")
        return flows == FIXED_FLOWS + 2 * GUEST_FLOWS and agent.ready()

    wait_for(repaired, "the flows to be back")


@pytest.mark.parametrize(
    "fault", [delete_all_flows, delete_tap, delete_host_side, kill_vswitchd, kill_ovsdb]
)
def test_guests_see_a_pause_at_worst(
    host: OpenvSwitch, agent: Agent, busy: Busy, fault: Fault
) -> None:
    # Nothing of the fault before is left.
    await_repair(host, agent)
    samples = busy.through(lambda: fault(host, agent))
    assert failures(samples) == Counter()


def test_restart_fails_no_request_and_sends_and_learns_nothing(agent: Agent, busy: Busy) -> None:
    samples = busy.through(agent.restart, interval=0)
    assert failures(samples) == Counter()
    metrics = agent.metrics()
    assert metrics.get('dfmeta_flow_mods_total{command="add"}', 0) == 0
    assert metrics.get('dfmeta_flow_mods_total{command="delete"}', 0) == 0
    assert not [name for name in metrics if name.startswith("dfmeta_packet_ins_total")]


def test_flows_deleted_meanwhile_fail_nothing(host: OpenvSwitch, agent: Agent, busy: Busy) -> None:
    """With other ends and other faults: tests/soak/e2e/test_pairs_of_faults.py."""

    def restart() -> None:
        agent.stop()
        host.ofctl("del-flows", "br-int")
        host.ofctl("add-flow", "br-int", NORMAL)
        agent.start()

    samples = busy.through(restart, interval=0)
    assert failures(samples) == Counter()
    assert "addresses of guests that the switch has lost" in agent.log()


def test_a_killed_daemon_loses_what_was_in_it_and_nothing_new(agent: Agent, busy: Busy) -> None:
    memory = agent.state_path / "state.json"

    def kill() -> None:
        # Flows of guests that it does not remember are made anew.
        ids = [guest.instance_id for guest in busy.guests]
        wait_for(
            lambda: all(instance_id in memory.read_text() for instance_id in ids),
            "the daemon's memory",
        )
        agent.kill()
        agent.start()

    samples = busy.through(kill, interval=0)
    wrong = failures(samples)
    assert wrong.total() <= busy.taken_by_a_killed_daemon, wrong
    assert not any("refused" in kind or "ANOTHER" in kind for kind in wrong), wrong


def test_a_second_daemon_ends_and_disturbs_no_guest(busy: Busy, make_agent: MakeAgent) -> None:
    second = make_agent({"df_metadata": {"admin_listen": "127.0.0.1:9698"}}, start=False)

    def start_second() -> None:
        second.start(wait=False)
        assert second.wait() == 2

    samples = busy.through(start_second)
    assert failures(samples) == Counter()
    line = second.log().splitlines()[-1]
    assert line.startswith("dfmeta-agent: another dfmeta-agent already serves br-int")
    assert "Traceback" not in second.log()
