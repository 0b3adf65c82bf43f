"""Whatever happens to ports, connection and switch, in any order: the flows come right."""

from __future__ import annotations

from functools import partial
from ipaddress import IPv6Address, ip_address
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dfmeta.apps import reconciler as reconciler
from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.flows.openflow import Flow
from dfmeta.flows.pipeline import RATES, Purpose, is_ours
from dfmeta.model import Endpoint, GuestAddress, Port, PortId
from dfmeta.runtime import hub
from tests.core.flows.world import (
    SERVICE6,
    TAP,
    TAP6,
    Host,
    Host6,
    World,
    count_syns,
    flood,
    settle,
)
from tests.harness.examples import examples

PORTS = (1, 2, 3)
INSTANCES = ("", "instance-1", "instance-2")
ports = st.sampled_from(PORTS)
happenings = st.lists(
    st.tuples(
        st.sampled_from(("plug", "unplug", "learn", "learn6", "lose")), ports, st.integers(1, 4)
    ),
    min_size=1,
    max_size=8,
)


class Eventful(hub.Turns):
    """Gives way at every occasion of a reconcile, and something happens meanwhile."""

    def __init__(self, life: Life, happenings: list[tuple[str, int, int]], gap: int) -> None:
        super().__init__(0.0, clock=lambda: 0.0)
        self._life, self._left, self._gap = life, list(happenings), gap
        self._places = 0

    def give_way(self) -> bool:
        """Give way, and have the next thing happen every few times."""
        self._places += 1
        if self._left and self._places % self._gap == 0:
            self._life.happens(*self._left.pop(0))
        return super().give_way()


