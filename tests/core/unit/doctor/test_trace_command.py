"""``dfmeta trace`` on a host with both versions of IP: which paths it tells, and its last line."""

from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv6Address
from typing import Any
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner, Result

from dfmeta.apps.switch_facts import BridgeFlows
from dfmeta.cli import common, trace_command
from dfmeta.cli.trace_command import LEADS, UNPROBED, Scene, follow, trace
from dfmeta.doctor.agent import Agent, DaemonFacts
from dfmeta.doctor.facts import HostSettings, KnownPort, PathFacts
from dfmeta.doctor.probes import InspectionOptions
from dfmeta.errors import SwitchError
from dfmeta.flows.integration_bridge import ServedEndpoint, fixed_flows, guest_flows
from dfmeta.flows.openflow import Seen
from dfmeta.flows.pipeline import Layout, Purpose, cookie_of
from dfmeta.identity.key import SLOT6
from dfmeta.model import Port
from dfmeta.ovsdb.rows import Interface, Snapshot
from tests.core.unit.doctor.values import (
    ADDRESS6,
    INSTANCE,
    PORT,
    PORT6,
    SERVICE6,
    SETTINGS,
    TAP6,
    recorded,
)

EC2 = replace(ADDRESS6, service=IPv6Address(SERVICE6[1]))
WANTED = replace(SETTINGS, ip6=SERVICE6, host_ip6=TAP6.ip6)
SNAPSHOT = Snapshot(
    interfaces=(Interface("tap-metadata", "br-int", ofport=TAP6.ofport, mac_in_use=TAP6.mac),)
)
THERE, THERE6, SOLICITED = (recorded(name) for name in ("there", "there6", "solicited"))
AFTER, AFTER6 = (
    text.replace("0x64666d650101000a", "0x64666d6501010001") for text in (THERE, THERE6)
)


class Switch:
    """Answers ofproto/trace with recorded text, by the beginning of the packet."""

    def __init__(self, **changed: str) -> None:
        self.asked: list[str] = []
        self._texts = {
            "icmp6": SOLICITED,
            "there": THERE,
            "there6": THERE6,
            "after": AFTER,
            "after6": AFTER6,
            "back": recorded("back"),
            "back6": recorded("back6"),
        } | changed

    def trace(self, _bridge: str, packet: str) -> str:
        self.asked.append(packet)
        if packet.startswith("icmp6"):
            return self._texts["icmp6"]
        leg = "back" if "in_port=9" in packet else "after" if "flags=ack" in packet else "there"
        return self._texts[f"{leg}6" if packet.startswith("tcp6") else leg]


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Switch]:
    """Makes the switch that is traced, on a host without a fault."""

    def make(**changed: str) -> Switch:
        made = Switch(**changed)
        monkeypatch.setattr(trace_command, "Vswitchd", lambda _folder: made)
        monkeypatch.setattr(
            trace_command, "_host", lambda _scene, family: click.echo(f"  IPv{family.version}")
        )
        return made

    return make


