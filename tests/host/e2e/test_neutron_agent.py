"""Beside Neutron's own Open vSwitch agent: it runs here, only its neutron-server does not."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness.agent import Agent, Options
from tests.harness.guest import METADATA_IP, OPENSTACK6, Guest, Sample
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import META_BRIDGE
from tests.host.e2e import shared
from tests.host.e2e.support import SILENCE, TWIN_MAC, asks_own, failures, put
from tests.host.neutron.agent import DEAD_VLAN, OPEN, OUTSIDE, NeutronAgent

PATH = "/latest/meta-data/hostname"
OURS = "cookie=0x64666d65"
CONTROLLER = "tcp:127.0.0.1:6633"
TABLES = {0, 23, 24, 60, 71, 72, 73, 81, 82, 91, 92, 93, 94}
"""Those of the openvswitch firewall driver that have flows, among others."""
PORTS = {"tap-metadata", META_BRIDGE, "int-br-meta", "phy-br-meta", "tap-meta"}
"""Ports of ours, with either identity scheme."""
UNANSWERED = {
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "RemoteDisconnected: Remote end closed connection without response",
    "TimeoutError: timed out",
}
"""Errors of a request that gets no answer. Refused connections are not among them."""
INTERVAL = 0.04
"""Seconds between the requests of a guest; a fault may last many of them."""
UNDER_WAY = 20
"""Answers that each guest has got before a fault is made, and after it before it is over."""


@dataclass(frozen=True, kw_only=True)
class Neutrons:
    """All on the host that is Neutron's and not ours."""

    flows: Counter[str]
    meters: dict[int, int]
    bridges: list[dict[str, Any]]
    ports: list[dict[str, Any]]
    controllers: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class World:
    """A compute node with both agents.

    :ivar twins: guests with the same IP and MAC in two networks, which may send nothing.
    :ivar friends: guests of a third network, which may ping each other.
    :ivar before: what was there before dfmeta came. Neutron's later starts change it.
    :ivar errors: what Neutron had complained of before.
    """

    host: OpenvSwitch
    neutron: NeutronAgent
    agent: Agent
    twins: tuple[Guest, Guest]
    friends: tuple[Guest, Guest]
    before: Neutrons
    errors: list[str]

    @property
    def guests(self) -> tuple[Guest, ...]:
        """All of them."""
        return (*self.twins, *self.friends)


