"""haproxy should have what it needs and nothing else, and be no loss when it ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import eventlet
import pytest

from dfmeta.cmd import haproxy as command
from dfmeta.cmd import privileges
from dfmeta.exceptions import HaproxyError
from dfmeta.proxy.haproxy import process as process_module
from dfmeta.proxy.haproxy.plan import Plan
from dfmeta.proxy.haproxy.process import Process, Secrets
from tests.core.unit.haproxy.support import PROGRAM, Loopback, server, value, wait_ended
from tests.core.unit.support import until
from tests.core.unit.upstream import OK, Upstream, server_context
from tests.harness.certificates import Authority


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: said.strip() for name, said in (line.split(":", 1) for line in lines)}


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_it_is_nobody_has_no_capability_and_no_environment(one: Loopback) -> None:
    status = status_of(one.process.pid)
    assert "0" not in status["Uid"].split()
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    assert Path(f"/proc/{one.process.pid}/environ").read_bytes() == b""


def test_it_ends_and_the_listener_stays(one: Loopback) -> None:
    waiting = eventlet.spawn(one.process.wait)
    one.process.kill()
    waiting.wait()
    assert one.process.status == -signal.SIGKILL
    one.connect().close()
    one.process.kill()


def test_its_end_is_seen_at_once_where_it_never_began(one: Loopback) -> None:
    one.process.kill()
    wait_ended(one.process)
    one.process.wait()
    with pytest.raises(HaproxyError, match="ended at its start with status -9"):
        one.process.wait_ready()


def test_it_must_answer_in_time(one: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "READY_TIMEOUT", 0.02)
    os.kill(one.process.pid, signal.SIGSTOP)
    with pytest.raises(HaproxyError, match=r"did not answer within 0\.02 s"):
        one.process.wait_ready()


def test_a_haproxy_that_does_not_answer_is_killed_where_it_should_leave(
    one: Loopback, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dfmeta.proxy.haproxy.runtime.TIMEOUT", 0.02)
    os.kill(one.process.pid, signal.SIGSTOP)
    one.process.leave()
    assert wait_ended(one.process) == -signal.SIGKILL
    assert "it is killed" in caplog.text


def test_its_lines_come_out_as_the_daemons(caplog: pytest.LogCaptureFixture) -> None:
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


@pytest.mark.parametrize("fails", ["memfd_create", "pipe", "Popen"])
def test_a_start_that_fails_leaves_no_descriptor(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> Any:
        raise OSError(24, "Too many open files")

    before = descriptors()
    monkeypatch.setattr(subprocess if fails == "Popen" else os, fails, fail)
    with pytest.raises(OSError, match="Too many"):
        Process(PROGRAM, Plan(servers=(), handover="h"), Secrets(), listeners=[], told=print)
    assert descriptors() == before


def test_an_end_leaves_no_descriptor(loopback: Callable[..., Loopback]) -> None:
    before = descriptors()
    one = loopback()
    one.end()
    until(lambda: descriptors() <= before, "the end of the readers")


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


@pytest.fixture
def tls(
    upstreams: Callable[..., Upstream], authority: Authority
) -> Iterator[Callable[..., tuple[bytes, Upstream]]]:
    """Asks once over TLS, with a certificate that Nova requires."""
    made: list[Loopback] = []

    def ask(name: str, *, secrets: Secrets, insecure: bool = False) -> tuple[bytes, Upstream]:
        context = server_context(authority.issue(name), authority.certificate)
        upstream = upstreams(lambda _asked: OK, context=context)
        nova = replace(server(upstream), host="nova.example")
        plan = Plan(
            servers=(nova,), tls=True, insecure=insecure, hold_timeout=1.0, handover="dfmeta-none"
        )
        one = Loopback(plan, secrets).ready()
        made.append(one)
        one.put(value())
        return one.ask(), upstream

    yield ask
    for one in made:
        one.end()


def certificates(authority: Authority) -> Secrets:
    pair = authority.issue("client")
    return Secrets(
        ca=authority.certificate.read_bytes(),
        cert=pair.certificate.read_bytes() + b"\n" + pair.key.read_bytes(),
    )


def test_nova_is_asked_over_tls_with_a_certificate_from_memory(
    tls: Callable[..., tuple[bytes, Upstream]], authority: Authority
) -> None:
    answer, upstream = tls("nova.example", secrets=certificates(authority))
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert upstream.asked[0].header("X-Instance-ID") == ["instance"]


def test_an_impostor_gets_no_request(
    tls: Callable[..., tuple[bytes, Upstream]], authority: Authority, tmp_path: Path
) -> None:
    answer, upstream = tls("other.example", secrets=certificates(authority))
    assert not answer.startswith(b"HTTP/1.1 200")
    assert upstream.asked == []
    stranger = Authority(tmp_path, "stranger")
    secrets = replace(certificates(authority), ca=stranger.certificate.read_bytes())
    answer, upstream = tls("nova.example", secrets=secrets)
    assert not answer.startswith(b"HTTP/1.1 200")
    assert upstream.asked == []


def test_any_certificate_is_accepted_where_the_operator_says_so(
    tls: Callable[..., tuple[bytes, Upstream]], authority: Authority
) -> None:
    secrets = replace(certificates(authority), ca=b"")
    answer, _upstream = tls("other.example", secrets=secrets, insecure=True)
    assert answer.startswith(b"HTTP/1.1 200 OK")


# The program that becomes haproxy


ROOM = ("nobody", 8704, privileges.MEMORY + 8704 * command.BUFFERS)
"""The user, the descriptors and the bytes of address space that it keeps."""


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    done: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        privileges,
        "drop",
        lambda user, *, descriptors, memory: done.append((user, descriptors, memory)),
    )
    monkeypatch.setattr(os, "execve", lambda *args: done.append(args))
    return done


def test_haproxy_runs_without_privileges_and_environment(
    executed: list[tuple[Any, ...]],
) -> None:
    command.main(["nobody", "8704", str(os.getppid()), "/haproxy", "-db", "-f", "/proc/self/fd/9"])
    assert executed == [
        ROOM,
        ("/haproxy", ["/haproxy", "-db", "-f", "/proc/self/fd/9"], {}),
    ]


def test_haproxy_does_not_run_where_the_daemon_has_ended(executed: list[tuple[Any, ...]]) -> None:
    command.main(["nobody", "8704", "1", "/haproxy", "-v"])
    assert executed == [ROOM]


def test_a_program_that_the_user_may_not_run_is_one_line(
    executed: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    del executed

    def refuse(*_args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "execve", refuse)
    with pytest.raises(SystemExit) as caught:
        command.main(["nobody", "8704", str(os.getppid()), "/haproxy", "-v"])
    assert caught.value.code == "user nobody cannot run /haproxy: Permission denied"