class Life(RuleBasedStateMachine):
    """A host's life, shortened."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(tap=TAP6)

    def teardown(self) -> None:
        """Let go of the connection."""
        self.world.channel.detach(self.world.link)
        settle()

    @rule(ofport=ports, instance=st.sampled_from(INSTANCES), dead=st.booleans())
    def plug(self, ofport: int, instance: str, dead: bool) -> None:
        """A port appears, or becomes another guest's, or loses its instance, or is switched off."""
        self.world.plug(ofport, instance=instance, dead=dead)

    @rule(ofport=ports, project=st.sampled_from(("", "project-1", "project-2")))
    def learn_project(self, ofport: int, project: str) -> None:
        """What is known of a guest grows, or changes."""
        self.world.plug(ofport, project_id=project)

    @rule(ofport=ports)
    def unplug(self, ofport: int) -> None:
        """A port disappears."""
        self.world.unplug(ofport)

    @rule(ofport=ports, last=st.integers(1, 9), mac=st.integers(1, 2))
    def ask(self, ofport: int, last: int, mac: int) -> None:
        """A guest opens a connection, from one of many addresses."""
        host = Host(ofport, ip=f"10.0.0.{last}", mac=f"fa:16:3e:00:00:{mac:02x}")
        self.world.receive(ofport, host.segment())

    @rule(ofport=ports, last=st.integers(1, 20), service=st.sampled_from(SERVICE6))
    def ask6(self, ofport: int, last: int, service: str) -> None:
        """A guest opens a connection over IPv6."""
        host = Host6(ofport, ip=f"fd12::{last:x}")
        self.world.receive(ofport, host.segment(dst=service))

    @rule(served=st.sampled_from((TAP, TAP6)))
    def ipv6_comes_or_goes(self, served: Tap) -> None:
        """The host has IPv6, or has none."""
        self.world.controller.bridge.set_tap(served)
        settle()

    @rule(happenings=happenings, gap=st.integers(1, 9))
    def things_happen_during_a_reconcile(
        self, happenings: list[tuple[str, int, int]], gap: int
    ) -> None:
        """It gives way to what changes the ports that it is about."""
        eventful = partial(Eventful, self, happenings, gap)
        with mock.patch.object(reconciler, "Turns", eventful):
            self.world.reconciler.reconcile()
        settle()
        if not any(kind == "lose" for kind, _port, _number in happenings):
            assert self._there() == self._wanted(), "without another one"

    def happens(self, kind: str, ofport: int, number: int) -> None:
        """Something, in the middle of a reconcile: nothing of it waits."""
        registry, endpoint = self.world.registry, Endpoint(ofport)
        if kind == "plug":
            instance = INSTANCES[number % len(INSTANCES)]
            port = {"name": f"tap{ofport}", "row": f"row-{ofport}", "iface_id": f"port-{ofport}"}
            registry.set_port(Port(ofport=ofport, instance_id=instance, **port))
        elif kind == "unplug":
            registry.remove_port(PortId(f"row-{ofport}"))
        elif kind in ("learn", "learn6"):
            new = kind == "learn6"
            ip = ip_address(f"fd12::{number}" if new else f"10.0.0.{number}")
            service = IPv6Address(SERVICE6[number % 2]) if new else None
            address = GuestAddress("fa:16:3e:00:00:01", ip, service)
            registry.learn(endpoint, address, self.world.now)
            self.world.reconciler.apply(endpoint)
        else:
            self.somebody_deletes_a_flow(number)

    @rule()
    def reconnect(self) -> None:
        """The connection is lost and made anew."""
        self.world.controller.bridge.disconnected(self.world.link)
        settle()
        self.world.attach(self.world.switch)

    @rule()
    def switch_restarts(self) -> None:
        """The switch comes back with nothing."""
        self.world.controller.bridge.disconnected(self.world.link)
        settle()
        self.world.attach()

    @rule(kept=st.booleans())
    def daemon_restarts(self, kept: bool) -> None:
        """Another process takes over, with or without the memory of the one before."""
        self.world = self.world.restarted(adopts=lambda _one: kept)

    @rule(which=st.integers(0, 40))
    def somebody_deletes_a_flow(self, which: int) -> None:
        """One of ours goes by another's hand."""
        mine = [flow for flow in self.world.switch.flows if is_ours(flow.cookie)]
        if mine:
            self.world.switch.flows.remove(mine[which % len(mine)])

    @rule(ofport=ports, first=st.booleans())
    def flood(self, ofport: int, first: bool) -> None:
        """A guest sends many SYNs, each of another address or all of the same one."""
        if first:
            flood(self.world, Host(ofport), count=RATES[Purpose.SYN] + 3)
        else:
            count_syns(self.world, ofport, 5 * RATES[Purpose.GUEST_SYN])

    @rule(seconds=st.sampled_from((1, 40)))
    def look_for_floods(self, seconds: int) -> None:
        """Time passes, and floods begin and end."""
        self.world.now += seconds
        self.world.floods.look()
        settle()

    @invariant()
    def the_flows_are_those_that_should_be(self) -> None:
        """A reconcile ends at exactly the desired flows, and the next one sends nothing."""
        world = self.world
        world.reconciler.reconcile()
        settle()
        assert self._there() == self._wanted()
        sent = world.switch.flow_mods
        assert world.reconciler.reconcile() == 0
        assert world.switch.flow_mods == sent

    def _there(self) -> set[Flow | None]:
        channel = self.world.channel
        dump = channel.request(channel.wire.dump_all(), "the dump").wait()
        found = [channel.wire.found(stats) for stats in dump]
        return {flow.flow for flow in found if flow is not None}

    def _wanted(self) -> set[Flow]:
        world = self.world
        wanted = set(fixed_flows(world.tap))
        for endpoint in world.registry.endpoints():
            addresses = {n: slot.address for n, slot in world.registry.slots(endpoint).items()}
            guest = ServedEndpoint(endpoint, addresses, floods=world.floods.of(endpoint))
            wanted |= set(guest_flows(guest, world.tap))
        return wanted


Life.TestCase.settings = settings(
    max_examples=examples(13),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLife = Life.TestCase