@contextlib.contextmanager
def world_with(options: Options | None = None) -> Iterator[World]:
    """Start Neutron, and when all is as it wants it, dfmeta."""
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch(bridges=(BRIDGE, OUTSIDE)))
        twins = make_twins(host, stack)
        friends = (
            stack.enter_context(Guest(host, "third", address="10.0.0.8/24")),
            stack.enter_context(Guest(host, "fourth", address="10.0.0.9/24")),
        )
        neutron = stack.enter_context(NeutronAgent(host))
        tell_of_twins(neutron, twins)
        for guest in friends:
            neutron.put(guest, network="common", vlan=201, groups=(OPEN,))
        neutron.start()
        neutron.clean_up()
        before, errors = neutrons(host), neutron.errors()
        agent = stack.enter_context(Agent(host, options)).start()
        for guest in (*twins, *friends):
            put(agent, guest, hostname=guest.name)
        yield World(
            host=host,
            neutron=neutron,
            agent=agent,
            twins=twins,
            friends=friends,
            before=before,
            errors=errors,
        )
        if agent.running:
            agent.stop()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Provide a compute node with both agents."""
    with world_with() as made:
        yield made


@pytest.fixture(scope="module")
def host(world: World) -> OpenvSwitch:
    """Provide that compute node."""
    return world.host


neutron, agent = shared.neutron_of_world, shared.agent_of_world


pytestmark = [pytest.mark.usefixtures("neutron", "agent"), pytest.mark.early]


def make_twins(host: OpenvSwitch, stack: ExitStack) -> tuple[Guest, Guest]:
    """Two guests with the same addresses."""
    return (
        stack.enter_context(Guest(host, "first", mac=TWIN_MAC)),
        stack.enter_context(Guest(host, "second", mac=TWIN_MAC, route="gateway")),
    )


def tell_of_twins(neutron: NeutronAgent, twins: tuple[Guest, Guest]) -> None:
    """Each is in a network of its own."""
    for number, guest in enumerate(twins):
        neutron.put(guest, network=guest.name, vlan=101 + number)


def neutrons(host: OpenvSwitch) -> Neutrons:
    """What is there, without what changes by itself."""
    lines = host.ofctl("--no-stats", "dump-flows", BRIDGE).splitlines()
    ports = [row for row in host.records("Port") if row["name"] not in PORTS]
    bridges = [row for row in host.records("Bridge") if row["name"] != META_BRIDGE]
    return Neutrons(
        flows=Counter(line.strip() for line in lines if "actions=" in line and OURS not in line),
        meters=meters(host),
        bridges=without(bridges, "ports", "status", "rstp_status"),
        ports=without(ports, "statistics", "status", "rstp_status", "rstp_statistics"),
        # vswitchd notes now and then which controllers are connected, in which role.
        controllers=without(host.records("Controller"), "status", "is_connected", "role"),
    )


def meters(host: OpenvSwitch) -> dict[int, int]:
    """Rate of each meter of the bridge."""
    result = re.findall(r"meter=(\d+) .*?rate=(\d+)", host.ofctl("dump-meters", BRIDGE), re.DOTALL)
    return {int(number): int(rate) for number, rate in result}


def without(rows: list[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """The rows in a fixed order without these columns."""
    kept = [{k: v for k, v in row.items() if k not in columns} for row in rows]
    return sorted(kept, key=lambda row: str(row["_uuid"]))


def tables(host: OpenvSwitch) -> set[int]:
    """The tables in which flows of others stand."""
    result = set()
    for flow in neutrons(host).flows:
        _, _, table = flow.partition(" table=")
        result.add(int(table.partition(",")[0]) if table else 0)
    return result


def own_flows(host: OpenvSwitch) -> int:
    """How many flows of ours stand."""
    return host.ofctl("dump-flows", BRIDGE).count(OURS)


def own_hooks(host: OpenvSwitch) -> int:
    """How many of them stand in table 0."""
    return host.ofctl("dump-flows", BRIDGE, "table=0").count(OURS)


def tag(guest: Guest) -> object:
    """The local VLAN that Neutron has given its port."""
    ports = guest.host.records("Port", "name", "tag")
    return next(row["tag"] for row in ports if row["name"] == guest.port)


@contextlib.contextmanager
def asking(
    served: Callable[[], float],
    guests: tuple[Guest, ...],
    *,
    timeout: float = 30,
    unanswered: int = 0,
) -> Iterator[None]:
    """The guests ask for their names at a steady rate, and get them, before and after what is done.

    :param served: the number of requests so far.
    :param timeout: seconds that a request waits for its answer.
    :param unanswered: at most so many requests may get no answer.
    """

    def await_more() -> None:
        enough = served() + UNDER_WAY * len(guests)
        wait_for(lambda: served() >= enough, "guests to be served")

    batches = {
        guest: guest.start_many(1_000_000, path=PATH, timeout=timeout, interval=INTERVAL)
        for guest in guests
    }
    try:
        await_more()
        yield
        await_more()
    except BaseException:
        for batch in batches.values():
            batch.stop()
        raise
    samples: dict[Guest, list[Sample]] = {g: batch.finish() for g, batch in batches.items()}
    result = failures(samples)
    assert set(result) <= UNANSWERED, result
    assert result.total() <= unanswered, result


def requests(agent: Agent) -> Callable[[], float]:
    """How many requests the daemon has had so far, as a function."""
    return lambda: agent.metric("dfmeta_requests_total")


def added(agent: Agent) -> float:
    """Flows that the daemon has put in so far."""
    return agent.metric("dfmeta_flow_mods_total", command="add")


def test_the_bridge_is_as_neutron_has_it(world: World) -> None:
    assert tables(world.host) >= TABLES
    (bridge,) = [row for row in world.host.records("Bridge") if row["name"] == BRIDGE]
    (controller,) = [
        row for row in world.host.records("Controller") if row["_uuid"] == bridge["controller"]
    ]
    assert bridge["fail_mode"] == "secure"
    assert controller["target"] == CONTROLLER
    third, fourth = world.friends
    tags = [tag(guest) for guest in world.guests]
    assert len(set(tags)) == 3
    assert all(isinstance(tag, int) and tag != DEAD_VLAN for tag in tags)
    assert third.ping(fourth.ip)
    # Nothing of the twins' passes the firewall.
    assert not world.twins[0].ping("10.0.0.8", timeout=SILENCE)


def test_guests_whose_groups_allow_nothing_get_their_own(world: World) -> None:
    for guest in (*world.guests, *world.twins):
        asks_own(guest)
        asks_own(guest, host=OPENSTACK6)


def actions(host: OpenvSwitch, frames: list[str]) -> list[str]:
    """What the switch would do with each of them; a number that each trace draws anew is cut."""
    return [
        re.sub(r"recirc(_id=|\()\w+", "recirc", line)
        for frame in frames
        for line in host.trace(frame).splitlines()
        if line.startswith("Datapath actions")
    ]


def strangers(world: World) -> list[str]:
    """Frames of guests that are none of ours, but for the ports or addresses beside them."""
    guest, other = world.friends
    frame = f"in_port={guest.ofport},dl_src={guest.mac},dl_dst={other.mac}"
    source = f"{frame},ipv6_src={guest.link_local}"
    return [
        f"udp,{frame},nw_src={guest.ip},nw_dst={METADATA_IP},udp_src=4000,udp_dst=53",
        f"udp,{frame},nw_src={guest.ip},nw_dst={METADATA_IP},udp_src=4000,udp_dst=80",
        f"tcp,{frame},nw_src={guest.ip},nw_dst={METADATA_IP},tcp_src=4000,tcp_dst=443",
        f"icmp,{frame},nw_src={guest.ip},nw_dst={METADATA_IP},icmp_type=8,icmp_code=0",
        f"icmp,{frame},nw_src={guest.ip},nw_dst={other.ip},icmp_type=8,icmp_code=0",
        f"tcp,{frame},nw_src={guest.ip},nw_dst={other.ip},tcp_src=4000,tcp_dst=80",
        f"tcp,{frame},nw_src={guest.ip},nw_dst=128.0.0.{guest.ofport},tcp_src=4000,tcp_dst=80",
        f"arp,{frame},arp_op=1,arp_spa={guest.ip},arp_sha={guest.mac},arp_tpa={other.ip}",
        f"tcp6,{source},ipv6_dst=fe80::a9fe:a9fe,tcp_src=4000,tcp_dst=443",
        f"icmp6,{source},ipv6_dst=fe80::a9fe:a9fe,icmpv6_type=128,icmpv6_code=0",
        f"tcp6,{source},ipv6_dst={other.link_local},tcp_src=4000,tcp_dst=80",
    ]


def test_neutrons_state_is_unchanged_by_start_and_cleanup(world: World) -> None:
    frames = strangers(world)
    beside = actions(world.host, frames)
    assert len(beside) >= len(frames)
    assert neutrons(world.host) == world.before
    assert world.neutron.errors() == world.errors
    world.agent.stop()
    try:
        world.agent.clean_up()
        assert own_flows(world.host) == 0
        assert neutrons(world.host) == world.before
        assert actions(world.host, frames) == beside
    finally:
        world.agent.start()
    for guest in world.guests:
        asks_own(guest)
    assert neutrons(world.host) == world.before


def without_cookies(flows: Counter[str]) -> Counter[str]:
    """Neutron draws them anew at each start."""
    return Counter(re.sub("cookie=0x[0-9a-f]+", "", flow) for flow in flows.elements())


def test_flows_return_after_neutrons_restart_has_deleted_them(world: World) -> None:
    for guest in world.guests:
        asks_own(guest)
    hooks, everything = own_hooks(world.host), own_flows(world.host)
    neutrons_own = without_cookies(neutrons(world.host).flows)
    with asking(requests(world.agent), world.twins):
        world.neutron.restart()
        before = added(world.agent)
        world.neutron.clean_up()
        wait_for(lambda: own_flows(world.host) == everything, "our flows to be back")
        wait_for(lambda: added(world.agent) - before >= hooks, "the daemon to put them in")
    assert without_cookies(neutrons(world.host).flows) == neutrons_own
    for guest in world.guests:
        asks_own(guest)
