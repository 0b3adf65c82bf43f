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

FOLDER = "/var/lib/dfmeta"
"""Stands for a test's folder in the expected lines."""
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


PRINTED: Mapping[str, str] = {
    "wrong-usage": (
        "dfmeta: Invalid value for '--format': 'xml' is not one of 'table', 'json'. "
        "See dfmeta ports --help [wrong-usage]"
    ),
    "wrong-option": (
        "dfmeta-agent: option [df_metadata] hold_timeout = 'soon' is wrong: could not convert "
        "string to float: 'soon'. Give a number from 0 to 60 [wrong-option]"
    ),
    "unknown-option": (
        "WARNING dfmeta.wiring.process /var/lib/dfmeta/dfmeta.conf: [df_metadata] hold_timeot is "
        "unknown to dfmeta and is ignored. Did you mean hold_timeout? [unknown-option]"
    ),
    "wrong-value": (
        "dfmeta: INSTANCE = 'web1' is wrong: it is not a UUID with dashes, and no libvirt domain "
        "on this host and no record has that name. Give the UUID as virsh domuuid or openstack "
        "server show print it; dfmeta store list shows the names of records [wrong-value]"
    ),
    "cannot-start": (
        "dfmeta-agent: cannot start: [df_metadata] state_path = '/var/lib/dfmeta/taken' cannot be "
        "used: File exists. Name a directory that the daemon may write to, or create it for the "
        "daemon's user [cannot-start]"
    ),
    "already-running": (
        "dfmeta-agent: another dfmeta-agent already serves br-int (it holds @dfmeta-agent "
        "f815baa431ff0d885c3effa10e34afae). Stop it first [already-running]"
    ),
    "not-running": (
        "dfmeta: dfmeta-agent does not answer at 127.0.0.1:9697: connection refused. Start it, or "
        "name its configuration with --config-file [not-running]"
    ),
    "system": (
        "dfmeta: /var/lib/dfmeta/missing: No such file or directory. Check that this user may use "
        "it, and that its disk works [system]"
    ),
    "unexpected": (
        "dfmeta: KeyError in dfmeta/cli/ports_command.py:35: 'ofport'. This is an error in "
        "dfmeta: report it to its maintainers, with the traceback that DFMETA_DEBUG=1 prints "
        "[unexpected]"
    ),
    "ovsdb": (
        "dfmeta: OVSDB at unix:/var/lib/dfmeta/db.sock: No such file or directory. Start Open "
        "vSwitch, or correct [df_metadata] ovsdb_connection [ovsdb]"
    ),
    "no-switch-socket": (
        "dfmeta: no program accepts connections on /var/lib/dfmeta/br-int.mgmt: No such file or "
        "directory. Check that ovs-vswitchd runs and has the bridge of [df_metadata] "
        "integration_bridge, and that this user may use its sockets [no-switch-socket]"
    ),
    "wrong-devices": (
        "dfmeta: devices: devices[0].type: 7 is not of type string. Correct it: "
        "doc/source/devices.rst has the rules for devices [wrong-devices]"
    ),
    "wrong-tag": (
        "dfmeta: --tag 'lan': write nic:VALUE=TAG or disk:VALUE=TAG. dfmeta devices from-libvirt "
        "--help shows how to write a rule [wrong-tag]"
    ),
    "no-record": (
        "dfmeta: store: no record of 6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01. dfmeta store list "
        "lists the records [no-record]"
    ),
    "import-incomplete": (
        "dfmeta: store: 1 item not imported. Correct the entries that the lines above name, and "
        "import them again [import-incomplete]"
    ),
    "backup": (
        "dfmeta: store: /var/lib/dfmeta/dfmeta.conf: it is not an SQLite file. Name a file that "
        "dfmeta store backup wrote [backup]"
    ),
    "store-damaged": (
        "dfmeta: store: /var/lib/dfmeta/store.db: file is not a database. Restore a backup: "
        "dfmeta store restore FILE, or move the file away for an empty store [store-damaged]"
    ),
    "store-gone": (
        "ERROR dfmeta.store.api.admin the admin API has failed: store: /var/lib/dfmeta/store.db: "
        "No such file or directory. Restore it with dfmeta store restore FILE, or restart for an "
        "empty store [store-gone]"
    ),
    "store-read-only": (
        "dfmeta: store: /var/lib/dfmeta/store.db: attempt to write a readonly database. Check "
        "that its disk is mounted for writing, and that the server accepts writes "
        "[store-read-only]"
    ),
    "store-full": (
        "dfmeta: store: /var/lib/dfmeta/store.db: database or disk is full. Make room on the disk "
        "of the database, and try again [store-full]"
    ),
    "store-busy": (
        "dfmeta: store: /var/lib/dfmeta/store.db: database is locked. Try again; if it persists, "
        "find the programs that use the file: fuser -v FILE [store-busy]"
    ),
    "store-access": (
        "dfmeta: store: /var/lib/dfmeta/store.db: not a regular file. Name a file in [store] "
        "connection: sqlite:////path/to/store.db [store-access]"
    ),
    "store-schema": (
        "dfmeta: store: the database has schema 9999, this version of dfmeta knows up to 0004. "
        "Install the newer dfmeta that wrote it, or restore a backup [store-schema]"
    ),
    "store-away": (
        "dfmeta: store: http://127.0.0.1:1 does not answer: connection refused. Check that "
        "dfmeta-store or dfmeta-agent runs there, and that its [df_metadata] admin_listen is an "
        "address that other hosts can reach [store-away]"
    ),
    "store-refused": (
        "dfmeta: store: http://127.0.0.1:9697 answers 401 (unauthorized request). Give a token "
        "that may do this: --token-file FILE, or DFMETA_TOKEN [store-refused]"
    ),
    "no-api": (
        "dfmeta: store: http://127.0.0.1:9697 answers 404. Give the [df_metadata] admin_listen of "
        "a dfmeta with backend = store, without a path [no-api]"
    ),
    "token-file": (
        "dfmeta: /var/lib/dfmeta/tokens: line 1: it is not JSON. Fix or remove that line; dfmeta "
        "token create writes such lines [token-file]"
    ),
    "no-token": ("dfmeta: store: no token named ci. dfmeta token list shows the tokens [no-token]"),
}
"""Name of an error → its line as it is printed or logged."""


def test_each_line_is_printed_with_the_name_of_the_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert sorted(PRINTED) == sorted([*LINES, *RAISED, *LOGGED])
    form = logging.Formatter("%(levelname)s %(name)s %(message)s")
    for name, expected in PRINTED.items():
        folder = tmp_path / name
        folder.mkdir()
        if name in LOGGED:
            caplog.clear()
            LOGGED[name](folder)
            (line,) = map(form.format, caplog.records)
        else:
            line = printed_by(folder, LINES[name]) if name in LINES else ended(name, folder)
        line = line.replace(str(folder), FOLDER).replace("127.0.0.1:1023", "127.0.0.1:9697")
        assert line == expected
        assert line.endswith(f" [{name}]")


def test_example_of_the_page_is_a_line_that_is_printed() -> None:
    page = (ROOT / "doc/source/errors.rst").read_text(encoding="utf-8")
    assert PRINTED["wrong-option"] in " ".join(page.split())
