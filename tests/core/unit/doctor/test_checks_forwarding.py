"""What ovs-vswitchd does to all packets should be judged from its settings and from proof."""

from types import SimpleNamespace
from typing import Any

from dfmeta.cmd.faults import path_fault
from dfmeta.doctor import checks_switch
from dfmeta.doctor.checks_host import path
from dfmeta.doctor.facts import PathFacts
from dfmeta.doctor.finding import CheckStatus, ok, summary, unknown, warning, wrong
from dfmeta.ovsdb.rows import Bridge, ControllerRow
from tests.core.unit.doctor.values import SETTINGS

AWAY, HERE = ControllerRow("tcp:127.0.0.1:1", False), ControllerRow("tcp:127.0.0.1:2", True)
FAIL_OPEN = " 0. priority 15790320\n    NORMAL\n"
OWN_FLOW = " 0. priority 0\n    NORMAL\n"


def test_restoration_is_a_fault_only_while_nothing_is_forwarded() -> None:
    for is_set, facts, status in (
        (False, None, CheckStatus.OK),
        (False, PathFacts(), CheckStatus.OK),
        (True, None, CheckStatus.WRONG),
        (True, PathFacts(), CheckStatus.WRONG),
        (True, PathFacts(sent=False), CheckStatus.WRONG),
        (True, PathFacts(answered=True), CheckStatus.WARNING),
    ):
        finding = checks_switch.restore_wait(is_set, facts)
        assert finding.status is status, (is_set, facts)
        assert ("other_config flow-restore-wait`" in finding.remedy) == is_set


def test_bridge_fails_open_when_the_switch_itself_takes_the_packets() -> None:
    for controllers, mode, trace, status in (
        ((), "", OWN_FLOW, CheckStatus.OK),
        ((AWAY,), "secure", OWN_FLOW, CheckStatus.OK),
        ((AWAY,), "", FAIL_OPEN, CheckStatus.WRONG),
        ((AWAY,), "standalone", FAIL_OPEN, CheckStatus.WRONG),
        ((AWAY, AWAY), "standalone", OWN_FLOW, CheckStatus.WARNING),
        ((AWAY, HERE), "standalone", OWN_FLOW, CheckStatus.OK),
    ):
        bridge = Bridge("br-int", fail_mode=mode, controllers=controllers)
        finding = checks_switch.fail_mode(bridge, trace)
        assert finding.status is status, (controllers, mode)
        assert bool(finding.remedy) == (status is not CheckStatus.OK)
    unknown = checks_switch.fail_mode(Bridge("b", controllers=(AWAY,)), "", "no answer")
    assert unknown.status is CheckStatus.UNKNOWN


def test_packet_filter_is_not_blamed_for_what_the_switch_does() -> None:
    silent = PathFacts(ip6=PathFacts()).because("see the line flow-restore-wait")
    for facts in (silent, silent.over(6)):
        judged = path(facts, SETTINGS)
        assert (judged.status, "flow-restore-wait" in judged.text) == (CheckStatus.UNKNOWN, True)


def test_findings_are_summed_up_in_a_line() -> None:
    finding = ok("fine")
    assert summary([finding]) == "1 ok, 0 warnings, 0 wrong"
    some = [finding, finding, warning("t", "r"), wrong("t", "r"), unknown("t")]
    assert summary(some) == "2 ok, 1 warning, 1 wrong, 1 not checked"


def test_log_of_readiness_names_a_bridge_that_fails_open() -> None:
    probe: Any = SimpleNamespace(bridge="br-int", fault=lambda: "a packet filter")
    for fails_open, words in ((True, "`ovs-vsctl set-fail-mode br-int secure`"), (False, "filter")):
        row = Bridge("br-int", controllers=(ControllerRow("tcp:c", connected=not fails_open),))
        assert words in path_fault(row, probe)
