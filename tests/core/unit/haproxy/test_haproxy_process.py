"""The configuration, the start and the privileges of haproxy, without haproxy."""

import logging
import os
import re
import subprocess
from dataclasses import replace
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest

from dfmeta.cmd import privileges
from dfmeta.errors import HaproxyError
from dfmeta.http.limits import Limits
from dfmeta.identity.registry import Registry
from dfmeta.proxy.engines.haproxy import process as process_module
from dfmeta.proxy.engines.haproxy.config import render, server_names, waiting
from dfmeta.proxy.engines.haproxy.counts import Counts
from dfmeta.proxy.engines.haproxy.plan import HaproxyPlan, Program, Secrets
from dfmeta.proxy.engines.haproxy.process import Process
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import QUIET
from tests.core.unit.haproxy.support import FOUR, GIVEN, OTHER, PLANS, SIX
from tests.harness.tier import CLOCK


def test_no_certificate_passes_unseen_unless_the_operator_says_so() -> None:
    text = render(PLANS["tls"], replace(GIVEN, ca=8, cert=9))
    servers = [line for line in text.splitlines() if " server nova" in line]
    assert len(servers) == 4
    for line in servers:
        assert "verify required verifyhost nova.example ca-file /proc/self/fd/8" in line
        assert "sni str(nova.example) check-sni nova.example crt /proc/self/fd/9" in line
    assert "verify none" not in text
    system = render(PLANS["tls"], GIVEN)
    assert "ca-file @system-ca" in system
    assert " crt " not in system
    insecure = render(PLANS["tls, insecure"], replace(GIVEN, ca=8))
    assert "verify none" in insecure
    assert "verify required" not in insecure
    assert "ssl" not in render(PLANS["plain"], GIVEN)


def test_slow_host_of_several_has_half_of_the_time_and_then_rests() -> None:
    alone, several = (render(PLANS[name], GIVEN) for name in ("plain", "several hosts"))
    for text, milliseconds in ((alone, 8000), (several, 4000)):
        assert re.findall(r"timeout server (\d+)", text)[0] == str(milliseconds)
        assert "timeout queue 8000\n" in text
    assert several.count("acl late date(0,ms),sub(txn.begun) ge 4000\n") == 2
    assert "acl late" not in alone
    assert several.count("retry-on conn-failure empty-response junk-response response-timeout") == 2
    assert alone.count("retry-on conn-failure empty-response\n") == 2
    assert (several.count("    retries 3\n"), alone.count("    retries 3\n")) == (2, 2)


def test_each_of_several_hosts_has_the_value_of_its_own_host_header_as_its_name() -> None:
    servers = (FOUR, SIX, replace(SIX, address=ip_address("2001:db8::2")), OTHER)
    plan = replace(PLANS["several hosts"], servers=servers)
    text = render(plan, GIVEN)
    names = re.findall(r"^    server (\S+) \S+ check", text, flags=re.MULTILINE)
    assert names[:4] == names[4:]
    assert names[0] == "nova.example:8775"
    assert names[3] == "other.example:1"
    assert len(set(names)) == 4
    assert {name.lower() for name in names} == {"nova.example:8775", "other.example:1"}
    assert text.count("http-send-name-header Host") == 2
    backends = ("nova", "nova_closes")
    assert server_names(plan) == [f"{backend}/{name}" for backend in backends for name in names[:4]]


def test_answer_waits_in_lua_for_at_most_hold_timeout() -> None:
    plan = replace(PLANS["plain"], hold_timeout=3.0)
    text = waiting(plan, GIVEN)
    assert 'Map.new("/proc/self/fd/6", Map._ip)' in text
    assert "for _ = 1, 300 do" in text
    assert "core.msleep(10)" in text
    assert render(plan, replace(GIVEN, waiting=8)).count("lua.settle if doubt") == 2
    assert "lua" not in render(plan, GIVEN)


