"""The ``dfmeta`` command should take what people type for help, version and configuration."""

import sqlite3
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import click
import pytest

from dfmeta.cli import ctl
from dfmeta.cli.common import SENTENCE
from dfmeta.store.db.database import schema_of
from dfmeta.store.db.repository import Repository
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE

Said = tuple[int, str, str]


def forget_help(command: click.Command) -> None:
    """Have *command* read anew which options ask for help.

    click keeps those of a command's first call, which in another test was without its group.
    """
    command._help_option = None
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            forget_help(below)


@pytest.fixture
def dfmeta(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """Run ``dfmeta`` here: its exit status, stdout and stderr."""
    forget_help(ctl.cli)

    def run(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["dfmeta", *words])
        with pytest.raises(SystemExit) as ended:
            ctl.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_each_way_to_ask_for_help_gives_the_same(dfmeta: Callable[..., Said]) -> None:
    for words in (("store", "put"), ("token", "create"), ("ports",), ("store",), ()):
        wanted = dfmeta(*words, "--help")
        assert wanted[0] == 0
        assert wanted[1].startswith(f"Usage: {' '.join(['dfmeta', *words])} ")
        assert dfmeta(*words, "-h") == dfmeta("help", *words) == wanted


def test_the_version_is_a_command_too(dfmeta: Callable[..., Said]) -> None:
    assert dfmeta("version") == dfmeta("--version")
    assert dfmeta("version")[1] == f"dfmeta, version {metadata.version('dfmeta')}\n"


def test_help_for_an_unknown_command_is_refused(dfmeta: Callable[..., Said]) -> None:
    status, out, err = dfmeta("help", "store", "nonsense")
    assert (status, out) == (2, "")
    assert "No such command 'nonsense'. See dfmeta store --help" in err


def test_an_error_names_the_help_of_its_command(dfmeta: Callable[..., Said]) -> None:
    for words, command, text in (
        (("store", "put", "web1", "--hostname"), "dfmeta store put", ""),
        (("store", "--config-file", "x", "put", "--nope"), "dfmeta store put", ""),
        (("--config-file", "ports", "flows", "--format"), "dfmeta flows", ""),
        (("ports", "--format", "xml"), "dfmeta ports", "not one of 'table', 'json'."),
        (("trace",), "dfmeta trace", "Missing argument 'PORT'."),
        (("store", "nonsense"), "dfmeta store", ""),
        (("prts",), "dfmeta", "No such command 'prts'. Did you mean ports?"),
        (("--nope",), "dfmeta", ""),
    ):
        status, out, err = dfmeta(*words)
        usage, line = err.splitlines()
        assert (status, out) == (2, ""), words
        assert usage.startswith(f"Usage: {command} [OPTIONS]")
        assert line.startswith("dfmeta: "), words
        assert line.endswith(f"{text} See {command} --help [wrong-usage]")


def test_configuration_stands_at_either_place(dfmeta: Callable[..., Said], tmp_path: Path) -> None:
    files = []
    for name in (INSTANCE, OTHER_INSTANCE):
        url = f"sqlite:///{tmp_path}/{name}.db"
        with Repository(url) as repository:
            repository.put(name, document={"hostname": "h"})
        file = tmp_path / f"{name}.conf"
        file.write_text(f"[store]\nconnection = {url}\n")
        files.append(f"--config-file={file}")
    first, second = files
    for words in (
        (first, "store", "list"),
        ("store", first, "list"),
        ("store", "list", first),
        (second, "store", "list", first),
        (second, "store", first, "list"),
    ):
        status, out, _err = dfmeta(*words)
        assert status == 0
        assert INSTANCE in out, words
        assert OTHER_INSTANCE not in out, "a later file overrides an earlier one"


def test_completion_offers_records_without_a_change_of_the_store(
    dfmeta: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, database = tmp_path / "dfmeta.conf", tmp_path / "store.db"
    file.write_text(f"[store]\nconnection = sqlite:///{database}\n")

    def complete(*words: str) -> list[str]:
        line = ["dfmeta", "store", "--config-file", str(file), *words]
        monkeypatch.setenv("_DFMETA_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(line))
        monkeypatch.setenv("COMP_CWORD", str(len(line) - 1))
        _status, out, err = dfmeta()
        assert err == ""
        return out.split()

    assert complete("get", "w") == []
    assert not database.exists()
    with Repository(f"sqlite:///{database}") as repository:
        for instance, name in ((INSTANCE, "web"), (OTHER_INSTANCE, "w$(reboot)")):
            repository.put(instance, document={"name": name})
    for command in ("get", "put", "delete"):
        assert complete(command, "w") == ["plain,web"], "a shell would run the other name"
        assert complete(command, INSTANCE[:8]) == [f"plain,{INSTANCE}"]
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0003'")
    assert complete("get", "w") == []
    assert schema_of(f"sqlite:///{database}") == "0003"


def test_the_list_of_commands_has_the_sentence_of_each() -> None:
    context = click.Context(ctl.cli)
    for name, place in ctl.COMMANDS.items():
        command = ctl.cli.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(limit=SENTENCE) == place.sentence
