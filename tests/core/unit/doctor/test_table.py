"""A row of doctor's table should have lines where it applies, and one that names what it lacks."""

from types import SimpleNamespace
from typing import Any

from dfmeta.doctor.check import Check, Verdict
from dfmeta.doctor.finding import CheckStatus, Finding, ok, wrong
from dfmeta.doctor.table import CHECKS, run


def facts(**values: Any) -> Any:
    """An inspection with these facts."""
    defaults = {"running": True, "has_ovsdb": True, "wanted": SimpleNamespace(meta=None)}
    return SimpleNamespace(**defaults | values)


def lines(verdict: Verdict, inspection: Any, **fields: Any) -> list[Finding]:
    check = Check(name="a", about="A.", run=lambda _of: verdict, **fields)
    return list(check.findings(inspection))


def test_verdicts_get_the_name_of_their_check() -> None:
    both = [ok("fine"), wrong("bad", "mend it")]
    for verdict, number in ((None, 0), ([], 0), (both[0], 1), (both, 2), (iter(both), 2)):
        findings = lines(verdict, facts())
        assert [finding.check for finding in findings] == ["a"] * number


def test_check_without_a_need_is_unknown_by_the_first_that_lacks() -> None:
    needs = ("daemon", "ovsdb")
    for running, ovsdb, text in (
        (True, True, "fine"),
        (True, False, "OVSDB does not answer"),
        (False, True, "dfmeta-agent does not answer"),
        (False, False, "dfmeta-agent does not answer"),
    ):
        (line,) = lines(ok("fine"), facts(running=running, has_ovsdb=ovsdb), needs=needs)
        assert (line.check, line.text) == ("a", text)
        assert (line.status is CheckStatus.OK) == (running and ovsdb)


def test_check_has_no_line_on_other_hosts_whatever_it_needs() -> None:
    assert lines(ok("fine"), facts(running=False), only=("meta",), needs=("daemon",)) == []
    here = facts(wanted=SimpleNamespace(meta="br-meta"))
    assert len(lines(ok("fine"), here, only=("meta",))) == 1


def test_checks_run_by_name_in_the_order_that_is_asked_for() -> None:
    names = ["guests", "bridge"]
    findings = run(facts(running=False, has_ovsdb=False), names)
    assert [finding.check for finding in findings] == names
    assert {check.name for check in CHECKS} >= {*names}