def test_options_have_their_lines() -> None:
    limits = Limits(header_timeout=2, keepalive_timeout=3, send_timeout=4, connections_per_port=5)
    limited = HaproxyPlan(servers=(FOUR,), limits=limits)
    most = limits.connections_per_port + limits.waiting_per_port
    for plan, *lines in (
        (PLANS["large"], " maxconn 98304", " maxconn 65536", " nbthread 2", " timeout queue 1"),
        (PLANS["large"], "    server daemon unix@/proc/self/fd/8 send-proxy-v2"),
        (PLANS["several hosts"], "    server daemon unix@/proc/self/fd/8 backup send-proxy-v2"),
        (limited, "    timeout http-request 2000\n", "    timeout http-keep-alive 3000\n"),
        (limited, "    timeout client 4000\n", f"reject if {{ sc0_conn_cur gt {most} }}"),
        (limited, f"acl crowded sc0_conn_cur gt {limits.requests_per_port}\n"),
        (PLANS["no keepalive"], "option httpclose"),
        (PLANS["forwarded"], "'x-forwarded-for'"),
        (PLANS["plain"], "set-log-level silent if well"),
        (PLANS["subports"], "{ path -m sub /network_data.json }"),
        (PLANS["503"], "default_backend nova\n"),
        (PLANS["close"], "default_backend nova_closes\n"),
        (PLANS["no server"], "use_backend daemon \n"),
        (PLANS["plain"], "use_backend nova_closes if version !versions"),
    ):
        text = render(plan, GIVEN)
        assert [line for line in lines if line not in text] == []
    assert "option httpclose" not in render(limited, GIVEN)
    assert "silent if well" not in render(PLANS["debug"], GIVEN)


PROGRAM = Program(binary="/haproxy", user="dfmeta-haproxy")


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


class Started:
    """A process of haproxy of which only the command is there."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, plan: str, *answers: str | None, cert: bytes = b""
    ) -> None:
        self.commands: list[str] = []
        self.status: int | None = None
        self.files: dict[str, bytes] = {}
        self.key = -1
        """haproxy's descriptor of the file with its certificate and private key."""
        self._answers = list(answers)
        monkeypatch.setattr(subprocess, "Popen", self._popen)
        self.process = Process(
            replace(PLANS[plan], program=PROGRAM, secrets=Secrets(ca=b"authority", cert=cert)),
            listeners=[],
            handover=0,
            counts=Counts(Registry()),
        )
        self.process.runtime.ask = self._ask  # type: ignore[method-assign]

    def _popen(self, command: list[str], *, pass_fds: list[int], **options: Any) -> Any:
        self.command, self.options = command, options
        for descriptor in pass_fds:
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name.startswith("/memfd:"):
                self.files[name.split()[0]] = os.pread(descriptor, 1 << 20, 0)
            if "dfmeta-cert" in name:
                self.key = os.dup(descriptor)
        return SimpleNamespace(
            pid=7, poll=lambda: self.status, wait=lambda: self.status, kill=lambda: None
        )

    def _ask(self, command: str, *, timeout: float = 0.0) -> str:
        self.commands.append(command)
        answer = self._answers.pop(0) if self._answers else None
        if answer is None:
            raise HaproxyError(cause="no")
        return answer


def test_secrets_are_in_memory_and_not_in_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch, "tls")
    assert started.files["/memfd:dfmeta-ca"] == b"authority"
    assert started.files["/memfd:dfmeta-map"] == b""
    assert b"core.register_action" in started.files["/memfd:dfmeta-waiting"]
    assert b"frontend guests" in started.files["/memfd:dfmeta-configuration"]
    assert "/memfd:dfmeta-cert" not in started.files
    assert "authority" not in " ".join(started.command)
    words = ["dfmeta-haproxy", str(3 * 4096 + 512), str(os.getpid()), "/haproxy", "-db", "-f"]
    assert started.command[3:-1] == words
    assert started.options["stdin"] == started.options["stdout"] == subprocess.DEVNULL
    started.process.close()


def test_private_keys_file_is_empty_once_haproxy_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch, "tls", None, "info", cert=b"private key")
    assert os.pread(started.key, 100, 0) == b"private key"
    started.process.wait_ready()
    assert os.pread(started.key, 100, 0) == b""
    os.close(started.key)
    started.process.close()


