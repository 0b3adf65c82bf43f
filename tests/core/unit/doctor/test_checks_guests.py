"""Guests that fail, the probe, ports that are cut off, and the port that an operator means."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp
from oslo_config import cfg

from dfmeta.cli import port_argument
from dfmeta.doctor import find_port
from dfmeta.doctor.agent import Agent, read_port
from dfmeta.doctor.checks_guests import ALL, KINDS, guests
from dfmeta.doctor.checks_host import path
from dfmeta.doctor.facts import GuestFailure, KnownPort, PathFacts
from dfmeta.doctor.find_port import with_cuts
from dfmeta.doctor.finding import SHOWN, Finding
from dfmeta.doctor.probes import SILENT
from dfmeta.errors import KeyRangeError, NotRunningError, UsageError
from dfmeta.flows.family import IPV6
from dfmeta.flows.port_down import LINK_DOWN, NO_FWD, NO_RECV, PORT_DOWN, PortBits, cut_of
from dfmeta.identity.key import IN_PORT, SLOT6
from dfmeta.model import GuestAddress, PortKind, PortState
from dfmeta.ovsdb.rows import Interface, Snapshot
from tests.core.unit.doctor.values import (
    ADDRESS,
    ADDRESS6,
    INSTANCE,
    OK,
    PORT,
    PORT6,
    SERVICE6,
    SETTINGS,
    TAP6,
    UNKNOWN,
    WRONG,
    expect,
)
from tests.core.unit.support import GUEST_IP6, GUEST_MAC, address, address6, port_desc

NOW = datetime(2026, 11, 22, 14, 30, tzinfo=UTC)
NO_RECORD = GuestFailure(404, "no record", "`dfmeta store put x`", NOW - timedelta(minutes=2), 12)


def port(number: int, failure: GuestFailure | None = None, *, requested: bool = True) -> KnownPort:
    return replace(PORT, name=f"tap{number}", requested=requested, failure=failure)


def judge(*ports: KnownPort) -> list[Finding]:
    return list(guests(ports, NOW))


def test_guests_that_fail_are_named_with_how_and_what_to_do() -> None:
    yesterday = replace(NO_RECORD, since=NOW - timedelta(days=1), times=1)
    (fine,) = judge(port(1), port(2, requested=False), port(3, requested=False))
    (both,) = judge(port(1), port(2, yesterday), port(3, NO_RECORD))
    (single,) = judge(port(3, NO_RECORD))
    none = "no guest fails, of 1 that have sent requests since dfmeta-agent's start; 2 of 3 guests"
    two = (
        "2 of 3 guests that have sent requests get 404 (no record): "
        "tap3 (since 14:28:00 UTC, 12 times), tap2 (since 2026-11-21 14:30:00 UTC)"
    )
    expect([(fine, OK, f"{none} have sent none"), (both, WRONG, two)])
    assert (both.text, both.remedy) == (two, f"`dfmeta store put x`; {ALL}")
    assert single.remedy == "`dfmeta store put x`"


def test_one_way_to_fail_does_not_hide_another_and_the_lines_have_an_end() -> None:
    refused = replace(NO_RECORD, status=401, brief="no valid token", remedy="http_tokens")
    many = [port(number, refused) for number in range(100)]
    lines = judge(*many, port(200, NO_RECORD))
    assert ["401" in lines[0].text, "tap200" in lines[1].text, len(lines)] == [True, True, 2]
    assert f"and {100 - SHOWN} more" in lines[0].text
    odd = [port(number, replace(refused, status=500 + number)) for number in range(50)]
    *named, last = judge(*odd)
    assert len(named) == KINDS
    assert last.text == f"{50 - KINDS} of 50 guests that fail do so in {50 - KINDS} other ways"
    assert all(line.status is WRONG for line in (*named, last))


def known(row: dict[str, Any]) -> KnownPort:
    return read_port(row, IN_PORT)


def test_a_row_of_the_daemons_is_read() -> None:
    row: dict[str, Any] = {
        **dict.fromkeys(
            ("port", "instance", "iface_id", "mac", "fault", "project", "instance_name"), "x"
        ),
        "ofport": 1,
        "state": "served",
        "addresses": [
            {"slot": 1, "key": "144.0.0.1", "mac": GUEST_MAC, "ip": "10.0.0.5"},
            {
                "slot": 1,
                "key": "fd00:a9fe:a9fe:a9fe:1::1",
                "mac": GUEST_MAC,
                "ip": GUEST_IP6,
                "service": SERVICE6[0],
            },
        ],
        "requests": {},
        "last_failure": None,
        "vid": 0,
        "kind": "port",
        **dict.fromkeys(("key", "key6", "meta_mac", "segmentation_id", "parent", "source")),
        **dict.fromkeys(("next_hops", "next_hop_faults", "subport_faults"), ()),
    }
    last = {"status": 404, "brief": "no record", "remedy": "r", "times": 2}
    moment = {"failing_since": "2026-11-22T14:28:00Z"}
    assert known(row).failure is None
    assert known({**row, "last_failure": {**last, "failing": False}}).failure is None
    port_ = known({**row, "last_failure": {**last, **moment, "failing": True}})
    assert port_.addresses == {1: address(), SLOT6 + 1: address6()}
    assert port_.failure == GuestFailure(404, "no record", "r", NOW - timedelta(minutes=2), 2)
    assert port_.requested
    assert not known({**row, "requests": None}).requested
    for wrong in ({"key": "10.0.0.1"}, {"ip": "nonsense"}, {"ip": GUEST_IP6, "service": None}):
        with pytest.raises((ValueError, KeyRangeError)):
            known({**row, "addresses": [{**row["addresses"][0], **wrong}]})


def test_probe_is_judged_for_each_version() -> None:
    wanted = replace(SETTINGS, ip6=SERVICE6, host_ip6=TAP6.ip6).over(IPV6)
    silent = PathFacts(cause="the host is silent")
    six = path(silent, wanted)
    expect(
        [
            (path(PathFacts(sent=False, cause="not connected"), SETTINGS), UNKNOWN, "not connect"),
            (path(PathFacts(answered=True, seconds=0.0012), SETTINGS), OK, "in 1.2 ms"),
            (path(PathFacts(answered=True, whole=False), SETTINGS), WRONG, "incomplete TCP checks"),
            (path(silent, SETTINGS), WRONG, "the host is silent", "nft list ruleset"),
            (
                path(silent, SETTINGS, firewalld=True),
                WRONG,
                "",
                "--add-port=18080/tcp`, and `firew",
            ),
            (path(PathFacts(answered=True), wanted), OK, "[fd00:a9fe:a9fe:a9fe::a9fe]:18080"),
            (six, WRONG, "the host is silent", "listener-ipv6 name", "`ip6tables-save`"),
        ]
    )
    assert "rp_filter" not in six.remedy


def agent(answers: object) -> Agent:
    """A daemon that gives the same answer at each path; None: it gives none."""

    def request(path: str, **_more: object) -> tuple[int, Any]:
        if answers is None:
            raise NotRunningError(address="a", cause=f"no answer at {path}", remedy="r")
        return 200, answers

    return Agent("127.0.0.1:9697", request)


def test_no_probe_is_sent_by_a_switch_that_does_not_answer() -> None:
    """That it has no answer would show nothing about the host."""
    for ip6 in ((), ("fe80::a9fe:a9fe",)):
        facts = agent({"ip6": ip6}).path(silent=SILENT)
        assert bool(facts.ip6) == bool(ip6)
        for each, wanted in ((facts, SETTINGS), (facts.ip6, SETTINGS.over(IPV6))):
            if each is not None:
                text = "the switch, which sends the SYN, does not answer"
                expect([(path(each, wanted), UNKNOWN, text)])
                assert path(each, wanted).text.endswith("see the line openflow")


def test_results_of_both_versions_are_read() -> None:
    def read(document: object) -> PathFacts:
        return agent(document).path()

    four = {"sent": True, "answered": True, "cause": "", "seconds": 0.5, "whole_checksum": True}
    six = {**four, "answered": False, "cause": "c", "seconds": 2}
    plain = PathFacts(answered=True, seconds=0.5)
    both = replace(plain, ip6=PathFacts(answered=False, cause="c", seconds=2.0))
    assert [read(four), read({**four, "ip6": None}), read({**four, "ip6": six})] == [
        plain,
        plain,
        both,
    ]
    for invalid in ([], {**four, "ip6": 7}, {}):
        assert "of another version" in read(invalid).cause


def test_addresses_that_the_daemon_serves_are_read() -> None:
    for document, ip6 in (
        ({"ip": None, "ip6": ["FE80::A9FE:A9FE", "fd00:ec2::254"]}, SERVICE6),
        ({"ip6": ["nonsense"]}, ()),
        ([], ()),
        (None, ()),
    ):
        assert agent(document).served_ip6() == ip6


MAC = "fa:16:3e:00:00:01"
HIDDEN = "00:00:00:00:00:00"
DOWN = "its device is down"
NO_LINK = "its device has no link: the guest is off, or its own interface is down"
OUT = "the switch sends no frames to it (no-forward)"
IN = "the switch accepts no frames from it (no-receive)"
MODIFY = "ovs-ofctl -O OpenFlow13 mod-port br-int tap1"


def test_the_bits_are_openflows() -> None:
    assert (PORT_DOWN, NO_RECV, NO_FWD, LINK_DOWN) == (
        ofp.OFPPC_PORT_DOWN,
        ofp.OFPPC_NO_RECV,
        ofp.OFPPC_NO_FWD,
        ofp.OFPPS_LINK_DOWN,
    )
    bits = PortBits.of(port_desc(13, b"tap1", config=NO_FWD, state=LINK_DOWN))
    assert bits == PortBits(NO_FWD, LINK_DOWN, HIDDEN)


def test_bits_that_cut_a_port_off_have_a_cause_and_a_remedy() -> None:
    for bits, cause, remedy in (
        (PortBits(PORT_DOWN, LINK_DOWN, MAC), DOWN, f"`{MODIFY} up`, or `ip link set tap1 up`"),
        (PortBits(NO_RECV, ofp.OFPPS_LIVE, MAC), IN, f"`{MODIFY} receive`"),
        (PortBits(NO_FWD, ofp.OFPPS_LIVE, MAC), OUT, f"`{MODIFY} forward`"),
        (
            *(PortBits(NO_FWD | NO_RECV, 0, MAC), f"{IN}, and {OUT}"),
            f"`{MODIFY} receive`, and `{MODIFY} forward`",
        ),
        # A vhost-user port has no MAC; its link is down while no guest has it open.
        (PortBits(0, LINK_DOWN, HIDDEN), NO_LINK, "start the guest"),
        (PortBits(PORT_DOWN | NO_RECV, LINK_DOWN, HIDDEN), IN, f"`{MODIFY} receive`"),
    ):
        cut = cut_of(bits, "tap1", bridge="br-int")
        assert cut is not None, bits
        assert cut.cause == cause, bits
        assert cut.remedy.startswith(remedy), bits
        assert str(cut) == f"{cut.cause}: {cut.remedy}"
    for fine in (
        None,
        PortBits(0, ofp.OFPPS_LIVE, MAC),
        PortBits(ofp.OFPPC_NO_PACKET_IN, ofp.OFPPS_LIVE, MAC),
        # In another network namespace.
        PortBits(PORT_DOWN, LINK_DOWN, HIDDEN),
    ):
        assert cut_of(fine, "tap1", bridge="br-int") is None, fine
    both = PortBits(PORT_DOWN | NO_FWD, LINK_DOWN, MAC)
    assert both.of_switch() == PortBits(NO_FWD, 0, MAC), "the others are the device's"


def test_port_that_would_be_served_is_cut_off_by_the_switch() -> None:
    off = PortBits(NO_RECV, 0, MAC)
    for before, after in (
        (PortState.SERVED, PortState.CUT_OFF),
        (PortState.NO_CONNECTION, PortState.CUT_OFF),
        (PortState.NO_INSTANCE, PortState.NO_INSTANCE),
        (PortState.DEAD, PortState.DEAD),
    ):
        port = replace(PORT, state=before)
        (cut_port,) = with_cuts([port], {1: off}, "br-int")
        assert cut_port.state is after
        assert cut_port.cut is not None
        assert cut_port.fault == (str(cut_port.cut) if after is PortState.CUT_OFF else "")
        assert with_cuts([port], {2: off}, "br-int") == (port,)


OTHER = replace(PORT, name="tap2", iface_id="b", mac="fa:16:3e:00:00:02", addresses={})
SUBPORT = replace(PORT, vid=300)


def test_value_of_the_operator_names_a_port_before_one_that_a_guest_chose() -> None:
    other = replace(OTHER, instance="i2")
    liar = replace(other, addresses={0: GuestAddress("fa:16:3e:00:00:09", ADDRESS.ip)})
    namesake = replace(other, instance_name="tap1")
    for ports, text, expected in (
        ((PORT, other), str(ADDRESS.ip), (PORT,)),
        ((PORT, other), "FA:16:3E:00:00:02", (other,)),
        ((PORT, liar), str(ADDRESS.ip), (PORT, liar)),
        ((PORT, liar), "fa:16:3e:00:00:09", (liar,)),
        ((PORT, namesake), "tap1", (PORT,)),
        ((PORT, namesake), "TAP1", ()),
        ((replace(PORT, mac=""),), "web", ()),
        ((PORT, OTHER), "a-port", (PORT,)),
        ((PORT, OTHER), INSTANCE.upper(), (PORT, OTHER)),
        ((replace(PORT, instance="", iface_id=""),), "", ()),
        ((PORT6, other), "FE80::F816:3EFF:FE00:1", (PORT6,)),
        ((PORT6, other), "fe80:0:0:0:f816:3eff:fe00:0001", (PORT6,)),
        ((PORT6, other), f"{ADDRESS6.ip}%eth0", (PORT6,)),
        ((PORT, other), str(ADDRESS6.ip), ()),
    ):
        assert find_port.named(ports, text) == expected, text
    named = replace(other, instance_name="web1", record_names=("web2", "web2.example.org"))
    for text in ("web1", "web2", "web2.example.org"):
        assert find_port.named([PORT, named], text) == (named,)


def test_name_of_a_record_names_the_port_of_one_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    third = replace(OTHER, name="tap3", instance="i3")
    names = {INSTANCE: ["web2", "web2.example.org"], "i3": ["web3", "web2.example.org"]}
    monkeypatch.setattr(port_argument, "agent_of", lambda _conf: agent(names))
    monkeypatch.setattr(port_argument, "_of_domain", lambda *_of: [])
    conf = cfg.ConfigOpts()
    ports = [PORT, OTHER, third]
    assert port_argument.find(conf, ports, "web2") == [PORT, OTHER], "both of that instance"
    assert port_argument.find(conf, ports, "web3") == [third]
    assert port_argument.find(conf, ports, "web4") == []
    with pytest.raises(UsageError, match=r"web2\.example\.org: tap1 .*, tap2 .*, tap3 \(i3\)"):
        port_argument.find(conf, ports, "web2.example.org")
    same = [replace(port_, instance_name="vm") for port_ in (PORT, third)]
    with pytest.raises(UsageError, match="several instances have the name vm"):
        port_argument.find(conf, same, "vm")


def test_without_the_daemon_or_with_another_one_records_have_no_names() -> None:
    for document in (None, ["nonsense"], {"i": None}):
        assert agent(document).record_names() == {}


def test_untagged_port_of_a_name_is_meant_unless_a_vlan_is_named() -> None:
    ports = [PORT, SUBPORT]
    assert find_port.with_vid(ports, None) == [PORT]
    assert find_port.with_vid(ports, 300) == [SUBPORT]
    assert find_port.with_vid(ports, 301) == []
    assert find_port.with_vid([SUBPORT], None) == [SUBPORT]


def test_port_on_a_trunks_bridge_is_meant_by_any_of_its_names() -> None:
    ids = {"iface-id": "p1", "vm-uuid": INSTANCE}
    snapshot = Snapshot(
        interfaces=(
            Interface("tap9", "tbr-1", external_ids=ids),
            Interface("tpt-p1", "tbr-1", type="patch", external_ids={"iface-id": "p1"}),
            Interface("tpi-p1", "br-int", type="patch", external_ids={"iface-id": "p1"}),
        )
    )
    port = replace(PORT, name="tpi-p1", iface_id="p1", kind=PortKind.PARENT)
    ports = [PORT, port, replace(port, name="tpi-p2", iface_id="p2")]
    for text in ("tap9", "tpt-p1", "p1", "P1", INSTANCE, INSTANCE.upper()):
        assert find_port.behind_trunk(ports, snapshot, text, bridge="br-int") == (port,), text
    for text in ("tap1", "", "p2"):
        assert find_port.behind_trunk(ports, snapshot, text, bridge="br-int") == (), text
    subport = replace(port, kind=PortKind.SUBPORT)
    assert find_port.behind_trunk([subport], snapshot, "tap9", bridge="br-int") == ()


def test_port_without_flows_has_a_cause() -> None:
    for port, cause in (
        (replace(PORT, state=PortState.BROKEN, fault="a fault"), "a fault"),
        (replace(PORT, state=PortState.DEAD), "switched it off"),
        (replace(PORT, state=PortState.NO_OFPORT, ofport=None), "no port number"),
    ):
        assert cause in find_port.unusable(port)
    assert find_port.unusable(PORT) == ""


def test_interface_that_is_no_guests_port_has_a_cause() -> None:
    patch = Interface("int-br-ex", "br-int", type="patch", options={"peer": "phy-br-ex"})
    for interface, cause in (
        (Interface("tap-metadata", "br-int", type="internal"), "leads to the proxy"),
        (Interface("br-int", "br-int", type="internal"), "the bridge's own"),
        (Interface("t0", "br-int", type="gre"), "its type is gre: a tunnel to other hosts"),
        (patch, "it leads to another bridge (phy-br-ex), and a guest behind that"),
        (Interface("nic0", "br-int", type="dpdk"), "its type is dpdk, and such a port"),
        (Interface("tapd", "br-int", type="internal"), "belong to an agent"),
        (Interface("eth1", "br-int"), "`ovs-vsctl set Interface eth1 external_ids:vm-uuid="),
        (Interface("eth1", "br-ex"), "is on br-ex, not on br-int"),
    ):
        snapshot = Snapshot(interfaces=(interface,))
        assert cause in find_port.no_port(snapshot, interface.name, wanted=SETTINGS, running=True)
    for running in (True, False):
        nothing = find_port.no_port(Snapshot(), "x", wanted=SETTINGS, running=running)
        assert nothing.startswith("no port of br-int has the name, iface-id, MAC, instance")
        assert ("does not run" in nothing) is not running
