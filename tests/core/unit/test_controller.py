"""The controller should take only its own bridge, and put back what others take away."""

import contextlib
import socket
from collections.abc import Iterator
from copy import copy

import eventlet
import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta import metrics
from dfmeta.apps.channel import CONFIRM_TIMEOUT
from dfmeta.errors import NotConnectedError
from dfmeta.flows.pipeline import Purpose
from dfmeta.model import Endpoint, PortId
from dfmeta.runtime import clock
from tests.core.unit.support import (
    FIXED_FLOWS,
    OTHER_INSTANCE,
    PORT_FLOWS,
    TAP,
    Datapath,
    Rig,
    address,
    let_hub_run,
    port,
    removed_of,
    syn,
    until,
)

HERE = Endpoint(13)
REMOVED = "Flows of dfmeta were removed from br-int"


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(clock, "CHECK_INTERVAL", 0.01)
    rig = Rig()
    thread = eventlet.spawn(rig.controller.watch)
    yield rig
    thread.kill()
    rig.disconnect()


@pytest.fixture
def reconciled(watching: Rig, caplog: pytest.LogCaptureFixture) -> Rig:
    """The same with a port, once the first reconcile of its switch is over; with INFO logged."""
    caplog.set_level("INFO")
    watching.registry.set_port(port())
    watching.controller.bridge.set_tap(TAP)
    watching.controller.bridge.connected(watching.switch)
    until(lambda: watching.controller.bridge.ready, "the first reconcile")
    return watching


def hook(rig: Rig) -> object:
    """A guest's hook, as the switch has it."""
    return next(mod for mod in rig.switch.dump() if mod.cookie & 0xFFFF == Purpose.GUEST_HTTP)


def test_the_thread_that_reads_the_switch_gets_its_turn_first(rig: Rig) -> None:
    for reads in (True, False):
        switch, theirs = socket.socketpair()
        with contextlib.closing(switch), contextlib.closing(theirs):
            rig.switch.socket = switch
            rig.controller.drain_switch_messages()
            theirs.send(b"a message")
            heard: list[bytes] = []
            if reads:
                eventlet.spawn_n(lambda to, sock: to.append(sock.recv(64)), heard, switch)
            rig.controller.drain_switch_messages()
            assert heard == [b"a message"] * reads