def scene(*, wanted: HostSettings = WANTED, running: bool = True, **facts: Any) -> Scene:
    """The facts of a host, as if they had been read."""
    made = Scene(wanted, InspectionOptions(), Agent("", Mock()))
    vars(made).update(
        {
            "daemon": DaemonFacts(running=running),
            "snapshot": SNAPSHOT,
            "_bits": ({}, {}),
            "ports": (PORT6,),
            "ip6": SERVICE6,
            "path": PathFacts(answered=True, ip6=PathFacts(answered=True)),
        }
        | facts
    )
    return made


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the command on a host with the facts."""
    monkeypatch.setattr(common, "load_config", lambda _files: None)
    for name in ("take_over", "report_differences", "make_host_settings", "agent_of"):
        monkeypatch.setattr(trace_command, name, lambda _arg: None)

    def run(known: Scene, *words: str) -> Result:
        monkeypatch.setattr(trace_command, "Scene", lambda *_args: known)
        return CliRunner().invoke(trace, words)

    return run


def told(
    capsys: pytest.CaptureFixture[str], port: KnownPort, versions: tuple[int, ...], **values: Any
) -> tuple[str, list[str]]:
    stop = follow(scene(**values), port, versions)
    return stop, capsys.readouterr().out.splitlines()


def heads(lines: list[str]) -> list[str]:
    return [line.partition(f"{INSTANCE}, ")[2] for line in lines if line.startswith("tap1 ")]


KEY4 = "10.0.0.5 fa:16:3e:00:00:01, key 128.0.0.1"
KEY6 = f"{ADDRESS6.ip} fa:16:3e:00:00:01, key fd00:a9fe:a9fe:a9fe:1::1, to {SERVICE6[0]}"


Make = Callable[..., Switch]
Capture = pytest.CaptureFixture[str]


def test_both_versions_are_traced_or_the_requested_version(switch: Make, capsys: Capture) -> None:
    switch()
    stop, lines = told(capsys, PORT6, (4, 6))
    assert (stop, lines[-1]) == ("", LEADS)
    assert heads(lines) == [KEY4, KEY6]
    assert lines.count(LEADS) == 1
    assert [line for line in lines if line.startswith("  IPv")] == ["  IPv4", "  IPv6"]
    assert [line.split(",")[0] for line in lines if line.startswith("  finds")] == [
        "  finds  classification: guest-nd",
        "  finds  metadata service: guest-nd-answer",
        "  finds  neighbour discovery: service-nd",
    ]
    for version, head in ((4, KEY4), (6, KEY6)):
        made = switch()
        _stop, lines = told(capsys, PORT6, (version,))
        assert heads(lines) == [head]
        of6 = [packet.startswith(("tcp6", "icmp6")) for packet in made.asked]
        assert all(of6) is (version == 6)
    made = switch()
    stop, lines = told(capsys, PORT, (4, 6), ip6=())
    assert (stop, heads(lines), lines[-1]) == ("", [KEY4], LEADS)
    assert len(made.asked) == 3


def test_each_service_address_of_the_guest_is_traced(switch: Make, capsys: Capture) -> None:
    made = switch()
    port = replace(PORT, addresses={SLOT6 + 4: EC2, SLOT6 + 2: ADDRESS6, SLOT6 + 7: EC2})
    _stop, lines = told(capsys, port, (6,))
    assert [head.rpartition("key ")[2] for head in heads(lines)][:2] == [
        f"fd00:a9fe:a9fe:a9fe:2::1, to {SERVICE6[0]}",
        f"fd00:a9fe:a9fe:a9fe:4::1, to {SERVICE6[1]}",
    ]
    assert sum(f"nd_target={SERVICE6[1]}" in packet for packet in made.asked) == 1
    to_controller = THERE6[: THERE6.index("200. ")] + (
        "200. tcp6,in_port=1, priority 100, cookie 0x64666d6501020004\n    controller(id=53758)\n"
        "\nFinal flow: unchanged\n"
    )
    made = switch(there6=to_controller)
    stop, lines = told(capsys, replace(PORT, addresses={}), (6,))
    assert (stop, heads(lines)) == ("", [f"no address known yet, to {SERVICE6[0]}"])
    assert all(ADDRESS6.mac in packet for packet in made.asked)
    assert "ipv6_dst=fd00:a9fe:a9fe:a9fe:1::1" in made.asked[-1], "the key of the first slot"


def test_fault_is_named_with_its_version_in_the_last_line(switch: Make, capsys: Capture) -> None:
    switch(icmp6=SOLICITED.replace("    IN_PORT\n", ""))
    stop, lines = told(capsys, PORT6, (4, 6))
    fault = "neighbour discovery: the answer does not leave at tap1"
    assert stop == f"over IPv6 to {SERVICE6[0]}: {fault}"
    assert lines[-2:] == [f"  end    {fault}", f"O{stop[1:]}."]
    stop, lines = told(capsys, PORT6, (6,))
    assert (stop, lines[-1]) == (fault, f"N{fault[1:]}.")
    # Of different faults, the last line has the one of IPv4.
    switch(there=THERE.replace("output:9", "output:8"), icmp6="")
    stop, lines = told(capsys, PORT6, (4, 6))
    assert stop.startswith("its flow does not lead to tap-metadata's port")
    assert lines[-1] == f"I{stop[1:]}."


def test_probe_is_that_of_the_version(switch: Make, capsys: Capture) -> None:
    switch()
    failed = PathFacts(answered=True, ip6=PathFacts(answered=False, cause="no answer"))
    stop, _lines = told(capsys, PORT6, (4, 6), path=failed)
    assert stop.startswith(f"over IPv6 to {SERVICE6[0]}: stops at the host: guests' SYNs do not")
    assert told(capsys, PORT6, (4,), path=failed)[1][-1] == LEADS
    unsent = PathFacts(answered=True)
    stop, lines = told(capsys, PORT6, (4, 6), path=unsent)
    assert (stop, lines[-1]) == ("", UNPROBED)
    assert "  probe  not probed: guests are served over IPv4 only" in lines


def test_ipv6_is_traced_only_where_served(switch: Make, command: Callable[..., Result]) -> None:
    switch()
    for wanted, running, cause in (
        (SETTINGS, True, "[df_metadata] ip6 is empty, so guests are served over IPv4 only"),
        (WANTED, True, "dfmeta-agent serves guests over IPv4 only on this host"),
        (WANTED, False, "dfmeta-agent does not run, and the switch has no flows of it for IPv6"),
    ):
        known = scene(ip6=(), wanted=wanted, running=running)
        done = command(known, "tap1", "--family", "6")
        assert (done.exit_code, done.stdout.partition(cause)[0]) == (1, "Not traced: ")
        assert KEY4 in command(known, "tap1").stdout, cause


def test_argument_is_repeated_without_control_characters(
    switch: Make, command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    switch()
    monkeypatch.setattr(trace_command, "find_with_trunks", lambda *_args, **_more: [])
    for options in ((), ("--vid", "9")):
        done = command(scene(wanted=SETTINGS), "x\x1b[2J\u202e", *options)
        assert done.exit_code == 1
        assert r"x\x1b[2J\u202e" in done.stdout
        assert done.stdout.strip().isprintable()


def test_addresses_are_those_of_the_flows_without_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    layout, tap = Layout(), replace(TAP6, guest_ip6=SERVICE6[::-1])
    guest = ServedEndpoint(PORT6.endpoint, PORT6.addresses)
    flows = [*fixed_flows(tap), *guest_flows(guest, tap)]
    interface = Interface("tap1", "br-int", ofport=1, ports=(Port("tap1", row="r", ofport=1),))
    snapshot = Snapshot(interfaces=(interface,))
    for without, services in ((None, SERVICE6), (Purpose.SERVICE_ND, ())):
        dumped = tuple(
            Seen(flow, layout.table(flow.purpose), 0, cookie_of(flow.purpose))
            for flow in flows
            if flow.purpose is not without
        )
        reading = BridgeFlows(dumped, None)
        monkeypatch.setattr(trace_command, "read_flows", lambda *_args, found=reading: found)
        (port,), ip6 = trace_command._without_daemon(WANTED, snapshot)
        assert (port.addresses, ip6) == (PORT6.addresses, services)

    def fail(*_args: object) -> None:
        raise SwitchError(what="the bridge", cause="gone")

    monkeypatch.setattr(trace_command, "read_flows", fail)
    assert trace_command._without_daemon(WANTED, SNAPSHOT) == ((), ())
