"""A program should end with one line and an exit status, whatever its input and its output do.

A daemon should report to systemd, and to the journal, as the manual pages of systemd say.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dfmeta.store.db.repository import Repository
from tests.harness.activator import WEDGE, Activator, Manager
from tests.harness.central import GUEST_PORT, Central
from tests.harness.netns import Namespace
from tests.harness.poll import wait_for

INSTANCE = "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "dfmeta.conf"
    folders = f"state_path = {tmp_path}\nlibvirt_xml_path = {tmp_path}"
    file.write_text(f"[df_metadata]\n{folders}\n[store]\nconnection = sqlite:///{tmp_path}/s.db\n")
    return file


@pytest.mark.parametrize("name", ["dfmeta", "dfmeta-agent", "dfmeta-store", "dfmeta-tag-devices"])
def test_program_names_an_unknown_option(name: str) -> None:
    done = subprocess.run([program(name), "--bogus"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"{name}: ")
    assert "--bogus" in last
    assert "Traceback" not in done.stderr


def reads_stdin(pid: int) -> bool:
    """Whether a process waits in read(2) of descriptor 0 (proc(5), /proc/pid/syscall)."""
    call = Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()
    return call[:2] in (["0", "0x0"], ["63", "0x0"])


def test_interrupt_gives_status_130_and_no_traceback(config: Path) -> None:
    words = [program("dfmeta"), "store", "import", "--config-file", str(config), "-"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        wait_for(lambda: reads_stdin(process.pid), "the import to wait for its input")
        process.send_signal(signal.SIGINT)
        _out, error = process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in error


def test_character_that_the_locale_lacks_is_escaped(config: Path) -> None:
    with Repository(f"sqlite:///{config.parent}/s.db") as store:
        store.put(INSTANCE, document={"name": "w\u00fcrfel\u2603"})
    done = subprocess.run(
        [program("dfmeta"), "store", "list", "--config-file", str(config)],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"w\xfcrfel\\u2603" in done.stdout


FEED = 0.2
"""Seconds between two messages to the watchdog: half of its time."""


def under_systemd(central: Central, manager: Manager) -> None:
    """Give the daemon what systemd gives it, and the means to wedge it."""
    (central.folder / "sitecustomize.py").write_text(WEDGE)
    central.stderr.touch()
    variables = [
        f"NOTIFY_SOCKET={manager.path}",
        f"WATCHDOG_USEC={2e6 * FEED:.0f}",
        f"JOURNAL_STREAM={stream(central.stderr)}",
        f"PYTHONPATH={central.folder}",
    ]
    own = ["bash", "-c", 'WATCHDOG_PID=$$ exec "$@"', "systemd"]
    central.prefix = [*own, "env", *variables, *central.prefix]


def stream(file: Path) -> str:
    status = file.stat()
    return f"{status.st_dev}:{status.st_ino}"


def test_systemd_hears_of_a_reload_and_of_a_hub_that_hangs(tmp_path: Path) -> None:
    with (
        Namespace("store") as namespace,
        Central(namespace=namespace) as central,
        Manager(tmp_path / "notify") as manager,
        Activator(namespace, [("dfmeta-store-guests", ("::", GUEST_PORT))]) as activator,
    ):
        central.activator = activator
        under_systemd(central, manager)
        central.start()
        status = f"STATUS=UP; guests at [::]:{GUEST_PORT}, the admin API at 127.0.0.1:9697"
        wait_for(lambda: manager.heard(status), "the status")
        assert manager.messages[0] == "READY=1", "an earlier message would start the watchdog"
        for _ in range(3):
            manager.messages.clear()
            wait_for(lambda: manager.heard("WATCHDOG=1"), "a message to the watchdog")
        manager.messages.clear()
        begin = time.clock_gettime(time.CLOCK_MONOTONIC)
        central.configure({"DEFAULT": {"use_json": True}})
        central.signal(signal.SIGHUP)
        wait_for(lambda: manager.heard("READY=1"), "the end of the reload")
        reload, ready = (text for text in manager.messages if text != "WATCHDOG=1")
        name, usec = reload.split("\nMONOTONIC_USEC=")
        assert (name, ready) == ("RELOADING=1", "READY=1")
        assert begin <= int(usec) / 1e6 <= time.clock_gettime(time.CLOCK_MONOTONIC)
        central.configure({"df_metadata": {"hold_timeout": "long"}})
        central.signal(signal.SIGHUP)
        wait_for(
            lambda: manager.heard("") or f"{status}; not reloaded: " in "".join(manager.messages),
            "the status of a refused reload",
        )
        lines = central.log().splitlines()
        assert {line.partition(" ")[0] for line in lines[:-2]} == {"<6>INFO"}, "no time"
        objects = [(line[:3], json.loads(line[3:])["levelname"]) for line in lines[-2:]]
        assert objects == [("<6>", "INFO"), ("<4>", "WARNING")]
        central.configure({"df_metadata": {"hold_timeout": None}})
        central.signal(signal.SIGUSR1)
        wait_for(lambda: manager.silent(5 * FEED), "five messages to be missed")
        with namespace.open_socket(socket.AF_INET) as waiting:
            waiting.connect(("127.0.0.1", GUEST_PORT))
            waiting.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            central.signal(signal.SIGABRT)
            assert central.wait() == -signal.SIGABRT
            assert " in wedge\n" in central.log(), "where it was"
            central.start()
            assert waiting.recv(4096).startswith(b"HTTP/1.1 404 ")


def test_a_priority_is_for_the_journal_alone(config: Path) -> None:
    config.write_text("[store]\nmax_body = many\n")
    command = [program("dfmeta-store"), "--config-file", str(config)]
    journal, other = config.with_name("journal"), config.with_name("other")
    journal.touch()
    for path in (journal, other):
        with path.open("w", encoding="utf-8") as stderr:
            environ = os.environ | {"JOURNAL_STREAM": stream(journal)}
            done = subprocess.run(command, env=environ, stderr=stderr, check=False)
        assert done.returncode == 2
    assert other.read_text().startswith("dfmeta-store: option [store] max_body = 'many' is wrong")
    assert journal.read_text() == f"<3>{other.read_text()}"