def test_answering_process_is_ready_whatever_hosts_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    names = server_names(PLANS["several hosts"])
    down = ";".join(f"set server {name} health down" for name in names)
    for plan, answers, commands in (
        ("several hosts", (None, "info", "\n"), ["show info", "show info", down]),
        ("plain", ("info",), ["show info"]),
    ):
        started = Started(monkeypatch, plan, *answers)
        started.process.wait_ready()
        assert started.commands == commands
        started.process.close()
    mute, begun = Started(monkeypatch, "plain"), clock.now()
    with pytest.raises(HaproxyError, match="did not answer within 30 s"):
        mute.process.wait_ready()
    assert clock.now() - begun == pytest.approx(30, abs=0.1)
    mute.status = 1
    with pytest.raises(HaproxyError, match="ended at its start with status 1"):
        mute.process.wait_ready()
    mute.process.close()


@pytest.mark.parametrize("cert", [b"", b"key"])
@pytest.mark.parametrize("fails", ["memfd_create", "pipe", "Popen"])
def test_failed_start_closes_all(fails: str, cert: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> Any:
        raise OSError(24, "Too many open files")

    before = descriptors()
    monkeypatch.setattr(subprocess if fails == "Popen" else os, fails, fail)
    with pytest.raises(OSError, match="Too many"):
        Process(
            replace(PLANS["no server"], program=PROGRAM, secrets=Secrets(cert=cert)),
            listeners=[],
            handover=0,
            counts=Counts(Registry()),
        )
    assert descriptors() == before


def test_lines_of_haproxy_come_out_as_the_daemons(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    rows = [
        ("[ALERT]    (12) : ", "config : it is wrong", "ERROR"),
        ("[WARNING]  (12) : ", "Server nova/nova0 is DOWN", "WARNING"),
        ("[NOTICE]   (12) : ", "haproxy version is 2.6", "DEBUG"),
        ("[WARNING]  (12) : ", "Proxy guests stopped (cumulated conns: FE: 0, BE: 0).", "DEBUG"),
        ("", "something else", "WARNING"),
    ]
    process = Started(monkeypatch, "plain").process
    for head, text, _level in rows:
        process._say(head + text)
    process.close()
    assert [(record.getMessage(), record.levelname) for record in caplog.records] == [
        (f"haproxy: {text}", level) for _head, text, level in rows
    ]


def test_many_lines_of_haproxy_are_counted_and_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Started(monkeypatch, "plain").process
    for _ in range(100):
        process._say("[NOTICE]   (12) : nothing of note")
        process._say("Connect() failed for backend daemon")
    assert len(caplog.records) == 20
    CLOCK.advance(QUIET)
    process._say("Connect() failed for backend daemon")
    process.close()
    assert caplog.messages[-1].endswith("(and 80 more like it since it was last logged)")


def test_lines_come_in_pieces_and_long_lines_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "PIECE", 8)
    got: list[str] = []
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n0123456789abcdef\n\xff\n")
    os.close(writing)
    eventlet.spawn(process_module._read_lines, reading, got.append).wait()
    assert got == ["one", "two", "89abcdef", "\N{REPLACEMENT CHARACTER}"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)


def test_program_is_unprivileged_and_ends_with_its_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        privileges,
        "drop",
        lambda user, *, descriptors, memory: done.append((user, descriptors, memory)),
    )
    monkeypatch.setattr(os, "execve", lambda *args: done.append(args))
    room = ("dfmeta-haproxy", 8704, privileges.MEMORY + 8704 * privileges.BUFFERS)
    privileges.main(
        ["dfmeta-haproxy", "8704", str(os.getppid()), "/haproxy", "-db", "-f", "/proc/self/fd/9"]
    )
    assert done == [room, ("/haproxy", ["/haproxy", "-db", "-f", "/proc/self/fd/9"], {})]
    done.clear()
    privileges.main(["dfmeta-haproxy", "8704", "1", "/haproxy", "-v"])
    assert done == [room], "its daemon has ended"

    def refuse(*_args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "execve", refuse)
    with pytest.raises(SystemExit) as caught:
        privileges.main(["dfmeta-haproxy", "8704", str(os.getppid()), "/haproxy", "-v"])
    assert caught.value.code == "user dfmeta-haproxy cannot run /haproxy: Permission denied"
