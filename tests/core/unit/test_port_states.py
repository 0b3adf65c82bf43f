"""States of ports that are observed: which one counts, what is logged, what is counted."""

import logging
import uuid
from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from dfmeta.cmd.ports import CHANGES, PortStateMonitor, port_rows, without_meta_ip, without_project
from dfmeta.identity.host_wide_allocator import allocator_of
from dfmeta.identity.key import PREFIX6, MetaKeys
from dfmeta.identity.registry import Registry
from dfmeta.model import Port, PortId, PortState

INSTANCE = str(uuid.uuid4())
PORT = Port("tap1", "row1", 1, instance_id=INSTANCE, project_id="p")


def test_an_observed_state_takes_the_place_of_served_alone() -> None:
    registry = Registry()
    registry.set_port(PORT)
    dead = replace(PORT, name="tap2", row="row2", ofport=2, dead=True)
    registry.set_port(dead)
    causes = {PortState.NO_CONNECTION: "silent", PortState.CUT_OFF: ""}
    conditions = PortStateMonitor(
        registry, {state: lambda _p, s=state: causes[s] for state in causes}
    )
    assert conditions.of(PORT) == (PortState.NO_CONNECTION, "silent")
    assert conditions.of(dead)[0] is PortState.DEAD
    causes[PortState.CUT_OFF] = "down"
    assert conditions.of(PORT) == (PortState.CUT_OFF, "down"), "the cause before the effect"
    rows = port_rows(registry, state_of=conditions.of)
    assert [(row["state"], row["fault"]) for row in rows] == [("cut off", "down"), ("dead", "")]


def test_states_are_counted_and_logged_at_begin_and_end(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    registry.set_port(PORT)
    cause = "silent"
    conditions = PortStateMonitor(registry, {PortState.NO_CONNECTION: lambda _port: cause})
    with caplog.at_level(logging.INFO):
        conditions.review()
        conditions.review()
    assert [record.getMessage() for record in caplog.records] == [
        "Port tap1: no connection: silent"
    ]
    assert present(conditions) == {"no connection": 1}
    cause = ""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        conditions.review()
    assert "no longer in the state 'no connection'" in caplog.text
    assert present(conditions) == {"served": 1}


def test_a_guest_that_makes_its_port_change_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    registry, now, cause = Registry(), 0.0, ""
    registry.set_port(PORT)
    observers = {PortState.CUT_OFF: lambda _port: cause}
    conditions = PortStateMonitor(registry, observers, clock=lambda: now)
    with caplog.at_level(logging.INFO):
        for turn in range(50):
            now, cause = turn, "down" if turn % 2 else ""
            conditions.review()
    assert len(caplog.records) == CHANGES
    caplog.clear()
    now, cause = 200.0, "down"
    conditions.review()
    assert "Port tap1: cut off: down" in caplog.text


def test_ports_are_counted_by_their_state() -> None:
    registry = Registry()
    registry.set_port(replace(PORT, project_id=""))
    registry.set_port(replace(PORT, row="row2", ofport=2, instance_id=""))
    conditions = PortStateMonitor(registry, {PortState.NO_PROJECT: without_project})
    assert present(conditions) == {"served": 1, "no instance": 1}
    conditions.review()
    assert present(conditions) == {"no project": 1, "no instance": 1}
    registry.set_port(replace(PORT, dead=True))
    registry.remove_port(PortId("row2"))
    assert present(conditions) == {"dead": 1}
    registry.remove_port(PortId("row1"))
    assert conditions.counts() == dict.fromkeys(PortState, 0)


def present(conditions: PortStateMonitor) -> dict[str, int]:
    return {str(state): count for state, count in conditions.counts().items() if count}


def test_port_for_which_no_meta_ip_is_left_is_named() -> None:
    keys = MetaKeys(IPv4Network("240.0.0.0/29"), PREFIX6, "fa:16:ee:00:00:00")
    registry = Registry(keys=keys, allocator=allocator_of(keys, frozenset))
    ports = [replace(PORT, name=f"tap{n}", row=f"row{n}", ofport=n) for n in range(1, 7)]
    for port in ports:
        registry.set_port(port)

    def faults(*asked: Port) -> list[str]:
        without = {port.id for port in registry.ports_without_number()}
        return [without_meta_ip(port, registry, without) for port in asked]

    *served, late = faults(*ports)
    assert served == [""] * (len(ports) - 1)
    assert late == "all Meta IPs of 240.0.0.0/29 are taken ([METADATA] provider_cidr)"
    subport = replace(PORT, vid=7)
    registry.set_port(subport)
    (text,) = faults(subport)
    assert text.startswith("no Meta IP of 240.0.0.0/29 is left for it ([METADATA] provider_cidr)")
    registry.remove_port(subport.id)
    registry.remove_port(ports[0].id)
    assert faults(ports[-1]) == [""]
