"""The start, the lines and the privileges of haproxy, without haproxy."""

from __future__ import annotations

import logging
import os
import subprocess
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest

from dfmeta.cmd import haproxy as command
from dfmeta.cmd import privileges
from dfmeta.exceptions import HaproxyError
from dfmeta.proxy.haproxy import process as process_module
from dfmeta.proxy.haproxy.config import server_names
from dfmeta.proxy.haproxy.process import Process, Secrets
from dfmeta.proxy.haproxy.program import Program
from dfmeta.runtime import clock
from tests.core.unit.haproxy.support import PLANS

PROGRAM = Program(binary="/haproxy", user="nobody")


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


class Started:
    """A process of haproxy of which only the command is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plan: str, *answers: str | None) -> None:
        self.commands: list[str] = []
        self.status: int | None = None
        self.files: dict[str, bytes] = {}
        self._answers = list(answers)
        monkeypatch.setattr(subprocess, "Popen", self._popen)
        self.process = Process(
            PROGRAM, PLANS[plan], Secrets(ca=b"authority"), listeners=[], told=print
        )
        self.process.runtime.ask = self._ask  # type: ignore[method-assign]

    def _popen(self, command: list[str], *, pass_fds: list[int], **options: Any) -> Any:
        self.command, self.options = command, options
        for one in pass_fds:
            name = os.readlink(f"/proc/self/fd/{one}")
            if name.startswith("/memfd:"):
                self.files[name.split()[0]] = os.pread(one, 1 << 20, 0)
        return SimpleNamespace(pid=7, poll=lambda: self.status, wait=lambda: self.status)

    def _ask(self, command: str, *, timeout: float = 0.0) -> str:
        self.commands.append(command)
        answer = self._answers.pop(0) if self._answers else None
        if answer is None:
            raise HaproxyError(cause="no")
        return answer


def test_secrets_are_in_memory_and_not_among_the_words_of_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = Started(monkeypatch, "tls")
    assert started.files["/memfd:dfmeta-ca"] == b"authority"
    assert started.files["/memfd:dfmeta-map"] == b""
    assert b"core.register_action" in started.files["/memfd:dfmeta-waiting"]
    assert b"frontend guests" in started.files["/memfd:dfmeta-configuration"]
    assert "/memfd:dfmeta-cert" not in started.files
    assert "authority" not in " ".join(started.command)
    words = ["nobody", str(2 * 4096 + 512), str(os.getpid()), "/haproxy", "-db", "-f"]
    assert started.command[3:-1] == words
    assert started.options["stdin"] == started.options["stdout"] == subprocess.DEVNULL
    started.process.close()


def test_process_is_ready_when_it_answers_and_takes_several_hosts_for_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = Started(monkeypatch, "several hosts", None, "info", "\n")
    started.process.wait_ready()
    names = server_names(PLANS["several hosts"])
    assert started.commands == [
        *("show info", "show info"),
        ";".join(f"set server {name} health down" for name in names),
    ]
    alone = Started(monkeypatch, "plain", "info")
    alone.process.wait_ready()
    assert alone.commands == ["show info"]
    mute, begun = Started(monkeypatch, "plain"), clock.now()
    with pytest.raises(HaproxyError, match="did not answer within 10 s"):
        mute.process.wait_ready()
    assert clock.now() - begun == pytest.approx(10, abs=0.1)
    mute.status = 1
    with pytest.raises(HaproxyError, match="ended at its start with status 1"):
        mute.process.wait_ready()
    for one in (started, alone, mute):
        one.process.close()


@pytest.mark.parametrize("fails", ["memfd_create", "pipe", "Popen"])
def test_start_that_fails_leaves_no_descriptor(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> Any:
        raise OSError(24, "Too many open files")

    before = descriptors()
    monkeypatch.setattr(subprocess if fails == "Popen" else os, fails, fail)
    with pytest.raises(OSError, match="Too many"):
        Process(PROGRAM, PLANS["no server"], Secrets(), listeners=[], told=print)
    assert descriptors() == before


def test_lines_of_haproxy_come_out_as_the_daemons(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for line in (
        "[ALERT]    (12) : config : it is wrong",
        "[WARNING]  (12) : Server nova/nova0 is DOWN",
        "[NOTICE]   (12) : haproxy version is 2.6",
        "[WARNING]  (12) : Proxy guests stopped (cumulated conns: FE: 0, BE: 0).",
        "something else",
    ):
        Process._say(line)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "haproxy: config : it is wrong"),
        ("WARNING", "haproxy: Server nova/nova0 is DOWN"),
        ("DEBUG", "haproxy: haproxy version is 2.6"),
        ("DEBUG", "haproxy: Proxy guests stopped (cumulated conns: FE: 0, BE: 0)."),
        ("WARNING", "haproxy: something else"),
    ]


def test_lines_are_read_in_pieces_and_only_the_end_of_a_long_one_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_module, "_LINE_MAX", 8)
    got: list[str] = []
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n0123456789abcdef\n\xff\n")
    os.close(writing)
    eventlet.spawn(process_module._read_lines, reading, got.append).wait()
    assert got == ["one", "two", "89abcdef", "\N{REPLACEMENT CHARACTER}"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)


# The program that becomes haproxy


def test_program_gives_up_privileges_and_environment_and_runs_only_beside_its_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        privileges,
        "drop",
        lambda user, *, descriptors, memory: done.append((user, descriptors, memory)),
    )
    monkeypatch.setattr(os, "execve", lambda *args: done.append(args))
    room = ("nobody", 8704, privileges.MEMORY + 8704 * command.BUFFERS)
    command.main(["nobody", "8704", str(os.getppid()), "/haproxy", "-db", "-f", "/proc/self/fd/9"])
    assert done == [room, ("/haproxy", ["/haproxy", "-db", "-f", "/proc/self/fd/9"], {})]
    done.clear()
    command.main(["nobody", "8704", "1", "/haproxy", "-v"])
    assert done == [room], "its daemon has ended"

    def refuse(*_args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "execve", refuse)
    with pytest.raises(SystemExit) as caught:
        command.main(["nobody", "8704", str(os.getppid()), "/haproxy", "-v"])
    assert caught.value.code == "user nobody cannot run /haproxy: Permission denied"
