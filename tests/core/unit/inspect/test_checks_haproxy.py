"""Judgements on haproxy: its program, its process, its limits and its map."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dfmeta.host.process import read_haproxy
from dfmeta.inspect import checks_haproxy
from dfmeta.inspect.checks_haproxy import ChildFacts, EngineFacts, MapFacts, ProgramFacts
from dfmeta.inspect.finding import Finding
from tests.core.unit.inspect.values import OK, UNKNOWN, WARNING, WRONG, expect, status

NOW = datetime(2026, 11, 25, tzinfo=UTC)
PROGRAM = ProgramFacts(binary="/usr/sbin/haproxy", version="2.6.12", user="nobody")
ENGINE = EngineFacts(pid=7, version="2.6.12", connections=5, maxconn=100, map=MapFacts(entries=3))
CHILD = ChildFacts(user="nobody", uid=65534, capabilities=0, descriptors=712, open=30)


def process(
    engine: EngineFacts = ENGINE, child: ChildFacts | None = CHILD, *, wanted: str = "nobody"
) -> Finding:
    (finding,) = checks_haproxy.process(engine, child, wanted=wanted, now=NOW)
    return finding


def test_haproxy_in_order() -> None:
    found = [
        checks_haproxy.program(PROGRAM, ENGINE),
        process(),
        checks_haproxy.files(ENGINE, CHILD),
        checks_haproxy.connections(ENGINE),
        checks_haproxy.guest_map(ENGINE),
    ]
    assert {status(one) for one in found} == {OK}
    assert [one.text for one in found] == [
        "haproxy 2.6.12, /usr/sbin/haproxy",
        "haproxy (pid 7) runs as user nobody without capabilities",
        "30 of 712 files of haproxy are open",
        "guests have 5 of 100 connections",
        "haproxy's map has the 3 addresses of its guests",
    ]
    silent = list(checks_haproxy.silent())
    assert [status(one) for one in silent] == [UNKNOWN] * 4


def test_program_that_cannot_be_used_or_was_upgraded() -> None:
    lacking, newer = ProgramFacts(cause="it is gone", remedy="Install"), "2.6.13"
    for engine, goes_on in ((ENGINE, True), (None, False), (EngineFacts(), False)):
        found = checks_haproxy.program(lacking, engine)
        expect([(found, WRONG, "it is gone", "Install")])
        assert ("the one that runs goes on" in found.text) == goes_on
        text = f"haproxy {newer} is installed, but 2.6.12 runs" if goes_on else ""
        remedies = ["systemctl reload dfmeta-agent"] if goes_on else []
        upgraded = checks_haproxy.program(replace(PROGRAM, version=newer), engine)
        expect([(upgraded, WARNING if goes_on else OK, text, *remedies)])


def test_process_that_does_not_answer_or_has_privileges() -> None:
    log = "journalctl -u dfmeta-agent"
    runs_as = "it has to run as user nobody"
    for engine, text in (
        (EngineFacts(fault="it ended at its start"), "no haproxy runs: it ended at its start"),
        (EngineFacts(), "no haproxy runs: dfmeta-agent is about to start it"),
        (replace(ENGINE, fault="no answer"), "(pid 7) does not answer dfmeta-agent: no answer"),
        (replace(ENGINE, failed_replacement="it ended"), "has not started: it ended"),
    ):
        expect([(process(engine, None), WRONG, text, log)])
    for child, text in (
        (replace(CHILD, user="root", uid=0), "user root with no capability"),
        (replace(CHILD, capabilities=1 << 12), "user nobody with capabilities 0x1000"),
        (replace(CHILD, user="daemon", uid=1), "user daemon with no capability"),
    ):
        expect([(process(child=child), WRONG, text), (process(child=child), WRONG, runs_as)])
    own = replace(CHILD, user="dfmeta", uid=900)
    expect(
        [
            (process(child=own, wanted=""), OK, ""),  # The daemon is not root.
            (process(child=None), UNKNOWN, ""),
            (checks_haproxy.files(ENGINE, None), UNKNOWN, ""),
        ]
    )


def test_restart_after_a_fault_is_a_warning_for_an_hour() -> None:
    fault = replace(ENGINE, restarts=2, last_fault="hangs")
    twice = "started again 2 times after a fault"
    late = process(replace(fault, last_restart=NOW - timedelta(hours=2)))
    once = replace(fault, restarts=1, last_restart=NOW + timedelta(seconds=1))
    expect(
        [
            (
                process(replace(fault, last_restart=NOW - timedelta(minutes=5))),
                *(WARNING, f"{twice}, the last time 5 min ago: it hangs"),
            ),
            (late, OK, f"it was {twice}"),
            (process(once), WARNING, "again once after a fault, the last time 0 s ago"),
        ]
    )


def test_limits_are_named_before_they_are_reached() -> None:
    for taken, expected in ((89, OK), (90, WARNING), (100, WRONG)):
        remedies = [] if expected is OK else ["raise [haproxy] maxconn"]
        for found in (
            checks_haproxy.files(ENGINE, replace(CHILD, open=taken, descriptors=100)),
            checks_haproxy.connections(replace(ENGINE, connections=taken)),
        ):
            expect([(found, expected, f"{taken} of 100", *remedies)])
    expect([(checks_haproxy.connections(replace(ENGINE, connections=None)), UNKNOWN, "")])


def test_map_that_differs_is_a_fault_in_numbers() -> None:
    other = MapFacts(entries=9, missing=1, superfluous=2, different=3)
    text = "1 missing, 2 superfluous, 3 different, of 9 entries"
    expect(
        [
            (checks_haproxy.guest_map(replace(ENGINE, map=other)), WRONG, text),
            (checks_haproxy.guest_map(replace(ENGINE, map=None)), UNKNOWN, ""),
        ]
    )


def test_process_is_read_in_proc_if_it_is_the_daemons(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    (folder / "fd").mkdir(parents=True)
    for name in "01":
        (folder / "fd" / name).symlink_to("/dev/null")
    capabilities = "CapInh:\t0\nCapPrm:\t1000\nCapEff:\t0\nCapAmb:\t1\n"
    (folder / "status").write_text(f"PPid:\t5\nUid:\t65534\t65534\t65534\t65534\n{capabilities}")
    (folder / "limits").write_text("Max open files            8704      8704      files\n")
    found = read_haproxy(7, 5, proc=tmp_path)
    assert found is not None
    assert (found.uid, found.capabilities) == (65534, 0x1001)
    assert (found.descriptors, found.open) == (8704, 2)
    assert read_haproxy(7, 6, proc=tmp_path) is None
    assert read_haproxy(8, 5, proc=tmp_path) is None
    (folder / "status").write_text(f"PPid:\t5\nUid:\t4000123 4000123\n{capabilities}")
    (folder / "limits").write_text("Max open files  unlimited  unlimited  files\n")
    found = read_haproxy(7, 5, proc=tmp_path)
    assert found is not None
    assert (found.user, found.descriptors) == ("4000123", 1 << 30)
    (folder / "status").write_text("PPid:\t5\nUid:\t4000123 4000123\nCapInh:\t0\n")
    assert read_haproxy(7, 5, proc=tmp_path) is None
