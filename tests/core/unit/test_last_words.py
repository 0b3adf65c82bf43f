"""A program that fails should end with one line, whatever has happened."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from dfmeta.cli import ctl
from dfmeta.cmd import central, daemon
from dfmeta.exceptions import ConfigError, StoreError
from dfmeta.store.db.repository import Repository
from dfmeta.wiring import last_words
from tests.harness.poll import wait_for

PROGRAM = (sys.executable, "-c", "from dfmeta.cli.ctl import main; main()")
Said = tuple[int, str]


@pytest.fixture
def dfmeta(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """Run ``dfmeta`` here: its exit status and what is on stderr."""

    def run(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["dfmeta", *words])
        with pytest.raises(SystemExit) as ended:
            ctl.main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "dfmeta.conf"
    folders = f"state_path = {tmp_path}\nlibvirt_xml_path = {tmp_path}"
    file.write_text(f"[df_metadata]\n{folders}\n[store]\nconnection = sqlite:///{tmp_path}/s.db\n")
    return file


def test_what_nobody_has_thought_of_is_one_line(
    dfmeta: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ctl.COMMANDS, "ports", ctl.Place("json", "nothing", ""))
    monkeypatch.delenv(last_words.DEBUG, raising=False)
    status, said = dfmeta("ports")
    assert status == 1
    assert said.startswith("dfmeta: AttributeError in dfmeta/cli/ctl.py:")
    assert said.endswith("the traceback that DFMETA_DEBUG=1 prints [unexpected]\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_its_traceback_is_there_for_who_asks(
    dfmeta: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, value: str, shown: bool
) -> None:
    monkeypatch.setitem(ctl.COMMANDS, "ports", ctl.Place("json", "nothing", ""))
    monkeypatch.setenv(last_words.DEBUG, value)
    _status, said = dfmeta("ports")
    assert said.startswith("Traceback (most recent call last):\n") == shown
    assert said.endswith(" [unexpected]\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("prts",), "No such command 'prts'. Did you mean ports? See dfmeta --help"),
        (("ports", "--format", "xml"), "not one of 'table', 'json'. See dfmeta ports --help"),
        (("trace",), "Missing argument 'PORT'. See dfmeta trace --help"),
    ],
    ids=["command", "value", "argument"],
)
def test_a_command_line_that_cannot_be_read_is_told_after_its_usage(
    dfmeta: Callable[..., Said], words: tuple[str, ...], said: str
) -> None:
    status, text = dfmeta(*words)
    assert status == 2
    usage, last = text.splitlines()
    assert usage.startswith("Usage: dfmeta")
    assert last.startswith("dfmeta: ")
    assert said in last
    assert last.endswith(" [wrong-usage]")


def command_lines(
    group: click.Group = ctl.cli, before: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """``dfmeta`` itself, and each of its commands, groups included."""
    yield before
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from command_lines(command, (*before, name))
        else:
            yield (*before, name)


@pytest.mark.parametrize("words", [*command_lines()], ids=" ".join)
def test_an_option_that_is_not_there_is_named(
    dfmeta: Callable[..., Said], words: tuple[str, ...]
) -> None:
    status, text = dfmeta(*words, "--bogus")
    assert status == 2
    usage, last = text.splitlines()
    assert usage.startswith(" ".join(("Usage: dfmeta", *words)))
    assert last.startswith("dfmeta: No such option")
    assert "--bogus" in last
    assert last.endswith(" --help [wrong-usage]")


def test_the_option_that_is_nearest_is_said(dfmeta: Callable[..., Said]) -> None:
    status, text = dfmeta("ports", "--formt")
    assert status == 2
    # How click writes it differs between its versions.
    assert re.search(r"--formt\b.*Did you mean '?--format\b", text.splitlines()[-1])


@pytest.mark.parametrize("name", ["dfmeta", "dfmeta-agent", "dfmeta-store", "dfmeta-tag-devices"])
def test_each_program_names_an_option_that_is_not_there(name: str) -> None:
    words = [str(Path(sys.executable).with_name(name)), "--bogus"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"{name}: ")
    assert "--bogus" in last
    assert "Traceback" not in done.stderr


def test_nothing_at_all_shows_the_help(dfmeta: Callable[..., Said]) -> None:
    status, said = dfmeta()
    assert status == 2
    assert "Commands:" in said
    assert "..." not in said.partition("Commands:")[2]
    assert "[wrong-usage]" not in said


def reads_stdin(pid: int) -> bool:
    """Whether a process waits in read(2) of descriptor 0 (proc(5), /proc/pid/syscall)."""
    call = Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()
    return call[:2] in (["0", "0x0"], ["63", "0x0"])


def test_an_interrupt_is_status_130_and_no_traceback(config: Path) -> None:
    program = "from dfmeta.cli.ctl import main; import sys; main()"
    words = [sys.executable, "-c", program, "store", "import", "--config-file", str(config), "-"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        wait_for(lambda: reads_stdin(process.pid), "the import to wait for its input")
        process.send_signal(signal.SIGINT)
        _out, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in said


def test_who_reads_no_further_ends_it_quietly(config: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        words = [*PROGRAM, "store", "list", "--config-file", str(config)]
        done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(write)
    assert done.stderr == b""


def test_what_the_locale_cannot_write_is_escaped(config: Path) -> None:
    with Repository(f"sqlite:///{config.parent}/s.db") as store:
        store.put("6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01", document={"name": "w\u00fcrfel\u2603"})
    done = subprocess.run(
        [*PROGRAM, "store", "list", "--config-file", str(config)],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"w\xfcrfel\\u2603" in done.stdout


@pytest.mark.parametrize("module", [daemon, central], ids=["agent", "store"])
def test_a_daemon_says_an_unknown_argument_in_one_line(
    module: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert module.run(["--hold-timeout"]) == 2
    assert capsys.readouterr().err == (
        f"{module.PROG}: unrecognized arguments: --hold-timeout. "
        f"See {module.PROG} --help [wrong-usage]\n"
    )


# Lines


def test_a_line_is_one_line_and_moves_no_cursor() -> None:
    error = StoreError(cause="a\n b\x1b[2J\udc80", remedy="Do c")
    assert error.line == "store: a b\\x1b[2J\\udc80. Do c [store]"


def test_a_value_of_any_length_is_cut() -> None:
    error = ConfigError(option="[a] b", value="x" * 5000, cause="d", remedy="Do e")
    assert len(error.line) < 300
    assert len(str(error.fields["value"])) == 5000


def test_a_file_that_the_system_refuses_is_no_fault_of_dfmetas(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing") as caught:
        (tmp_path / "missing").open()
    assert last_words.unexpected(caught.value).line.startswith(f"{tmp_path}/missing: No such file")
    assert last_words.unexpected(OSError("odd")).name == "unexpected"


def test_every_exit_status_is_documented() -> None:
    assert (ctl.FAILED, ctl.WRONG_INPUT, last_words.INTERRUPTED) == (1, 2, 130)
