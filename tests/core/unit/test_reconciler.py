"""The switch should come to have what the registry says, whatever was there and is lost."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import eventlet
import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps import reconciler as reconciler_module
from dfmeta.flows.integration_bridge import ServedEndpoint, fixed_flows, guest_flows
from dfmeta.flows.openflow import Flow
from dfmeta.flows.pipeline import Layout, Purpose
from dfmeta.flows.wire import Wire
from dfmeta.identity.key import IN_PORT
from dfmeta.identity.slot_allocator import SlotAllocator
from dfmeta.model import Endpoint, GuestAddress, PortId
from dfmeta.runtime import hub
from tests.core.unit.support import (
    OTHER_INSTANCE,
    PORT_FLOWS,
    TAP,
    Rig,
    address,
    let_hub_run,
    port,
    stats_of,
)

HERE = Endpoint(13)
"""Purposes of flows that do not depend on guests."""
OTHER = address("10.0.0.6", "fa:16:3e:00:00:02")
NO_ROOM = (ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_TABLE_FULL)


def wanted(rig: Rig) -> set[Flow]:
    flows = set(fixed_flows(rig.reconciler.tap or TAP))
    for endpoint in rig.registry.endpoints():
        slots = {n: slot.address for n, slot in rig.registry.slots(endpoint).items()}
        guest = ServedEndpoint(endpoint, slots)
        flows |= set(guest_flows(guest, rig.reconciler.tap or TAP))
    return flows


def learn(rig: Rig, who: GuestAddress | None = None, endpoint: Endpoint = HERE) -> None:
    rig.registry.learn(endpoint, who or address(), rig.now)
    rig.reconciler.apply(endpoint)
    let_hub_run()


def as_mod(rig: Rig, flow: Flow, **change: int) -> Any:
    mod = Wire(Layout(), rig.switch).add(flow)
    for name, value in change.items():
        setattr(mod, name, value)
    return mod


def test_a_new_address_takes_three_flows_the_way_back_first(rig: Rig) -> None:
    rig.switch.sent.clear()
    learn(rig)
    wire = Wire(Layout())
    found = [wire.found(stats_of(mod)) for mod in rig.switch.flow_mods()]
    purposes = [flow.flow.purpose for flow in found if flow is not None and flow.flow is not None]
    assert purposes == [Purpose.KEY_ARP, Purpose.REPLY, Purpose.ADDRESS]
    assert rig.flows() == wanted(rig)


def test_a_port_that_goes_leaves_nothing_and_its_way_in_goes_first(rig: Rig) -> None:
    learn(rig)
    rig.switch.sent.clear()
    rig.registry.remove_port(PortId("row-of-tap1"))
    let_hub_run()
    assert rig.flows() == set(fixed_flows(TAP))
    tables = [mod.table_id for mod in rig.switch.flow_mods()]
    assert tables == sorted(tables)
    assert {mod.command for mod in rig.switch.flow_mods()} == {ofp.OFPFC_DELETE_STRICT}


def test_address_flow_with_a_source_that_is_no_key_is_removed(rig: Rig) -> None:
    learn(rig)
    flow = next(flow for flow in rig.flows() if flow.purpose is Purpose.ADDRESS)
    for key in ("10.0.0.1", "128.0.0.0", "224.0.0.13"):
        again = Rig()
        again.registry.set_port(port())
        again.switch.place(as_mod(again, with_source(flow, key)))
        again.connect()
        assert again.registry.slots(HERE) == {}, key
        assert again.flows() == wanted(again), key


def with_source(flow: Flow, key: str) -> Flow:
    return replace(
        flow,
        actions=tuple(
            replace(a, value=key) if getattr(a, "field", "") == "ipv4_src" else a
            for a in flow.actions
        ),
    )


def test_refused_port_stops_no_other_of_a_reconcile(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for ofport in (13, 66, 14):
        rig.registry.set_port(port(ofport, name=f"tap{ofport}"))
    rig.switch.model.refuse = lambda mod: NO_ROOM if _in_port(mod) == 66 else None
    rig.connect()
    served = {flow.field("in_port") for flow in rig.flows() if flow.purpose is Purpose.GUEST_HTTP}
    assert served == {13, 14}
    assert rig.controller.bridge.ready
    assert rig.reconciler.flow_count() == len(rig.switch.flows), "the watch sees nothing missing"
    assert "66" in caplog.text
    rig.switch.model.refuse = lambda _mod: None
    assert rig.reconciler.reconcile() == PORT_FLOWS
    assert rig.flows() == wanted(rig)


def _in_port(mod: object) -> object:
    return dict(mod.match.items()).get("in_port") if hasattr(mod, "match") else None


def test_an_address_whose_way_back_is_refused_gets_no_way_in() -> None:
    rig = Rig()
    rig.registry.set_port(port())
    rig.connect()
    rig.switch.model.refuse = lambda mod: (
        NO_ROOM if getattr(mod, "cookie", 0) & 0xFFFF == Purpose.REPLY else None
    )
    learn(rig)
    rig.reconciler.reconcile_quietly()
    assert not [flow for flow in rig.flows() if flow.purpose is Purpose.ADDRESS]


def crowd(count: int) -> Rig:
    rig = Rig()
    for ofport in range(100, 100 + count):
        rig.registry.set_port(port(ofport, name=f"tap{ofport}"))
    return rig


class Hasty(hub.Turns):
    def __init__(self, look: Callable[[], object]) -> None:
        super().__init__(0.0, clock=lambda: 0.0)
        self._look = look

    def give_way(self) -> bool:
        self._look()
        return super().give_way()


def looking_in(monkeypatch: pytest.MonkeyPatch, look: Callable[[], object]) -> None:
    """Have each reconcile give way wherever it can; *look* is called at each such place."""
    monkeypatch.setattr(reconciler_module, "Turns", lambda: Hasty(look))


def changes(rig: Rig) -> Iterator[Callable[[], object]]:
    """What may happen to ports in the middle of a reconcile: one that has been, one that comes."""
    for ofport in (100, 104, 109):
        yield lambda o=ofport: rig.registry.remove_port(PortId(f"row-of-tap{o}"))
        yield lambda o=ofport: rig.registry.set_port(port(o, name=f"tap{o}"))
        yield lambda o=ofport: learn_now(rig, Endpoint(o))
        yield lambda o=ofport: rig.registry.set_port(
            port(o, name=f"tap{o}", instance=OTHER_INSTANCE)
        )
        yield lambda o=ofport: learn_now(rig, Endpoint(o), OTHER)
    yield lambda: rig.registry.set_port(port(200, name="tap200"))
    yield lambda: learn_now(rig, Endpoint(200))


def learn_now(rig: Rig, endpoint: Endpoint, who: GuestAddress | None = None) -> None:
    rig.registry.learn(endpoint, who or address(), rig.now)
    rig.reconciler.apply(endpoint)


@pytest.mark.parametrize("every", [1, 3, 5])
@pytest.mark.parametrize("lost", [False, True], ids=["all-there", "half-lost"])
def test_meanwhile_change_wins(monkeypatch: pytest.MonkeyPatch, every: int, lost: bool) -> None:
    rig = crowd(10).connect()
    for ofport in range(100, 110):
        learn_now(rig, Endpoint(ofport))
    let_hub_run()
    if lost:
        del rig.switch.flows[::2]
    left, places = list(changes(rig)), itertools.count()

    def look() -> None:
        if left and next(places) % every == 0:
            left.pop(0)()

    looking_in(monkeypatch, look)
    count = rig.reconciler.reconcile()
    let_hub_run()
    assert not left
    # What events have sent is not sent once more.
    assert lost == bool(count)
    # Without another one.
    assert rig.flows() == wanted(rig)
    assert rig.reconciler.flow_count() == len(rig.switch.flows)
    monkeypatch.undo()
    assert rig.reconciler.reconcile() == 0


class Sweeps(SlotAllocator):
    """An allocator that notes what the reconciler says of sweeps and of stray flows."""

    def __init__(self) -> None:
        super().__init__(IN_PORT, tuple, lambda: 0.0)
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.strays: list[tuple[Endpoint, int]] = []

    def begin_sweep(self) -> None:
        self.begun.append(len(self.begun) + 1)

    def end_sweep(self) -> None:
        self.ended.append(self.begun[-1])

    def conflicts(self, endpoint: Endpoint, number: int) -> bool:
        self.strays.append((endpoint, number))
        return False


def swept(rig: Rig) -> Sweeps:
    sweeps = rig.registry.allocator = Sweeps()
    return sweeps


def test_a_sweep_ends_when_the_switch_has_confirmed_it(rig: Rig) -> None:
    sweeps = swept(rig)
    rig.switch.silent = True
    running = eventlet.spawn(rig.reconciler.reconcile)
    let_hub_run()
    assert (sweeps.begun, sweeps.ended) == ([1], [])
    while not running.dead:
        rig.switch.speak()
    assert sweeps.ended == [1]
    rig.reconciler.reconcile()
    assert (sweeps.begun, sweeps.ended) == ([1, 2], [1, 2])


def test_a_sweep_does_not_end_while_the_switch_keeps_a_stray_flow(rig: Rig) -> None:
    sweeps = swept(rig)
    stray = guest_flows(ServedEndpoint(Endpoint(99), {0: address()}), TAP)[-1]
    rig.switch.place(as_mod(rig, stray))
    rig.switch.model.refuse = lambda mod: NO_ROOM if _in_port(mod) == 99 else None
    rig.reconciler.reconcile()
    assert stray in rig.flows()
    assert sweeps.ended == []
    rig.switch.model.refuse = lambda _mod: None
    rig.reconciler.reconcile()
    assert (stray in rig.flows(), sweeps.ended) == (False, [2])


def test_start_reports_numbers_at_other_endpoints(rig: Rig) -> None:
    learn(rig)
    flow = next(flow for flow in rig.flows() if flow.purpose is Purpose.ADDRESS)

    for there in (
        with_source(flow, str(IN_PORT.key_of(Endpoint(14), 3))),
        replace(flow, actions=()),
    ):
        again = Rig()
        again.registry.set_port(port())
        sweeps = swept(again)
        again.switch.place(as_mod(again, there))
        again.connect()
        assert sweeps.strays == ([(HERE, 3)] if there.actions else [])
        assert again.registry.slots(HERE) == {}
        assert again.flows() == wanted(again)
