"""A program should end with one line and an exit status, whatever its input and its output do."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dfmeta.store.db.repository import Repository
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


def stream(file: Path) -> str:
    status = file.stat()
    return f"{status.st_dev}:{status.st_ino}"


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
