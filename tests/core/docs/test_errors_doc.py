"""doc/source/errors.rst should have every error by its name, in the words that are printed.

What differs from one machine to the next (a folder, a port) is put as the page has it.
"""

import contextlib
import importlib
import io
import logging
import pkgutil
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import dfmeta
import dfmeta.conf
from dfmeta.cli.ctl import cli, usage_error
from dfmeta.cmd.logs import warn
from dfmeta.conf.unknown import unknown_options
from dfmeta.exceptions import DfmetaError, StoreError
from dfmeta.state import StateFile
from dfmeta.store.api.admin import _failure
from dfmeta.store.api.client import _refused as refusal
from dfmeta.store.db.database import Database
from dfmeta.store.db.sqlite import kind_of
from dfmeta.wiring import last_words
from dfmeta.wiring.lock import BridgeLock
from tests.core.docs.page import sections
from tests.core.docs.sources import ROOT

PAGE = (ROOT / "doc/source/errors.rst").read_text(encoding="utf-8")
SECTIONS = {
    one.title.strip("`"): "\n\n".join(one.paragraphs) for one in sections(PAGE) if one.mark == "~"
}
FOLDER = "/var/lib/dfmeta"
"""What the page has in the place of a test's folder."""
URL = "http://127.0.0.1:9697"
UUID = "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"


def classes() -> list[type[DfmetaError]]:
    """Every error that any module of dfmeta declares, but for a module's own."""
    for module in pkgutil.walk_packages(dfmeta.__path__, "dfmeta."):
        # Alembic alone may import its scripts, and what runs at import is a program.
        if ".migrations.versions" not in module.name and not module.name.endswith(
            (".env", "__main__")
        ):
            importlib.import_module(module.name)
    return [
        one
        for one in _tree(DfmetaError)
        if one.__module__.startswith("dfmeta.") and one.__name__[0] != "_"
    ]


