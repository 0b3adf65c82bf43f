"""OS threads: their end counts, what they wait for, and what they write."""

import io
import sys
from typing import Any

import pytest
from eventlet.patcher import original

from dfmeta.cli import common
from dfmeta.ovsdb.bridge_reader import Update
from dfmeta.ovsdb.watcher import OvsdbWatcher
from dfmeta.runtime.hub import ThreadEndedError, Vital
from tests.core.unit.support import until
from tests.harness.poll import wait_for


def broken(*_args: object, **_named: object) -> None:
    raise ZeroDivisionError("a defect")


def ended(vital: Vital) -> str:
    until(lambda: not vital.alive, "the thread's end")
    with pytest.raises(ThreadEndedError) as caught:
        vital.check()
    return str(caught.value)


def test_end_of_an_os_thread_ends_the_process(vital: Vital) -> None:
    thread = original("threading").Thread(target=vital.guard("one", broken))
    thread.start()
    assert "'one'" in ended(vital)
    thread.join()


@pytest.mark.parametrize(
    ("method", "thread"), [("_deliver", "delivery of OVSDB's changes"), ("_tell", "OVSDB session")]
)
def test_end_of_a_reader_of_ovsdb_ends_the_process(
    vital: Vital, monkeypatch: pytest.MonkeyPatch, method: str, thread: str
) -> None:
    watcher: Any = OvsdbWatcher("unix:/none", "br-int", "tap", deliver=lambda _update: None)
    monkeypatch.setattr(watcher, method, broken)
    watcher.start()
    watcher._updates.append(Update(connected=True))
    try:
        assert thread in ended(vital)
    finally:
        watcher.stop()
        until(lambda: not watcher._thread.is_alive(), "OVSDB's thread to end")


def test_progress_is_written_while_the_work_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "CHECK_INTERVAL", 0)
    monkeypatch.setattr(common, "PROGRESS", 0.001)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with common.shown("copying\n\x1b[2J") as work:
        wait_for(lambda: "copying \\x1b[2J\n" in stream.getvalue(), "a line")
        work.done = 3
        wait_for(lambda: "copying \\x1b[2J: 3\n" in stream.getvalue(), "a line with a number")
    assert all(line.startswith("dfmeta: copying ") for line in stream.getvalue().splitlines())
