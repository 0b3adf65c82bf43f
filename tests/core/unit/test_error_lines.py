"""Errors should be one line that names the thing, the value, the remedy and the error."""

import contextlib
import io
import logging
import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import dfmeta.conf
from dfmeta.cli.ctl import cli, usage_error
from dfmeta.conf import unknown_options
from dfmeta.errors import DfmetaError, StoreError
from dfmeta.runtime.saved_state import StateFile
from dfmeta.store.api.admin import _failure
from dfmeta.store.api.client import _refused as refusal
from dfmeta.store.db.database import Database
from dfmeta.store.db.dialect import kind_of
from dfmeta.wiring import process
from dfmeta.wiring.process import BridgeLock, warn
from tests.core.docs.sources import ROOT

URL = "http://127.0.0.1:9697"
UUID = "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"


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


def printed_by(folder: Path, line: Line) -> str:
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
        cli.main(["ports", "--format", "xml"], prog_name="dfmeta", standalone_mode=False)
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
    stream, prog = io.StringIO(), "dfmeta-agent" if name in OF_THE_AGENT else "dfmeta"
    with contextlib.redirect_stderr(stream):
        try:
            error = RAISED[name](folder)
            assert error is not None
            raise error
        except DfmetaError as raised:
            process.print_error(prog, raised)
        except (KeyError, OSError) as raised:
            process.print_unexpected(prog, raised)
    line = stream.getvalue().removesuffix("\n")
    return re.sub(r" in \S+:\d+:", " in dfmeta/cli/ports_command.py:35:", line)


def _unknown_option(folder: Path) -> None:
    config = configured(folder, "hold_timeot = 5")
    (warning,) = unknown_options(dfmeta.conf.load([config], prog="x"))
    warn([warning])


def _gone(folder: Path) -> None:
    with contextlib.closing(Database(f"sqlite:///{folder}/store.db")) as database:
        (folder / "store.db").unlink()
        with pytest.raises(StoreError) as caught:
            database.ping()
    _failure(caught.value)


LOGGED = {"unknown-option": _unknown_option, "store-gone": _gone}
"""Name of an error → what logs it."""


WORDS: Mapping[str, tuple[str, ...]] = {
    "wrong-usage": ("dfmeta: ", "'--format': 'xml'", "See dfmeta ports --help"),
    "wrong-option": ("dfmeta-agent: ", "hold_timeout = 'soon'", "Give a number from 0 to 60"),
    "unknown-option": ("WARNING ", "/dfmeta.conf", "hold_timeot", "Did you mean hold_timeout?"),
    "wrong-value": ("dfmeta: ", "INSTANCE = 'web1'", "Give the UUID as virsh domuuid"),
    "cannot-start": ("dfmeta-agent: ", "state_path = '", "/taken'", "Name a directory"),
    "already-running": ("dfmeta-agent: ", "br-int", "(it holds @dfmeta-agent f815", "Stop it"),
    "not-running": ("dfmeta: ", "127.0.0.1:1023: connection refused", "Start it, or name its"),
    "system": ("dfmeta: ", "/missing: No such file", "Check that this user may use it"),
    "unexpected": ("dfmeta: ", "ports_command.py:35: 'ofport'", "report it to its maintainers"),
    "ovsdb": ("dfmeta: ", "unix:", "/db.sock: No such file", "Start Open vSwitch"),
    "no-switch-socket": ("dfmeta: ", "/br-int.mgmt: No such file", "Check that ovs-vswitchd runs"),
    "wrong-devices": ("dfmeta: ", "devices[0].type: 7", "Correct it: doc/source/devices.rst"),
    "wrong-tag": ("dfmeta: ", "--tag 'lan'", "dfmeta devices from-libvirt --help shows"),
    "no-record": ("dfmeta: store: ", UUID, "dfmeta store list lists the records"),
    "import-incomplete": ("dfmeta: store: ", "1 item not imported", "Correct the entries"),
    "backup": ("dfmeta: store: ", "/dfmeta.conf: it is not an SQLite", "Name a file that dfmeta"),
    "store-damaged": ("dfmeta: store: ", "/store.db: file is not a", "Restore a backup: dfmeta"),
    "store-gone": ("ERROR ", "/store.db: No such file", "Restore it with dfmeta store restore"),
    "store-read-only": ("dfmeta: store: ", "/store.db: attempt to", "its disk is mounted for"),
    "store-full": ("dfmeta: store: ", "/store.db: database or disk is full", "Make room"),
    "store-busy": ("dfmeta: store: ", "/store.db: database is locked", "Try again", "fuser -v"),
    "store-access": ("dfmeta: store: ", "/store.db: not a regular file", "Name a file in [store]"),
    "store-schema": ("dfmeta: store: ", "9999", "knows up to 0004", "Install the newer dfmeta"),
    "store-away": ("dfmeta: store: ", "http://127.0.0.1:1 does not", "Check that dfmeta-store"),
    "store-refused": ("dfmeta: store: ", f"{URL} answers 401", "Give a token that may do this"),
    "no-api": ("dfmeta: store: ", f"{URL} answers 404", "Give the [df_metadata] admin_listen"),
    "token-file": ("dfmeta: ", "/tokens: line 1: it is not JSON", "Fix or remove that line"),
    "no-token": ("dfmeta: store: ", "no token named ci", "dfmeta token list shows the tokens"),
}
"""Name of an error → how its line begins, and the thing, the value and the remedy that it names."""


def test_line_names_error_value_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert sorted(WORDS) == sorted([*LINES, *RAISED, *LOGGED])
    form = logging.Formatter("%(levelname)s %(name)s %(message)s")
    for name, (start, *words) in WORDS.items():
        folder = tmp_path / name
        folder.mkdir()
        if name in LOGGED:
            caplog.clear()
            LOGGED[name](folder)
            (line,) = map(form.format, caplog.records)
        else:
            line = printed_by(folder, LINES[name]) if name in LINES else ended(name, folder)
        assert line.startswith(start)
        assert re.search(".*".join(map(re.escape, [*words, f" [{name}]"])) + "$", line), line


def test_example_of_the_page_is_a_line_that_is_printed(tmp_path: Path) -> None:
    page = (ROOT / "doc/source/errors.rst").read_text(encoding="utf-8")
    assert ended("wrong-option", tmp_path) in " ".join(page.split())
