"""Judgements on haproxy: its program, its process, its limits and its map."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dfmeta.host.process import read_haproxy
from dfmeta.inspect import checks_haproxy
from dfmeta.inspect.checks_haproxy import ChildFacts, EngineFacts, MapFacts, ProgramFacts
from dfmeta.inspect.finding import Finding, Status
from tests.core.unit.inspect.test_checks import status

NOW = datetime(2026, 11, 25, tzinfo=UTC)
PROGRAM = ProgramFacts(binary="/usr/sbin/haproxy", version="2.6.12", user="nobody")
ENGINE = EngineFacts(pid=7, version="2.6.12", connections=5, maxconn=100, map=MapFacts(entries=3))
CHILD = ChildFacts(user="nobody", uid=65534, capabilities=0, descriptors=712, open=30)


def judged(
    engine: EngineFacts = ENGINE, child: ChildFacts | None = CHILD, *, wanted: str = "nobody"
) -> list[Finding]:
    return list(checks_haproxy.process(engine, child, wanted=wanted, now=NOW))


def all_of(engine: EngineFacts, child: ChildFacts | None) -> list[Finding]:
    return [
        checks_haproxy.program(PROGRAM, engine),
        *judged(engine, child),
        checks_haproxy.files(engine, child),
        checks_haproxy.connections(engine),
        checks_haproxy.guest_map(engine),
    ]


def test_a_haproxy_in_order() -> None:
    found = all_of(ENGINE, CHILD)
    assert {status(one) for one in found} == {Status.OK}
    assert [one.text for one in found] == [
        "haproxy 2.6.12, /usr/sbin/haproxy",
        "haproxy (pid 7) runs as user nobody without capabilities",
        "30 of 712 files of haproxy are open",
        "guests have 5 of 100 connections",
        "haproxy's map has the 3 addresses of its guests",
    ]


# The program


def test_a_program_that_cannot_be_used_is_a_fault_whether_haproxy_runs_or_not() -> None:
    lacking = ProgramFacts(cause="it is gone", remedy="Install it")
    for engine, words in ((ENGINE, "the one that runs goes on"), (None, ""), (EngineFacts(), "")):
        found = checks_haproxy.program(lacking, engine)
        assert status(found) is Status.WRONG
        assert words in found.text
        assert ("goes on" in found.text) == bool(words)
        assert found.remedy == "Install it"


def test_a_program_that_was_upgraded_needs_a_reload() -> None:
    found = checks_haproxy.program(replace(PROGRAM, version="2.6.13"), ENGINE)
    assert status(found) is Status.WARNING
    assert "haproxy 2.6.13 is installed, but 2.6.12 runs" in found.text
    assert "systemctl reload dfmeta-agent" in found.remedy
    other = replace(PROGRAM, version="2.6.13")
    assert status(checks_haproxy.program(other, None)) is Status.OK
    assert status(checks_haproxy.program(other, EngineFacts())) is Status.OK


# The process


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (EngineFacts(fault="it ended at its start"), "no haproxy runs: it ended at its start"),
        (EngineFacts(), "no haproxy runs: dfmeta-agent is about to start it"),
        (replace(ENGINE, fault="no answer"), "(pid 7) does not answer dfmeta-agent: no answer"),
        (replace(ENGINE, failed_replacement="it ended"), "has not started: it ended"),
    ],
)
def test_a_haproxy_that_does_not_answer_guests(engine: EngineFacts, words: str) -> None:
    (found,) = judged(engine, None)
    assert status(found) is Status.WRONG
    assert words in found.text
    assert "journalctl -u dfmeta-agent" in found.remedy


@pytest.mark.parametrize(
    ("child", "words"),
    [
        (replace(CHILD, user="root", uid=0), "user root with no capability"),
        (replace(CHILD, capabilities=1 << 12), "user nobody with capabilities 0x1000"),
        (replace(CHILD, user="daemon", uid=1), "user daemon with no capability"),
    ],
)
def test_a_haproxy_with_privileges_or_of_another_user(child: ChildFacts, words: str) -> None:
    (found,) = judged(child=child)
    assert status(found) is Status.WRONG
    assert words in found.text
    assert "it has to run as user nobody" in found.text


def test_a_daemon_that_is_not_root_runs_haproxy_as_its_own_user() -> None:
    (found,) = judged(child=replace(CHILD, user="dfmeta", uid=900), wanted="")
    assert status(found) is Status.OK


def test_a_process_that_cannot_be_seen_is_unknown() -> None:
    assert [status(one) for one in judged(child=None)] == [Status.UNKNOWN]
    assert status(checks_haproxy.files(ENGINE, None)) is Status.UNKNOWN


def test_a_restart_after_a_fault_is_a_warning_for_an_hour() -> None:
    fault = replace(ENGINE, restarts=2, last_fault="hangs")
    (found,) = judged(replace(fault, last_restart=NOW - timedelta(minutes=5)))
    assert status(found) is Status.WARNING
    assert "started again 2 times after a fault, the last time 5 min ago: it hangs" in found.text
    (found,) = judged(replace(fault, last_restart=NOW - timedelta(hours=2)))
    assert status(found) is Status.OK
    assert found.text.endswith("it was started again 2 times after a fault")
    (once,) = judged(replace(fault, restarts=1, last_restart=NOW + timedelta(seconds=1)))
    assert "started again once after a fault, the last time 0 s ago" in once.text


# Limits


@pytest.mark.parametrize(
    ("taken", "expected"), [(89, Status.OK), (90, Status.WARNING), (100, Status.WRONG)]
)
def test_limits_are_named_before_they_are_reached(taken: int, expected: Status) -> None:
    files = checks_haproxy.files(ENGINE, replace(CHILD, open=taken, descriptors=100))
    guests = checks_haproxy.connections(replace(ENGINE, connections=taken))
    for found in (files, guests):
        assert status(found) is expected
        assert f"{taken} of 100" in found.text
        assert ("raise [haproxy] maxconn" in found.remedy) == (expected is not Status.OK)


def test_connections_that_were_not_told_are_unknown() -> None:
    found = checks_haproxy.connections(replace(ENGINE, connections=None))
    assert status(found) is Status.UNKNOWN


# The map


def test_a_map_that_differs_is_told_in_numbers() -> None:
    other = MapFacts(entries=9, missing=1, superfluous=2, different=3)
    found = checks_haproxy.guest_map(replace(ENGINE, map=other))
    assert status(found) is Status.WRONG
    assert "1 missing, 2 superfluous, 3 different, of 9 entries" in found.text
    assert status(checks_haproxy.guest_map(replace(ENGINE, map=None))) is Status.UNKNOWN


def test_a_daemon_that_tells_nothing_leaves_the_checks_unknown() -> None:
    found = list(checks_haproxy.silent())
    assert {status(one) for one in found} == {Status.UNKNOWN}
    assert len(found) == 4


# Its process in proc(5)


def test_the_process_is_read_if_it_is_the_daemons(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    (folder / "fd").mkdir(parents=True)
    (folder / "fd/0").symlink_to("/dev/null")
    (folder / "fd/1").symlink_to("/dev/null")
    (folder / "status").write_text(
        "PPid:\t5\nUid:\t65534\t65534\t65534\t65534\n"
        "CapInh:\t0\nCapPrm:\t1000\nCapEff:\t0\nCapAmb:\t1\n"
    )
    (folder / "limits").write_text("Max open files            8704      8704      files\n")
    found = read_haproxy(7, 5, proc=tmp_path)
    assert found is not None
    assert (found.uid, found.capabilities) == (65534, 0x1001)
    assert (found.descriptors, found.open) == (8704, 2)
    assert read_haproxy(7, 6, proc=tmp_path) is None
    assert read_haproxy(8, 5, proc=tmp_path) is None
    (folder / "status").write_text("PPid:\t5\nUid:\t4000123 4000123\n" + "CapInh:\t0\n")
    assert read_haproxy(7, 5, proc=tmp_path) is None


def test_a_user_without_a_name_is_its_number(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    (folder / "fd").mkdir(parents=True)
    none = "".join(f"Cap{kind}:\t0\n" for kind in ("Inh", "Prm", "Eff", "Amb"))
    (folder / "status").write_text(f"PPid:\t5\nUid:\t4000123 4000123\n{none}")
    (folder / "limits").write_text("Max open files  unlimited  unlimited  files\n")
    found = read_haproxy(7, 5, proc=tmp_path)
    assert found is not None
    assert (found.user, found.descriptors) == ("4000123", 1 << 30)
