"""Names should be resolved by the C library, anew, and keep nobody and nothing waiting."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import eventlet
import pytest
from eventlet.patcher import original

from dfmeta.runtime import names
from dfmeta.runtime.names import STALE, Names
from tests.core.unit.support import until

threading = original("threading")
AWAY = socket.gaierror(socket.EAI_AGAIN, "no nameserver")
UNKNOWN = socket.gaierror(socket.EAI_NONAME, "no such name")
LONG = 60.0


class Library:
    """The C library: a look-up waits in its thread until it is let go, if it is silent."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {}
        self.silent = False
        self.gates: list[Any] = []
        self.now = 0.0
        self.names = Names(self.call, clock=lambda: self.now)

    def call(self, name: str) -> Any:
        self.asked.append(name)
        if self.silent:
            gate = threading.Event()
            self.gates.append(gate)
            gate.wait(LONG)
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def let_go(self) -> None:
        self.silent = False
        for gate in self.gates:
            gate.set()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    monkeypatch.setattr(names, "LIMIT", LONG)
    made = Library()
    made.answers["nova"] = ["192.0.2.1"]
    yield made
    made.let_go()


def test_the_hub_goes_on_and_all_that_ask_share_an_answer(library: Library) -> None:
    library.silent = True
    asking = [eventlet.spawn(library.names, "nova") for _ in range(5)]
    until(lambda: library.gates, "the look-up")
    assert not any(thread.dead for thread in asking)
    library.let_go()
    assert [thread.wait() for thread in asking] == [["192.0.2.1"]] * 5
    assert library.asked == ["nova"]


def test_an_answer_is_kept_for_a_burst_and_then_asked_for_anew(library: Library) -> None:
    assert library.names("nova") == ["192.0.2.1"]
    library.answers["nova"] = ["192.0.2.2"]
    library.now += names.KEEP / 2
    assert library.names("nova") == ["192.0.2.1"]
    library.now += names.KEEP
    assert library.names("nova") == ["192.0.2.2"]
    assert library.asked == ["nova"] * 2


def test_look_up_ends_at_the_limit(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    library.silent = True
    with pytest.raises(socket.gaierror) as caught:
        library.names("nova", seconds=0)
    assert caught.value.errno == socket.EAI_AGAIN
    monkeypatch.setattr(names, "LIMIT", 0.0)
    with pytest.raises(socket.gaierror, match="in time"):
        library.names("nova", seconds=LONG)


@pytest.mark.parametrize("error", [UNKNOWN, UnicodeError("label too long")])
def test_an_error_of_the_name_is_everybodys(library: Library, error: Exception) -> None:
    assert library.names("nova") == ["192.0.2.1"]
    library.answers["nova"] = error
    library.now += names.KEEP
    for thread in [eventlet.spawn(library.names, "nova") for _ in range(2)]:
        with pytest.raises(type(error)):
            thread.wait()
    # It is no more: what was known of it stands in no longer.
    library.answers["nova"] = AWAY
    with pytest.raises(socket.gaierror) as caught:
        library.names("nova")
    assert caught.value.errno == socket.EAI_AGAIN


@pytest.mark.parametrize("silent", [False, True])
def test_an_old_answer_stands_in_while_there_is_no_nameserver(
    library: Library, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    assert library.names("nova") == ["192.0.2.1"]
    monkeypatch.setattr(names, "KEEP", 0.0)
    library.answers["nova"], library.silent = AWAY, silent
    library.now += STALE - 1
    assert [library.names("nova") for _ in range(3)] == [["192.0.2.1"]] * 3
    library.now += 1
    with pytest.raises(socket.gaierror):
        library.names("nova", seconds=0)


@pytest.mark.parametrize("host", ["192.0.2.1", "::1", None])
def test_an_address_needs_no_thread(host: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_addresses", None)
    options: tuple[int, int] = (0, socket.SOCK_STREAM)
    assert names.getaddrinfo(host, 80, *options) == socket.getaddrinfo(host, 80, *options)


PROGRAM = """
import gc, sys, time
from dfmeta.runtime import patch
patch()
assert not gc.isenabled()
import eventlet, socket
from eventlet.green import socket as green
from eventlet.patcher import original
from dfmeta.runtime import names
assert socket.getaddrinfo is green.getaddrinfo is names.getaddrinfo
for name in names.OTHERS:
    assert isinstance(getattr(socket, name), names.Names), name
assert "eventlet.support.greendns" not in sys.modules, "eventlet's own resolver"
with eventlet.Timeout(0.1, False):
    names.Names(original("time").sleep)(600)
print("left")
"""


def test_a_process_is_patched_whole_and_ends_while_a_look_up_hangs() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == ("left\n", 0), ran.stderr