def _tree(root: type[DfmetaError]) -> Iterator[type[DfmetaError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def examples(name: str) -> list[str]:
    """Lines of a section as they are printed."""
    blocks = re.findall(
        r"^    ((?:dfmeta(?:-agent)?:|WARNING|ERROR) .*(?:\n    .*)*)", SECTIONS[name], re.MULTILINE
    )
    return [" ".join(block.split()) for block in blocks]


@dataclass(frozen=True)
class Line:
    """A command line of ``dfmeta``; ``{}`` stands for the folder."""

    words: str
    option: str = ""
    """A line of ``[df_metadata]``."""
    files: Mapping[str, str] = field(default_factory=dict)
    sql: str = ""
    """What is done to the store behind dfmeta's back."""


SOCKET = "ovsdb_connection = unix:{}/db.sock"
LINES: Mapping[str, Line] = {
    "wrong-value": Line("store get web1"),
    "not-running": Line("ports", option="admin_listen = 127.0.0.1:1023"),
    "ovsdb": Line("trace tap1", option=SOCKET),
    "no-switch-socket": Line("flows", option=SOCKET),
    "wrong-devices": Line(
        "devices write-config-drive {} --file {}/devices.json",
        files={"devices.json": '{"devices": [{"type": 7}]}'},
    ),
    "wrong-tag": Line(
        "devices from-libvirt {}/web1.dump --tag lan",
        files={"web1.dump": f"<domain><uuid>{UUID}</uuid><name>web1</name></domain>"},
    ),
    "no-record": Line(f"store get {UUID}"),
    "no-token": Line("token revoke ci"),
    "import-incomplete": Line("store import {}/records", files={"records": "{"}),
    "backup": Line("store restore {}/dfmeta.conf"),
    "store-damaged": Line("store list", files={"store.db": "this is no database" * 100}),
    "store-schema": Line("store list", sql="UPDATE alembic_version SET version_num = '9999'"),
    "store-access": Line("store list", files={"store.db/file": ""}),
    "store-away": Line("store list --url http://127.0.0.1:1"),
    "token-file": Line("token list", files={"tokens": "x\n"}),
}
"""Name of an error → a command that ends with it."""


def said_by(folder: Path, line: Line) -> str:
    config = configured(folder, line.option)
    for name, content in line.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
        (folder / name).chmod(0o600)
    if line.sql:
        changed(folder, line.sql)
    words = line.words.replace("{}", str(folder)).split()
    words += ["--config-file", config]
    return CliRunner().invoke(cli, words).stderr.splitlines()[-1]


def configured(folder: Path, option: str) -> str:
    """Write a configuration, and return where it is."""
    config = folder / "dfmeta.conf"
    config.write_text(
        f"[df_metadata]\nstate_path = {folder}\nlibvirt_xml_path = {folder}\n"
        f"{option.replace('{}', str(folder))}\n"
        f"[store]\nconnection = sqlite:///{folder}/store.db\ntoken_file = {folder}/tokens\n"
    )
    return str(config)


def changed(folder: Path, statement: str) -> None:
    """Make a store, and change it behind dfmeta's back."""
    Database(f"sqlite:///{folder}/store.db").close()
    with contextlib.closing(sqlite3.connect(folder / "store.db")) as connection, connection:
        connection.execute(statement)


def _wrong_option(folder: Path) -> None:
    dfmeta.conf.load([configured(folder, "hold_timeout = soon")], prog="x")


def _already_running(_folder: Path) -> None:
    with BridgeLock("unix:/run/errors.sock", "br-int"):
        BridgeLock("unix:/run/errors.sock", "br-int").__enter__()


def _cannot_start(folder: Path) -> None:
    (folder / "taken").write_text("")
    StateFile(folder / "taken")


def _usage(_folder: Path) -> None:
    try:
        cli.main(["ports", "--formt", "json"], prog_name="dfmeta", standalone_mode=False)
    except click.UsageError as error:
        raise usage_error(error) from error


def _busy(folder: Path) -> None:
    changed(folder, "SELECT 1")
    with contextlib.closing(sqlite3.connect(folder / "store.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        Database(f"sqlite:///{folder}/store.db", seconds=0.1)


RAISED: Mapping[str, Callable[[Path], Exception | None]] = {
    "wrong-option": _wrong_option,
    "cannot-start": _cannot_start,
    "already-running": _already_running,
    "wrong-usage": _usage,
    "store-busy": _busy,
    # What a disk does that no test can break: SQLite's own words for it.
    "store-full": lambda folder: kind_of(sqlite3.SQLITE_FULL)(
        cause=f"{folder}/store.db: database or disk is full"
    ),
    "store-read-only": lambda folder: kind_of(sqlite3.SQLITE_READONLY)(
        cause=f"{folder}/store.db: attempt to write a readonly database"
    ),
    "store-refused": lambda _: refusal(401, f"{URL} answers 401 (unauthorized request)"),
    "no-api": lambda _: refusal(404, f"{URL} answers 404"),
    "system": lambda folder: FileNotFoundError(2, "No such file or directory", f"{folder}/missing"),
    "unexpected": lambda _: KeyError("ofport"),
}
"""Name of an error → what raises or returns it; a program ends with its line."""
OF_THE_AGENT = ("wrong-option", "cannot-start", "already-running")


def ended(name: str, folder: Path) -> str:
    """The line that a program ends with."""
    said, prog = io.StringIO(), "dfmeta-agent" if name in OF_THE_AGENT else "dfmeta"
    with contextlib.redirect_stderr(said):
        try:
            error = RAISED[name](folder)
            assert error is not None
            raise error
        except DfmetaError as raised:
            last_words.say(prog, raised)
        except (KeyError, OSError) as raised:
            last_words.say_unexpected(prog, raised)
    line = said.getvalue().removesuffix("\n")
    return re.sub(r" in \S+:\d+:", " in dfmeta/cli/ports_command.py:35:", line)


def _unknown_option(folder: Path) -> None:
    config = configured(folder, "hold_timeot = 5")
    (found,) = unknown_options(dfmeta.conf.load([config], prog="x"))
    warn([found])


def _gone(folder: Path) -> None:
    with contextlib.closing(Database(f"sqlite:///{folder}/store.db")) as database:
        (folder / "store.db").unlink()
        with pytest.raises(StoreError) as caught:
            database.ping()
    _failure(caught.value)


LOGGED = {"unknown-option": _unknown_option, "store-gone": _gone}
"""Name of an error → what logs it."""


def test_every_error_is_on_the_page_with_its_class_and_sentence() -> None:
    found = classes()
    assert [one for one in found if "name" not in vars(one)] == []
    said = {
        name: re.findall(r"^``(\w+)``: ``(.*)``$", text, re.MULTILINE)
        for name, text in SECTIONS.items()
    }
    assert said == {one.name: [(one.__name__, one.sentence)] for one in found}
    assert len(SECTIONS) == len(found), "no two have one name"


def test_every_example_is_the_line_that_is_printed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [*LINES, *RAISED, *LOGGED]
    assert sorted(names) == sorted(name for name in SECTIONS if examples(name))
    form = logging.Formatter("%(levelname)s %(name)s %(message)s")
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        if name in LOGGED:
            caplog.clear()
            LOGGED[name](folder)
            (line,) = map(form.format, caplog.records)
        else:
            line = said_by(folder, LINES[name]) if name in LINES else ended(name, folder)
        line = line.replace(str(folder), FOLDER).replace("127.0.0.1:1023", "127.0.0.1:9697")
        assert examples(name) == [line]
        assert line.endswith(f" [{name}]")