def test_a_foreign_datapath_is_refused_and_closed(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Datapath(number=0xBAD)
    rig.controller.bridge.connected(stranger)
    assert stranger.closed
    assert stranger.sent == []
    assert "0000000000000bad" in caplog.text
    rig.controller.bridge.disconnected(stranger)
    assert rig.channel.connected
    assert rig.controller.bridge.ready
    unconnected = Rig()
    unconnected.controller.bridge.connected(stranger)
    assert not unconnected.channel.connected


def test_while_the_bridges_id_is_not_known_a_connection_is_taken() -> None:
    rig = Rig()
    rig.controller.bridge._datapath_id = lambda: None
    unknown = Datapath(number=5)
    rig.controller.bridge.connected(unknown)
    let_hub_run()
    assert rig.channel.connected
    rig.controller.bridge.disconnected(unknown)


def test_a_connection_begins_with_its_settings_and_is_ready_after_the_flows() -> None:
    rig = Rig()
    assert not rig.controller.bridge.ready
    rig.controller.bridge.connected(rig.switch)
    let_hub_run()
    assert rig.switch.kinds() == [ofp.OFPT_EXPERIMENTER, ofp.OFPT_SET_ASYNC]
    assert metrics.REGISTRY.get_sample_value("dfmeta_switch_connected") == 1
    assert not rig.controller.bridge.ready
    rig.connect()
    assert rig.controller.bridge.ready
    rig.disconnect()
    assert not rig.controller.bridge.ready
    assert metrics.REGISTRY.get_sample_value("dfmeta_switch_connected") == 0


def test_doubt_is_raised_by_a_removed_hook_alone(rig: Rig) -> None:
    rig.registry.learn(HERE, address(), 0)
    rig.registry.set_port(port(instance=OTHER_INSTANCE))
    let_hub_run()
    for change in ({"cookie": 0x1234}, {"priority": 7}):
        mod = copy(hook(rig))
        vars(mod).update(change)
        rig.controller.bridge.flow_removed(removed_of(mod))
        assert rig.controller.bridge.ready, change
    mods = rig.switch.dump()
    from_tap = next(mod for mod in mods if mod.cookie & 0xFFFF == Purpose.FROM_TAP)
    rig.controller.bridge.flow_removed(removed_of(from_tap))
    assert not rig.controller.bridge.ready


def test_late_notice_of_a_removal_is_no_doubt(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """The port is back by then, and its flows with it."""
    caplog.set_level("INFO")
    late: list[object] = []
    rig.switch.removed = late.append
    rig.registry.remove_port(PortId("row-of-tap1"))
    rig.registry.set_port(port())
    let_hub_run()
    assert len(late) == PORT_FLOWS - 1
    for message in late:
        rig.controller.bridge.flow_removed(message)
    assert rig.controller.bridge.ready
    rig.controller.bridge.flow_removed(removed_of(hook(rig)))
    assert not rig.controller.bridge.ready


def test_confirmed_removal_is_a_line(reconciled: Rig, caplog: pytest.LogCaptureFixture) -> None:
    reconciled.controller.bridge.flow_removed(removed_of(hook(reconciled)))
    assert REMOVED not in caplog.text
    until(lambda: reconciled.controller.bridge.ready, "the next reconcile")
    assert caplog.text.count(REMOVED) == 1


def test_end_of_a_switch_is_no_line(reconciled: Rig, caplog: pytest.LogCaptureFixture) -> None:
    reconciled.controller.bridge.flow_removed(removed_of(hook(reconciled)))
    reconciled.disconnect()
    reconciled.connect()
    until(lambda: reconciled.controller.bridge.ready, "the reconcile of the next connection")
    assert REMOVED not in caplog.text
    assert "The connection to br-int was lost" in caplog.text


def test_removal_hides_anothers_for_a_moment(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.registry.remove_port(PortId("row-of-tap1"))
    rig.registry.set_port(port())
    let_hub_run()
    later = clock.now() + CONFIRM_TIMEOUT + 1
    monkeypatch.setattr(clock, "now", lambda: later)
    rig.controller.bridge.flow_removed(removed_of(hook(rig)))
    assert not rig.controller.bridge.ready


def test_a_removed_flow_without_a_connection_is_left_to_the_next_one(rig: Rig) -> None:
    message = removed_of(hook(rig))
    rig.disconnect()
    rig.controller.bridge.flow_removed(message)


def test_the_same_tap_again_raises_no_doubt(rig: Rig) -> None:
    rig.controller.bridge.set_tap(TAP)
    assert rig.controller.bridge.ready
    rig.controller.bridge.set_tap(None)
    assert not rig.controller.bridge.ready


def test_unsent_change_waits_for_a_reconcile(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_endpoint: Endpoint) -> None:
        raise NotConnectedError(bridge="br-int")

    monkeypatch.setattr(rig.reconciler, "apply", lost)
    rig.registry.remove_port(PortId("row-of-tap1"))


def test_the_watch_restores_flows_that_are_lost_with_and_without_notice(reconciled: Rig) -> None:
    all_flows = FIXED_FLOWS + PORT_FLOWS
    reconciled.switch.flows = [flow for flow in reconciled.switch.flows if flow.table != 201]
    until(lambda: len(reconciled.switch.flows) == all_flows, "the flows to be back")
    until(lambda: reconciled.controller.bridge.ready, "the end of the reconcile")
    gone = hook(reconciled)
    reconciled.switch.flows = [
        flow for flow in reconciled.switch.flows if flow.cookie & 0xFFFF != Purpose.GUEST_HTTP
    ]
    reconciled.controller.bridge.flow_removed(removed_of(gone))
    until(lambda: len(reconciled.switch.flows) == all_flows, "the hook to be back")


def test_the_watch_tries_again_after_a_failure(watching: Rig) -> None:
    watching.switch.model.refuse = lambda _mod: (ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_TABLE_FULL)
    watching.controller.bridge.set_tap(TAP)
    watching.controller.bridge.connected(watching.switch)

    def failed() -> float:
        sample = "dfmeta_reconciles_total"
        return metrics.REGISTRY.get_sample_value(sample, {"result": "failed"}) or 0.0

    before = failed()
    until(lambda: failed() >= before + 2, "two failures")
    watching.switch.model.refuse = lambda _mod: None
    until(lambda: watching.controller.bridge.ready, "a reconcile")


def test_watch_outlives_a_lost_connection(watching: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    watching.controller.bridge.set_tap(TAP)
    watching.controller.bridge.connected(watching.switch)
    until(lambda: watching.controller.bridge.ready, "the first reconcile")
    watching.switch.silent = True
    asked = len(watching.switch.sent)
    until(lambda: len(watching.switch.sent) > asked, "a count")
    watching.disconnect()
    watching.switch = watching.make_switch()
    watching.controller.bridge.connected(watching.switch)
    until(lambda: watching.controller.bridge.ready, "a reconcile on the next connection")


def test_the_watch_gives_up_syns_that_waited_too_long(watching: Rig) -> None:
    watching.registry.set_port(port(instance=""))
    watching.learner.packet_in(13, syn())
    watching.now += 100
    until(lambda: not len(watching.learner.holds), "the SYN to be given up")


def test_changes_while_the_flows_are_counted_are_not_missing(rig: Rig) -> None:
    rig.switch.silent = True
    looks = eventlet.spawn(rig.controller.bridge._looks_right)
    let_hub_run()
    rig.registry.set_port(port(14, name="tap2"))
    rig.registry.remove_port(PortId("row-of-tap1"))
    let_hub_run()
    rig.switch.speak()
    assert looks.wait()


def test_right_flows_are_not_compared_at_each_check(reconciled: Rig) -> None:
    def comparisons() -> float:
        return sum(sample.value for sample in metrics.RECONCILES.collect()[0].samples)

    before = comparisons()
    eventlet.sleep(20 * clock.CHECK_INTERVAL)
    assert comparisons() == before
