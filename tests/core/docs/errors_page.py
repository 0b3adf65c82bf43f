"""The page on errors, read; and every error made as an operator makes it.

Each way to an error ends in the line that the program really prints. What differs from one machine
to the next (a folder, a port) is put as the page has it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import pkgutil
import re
import socket
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

import click
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
from tests.core.docs import page as reader

PAGE: Final = (Path(__file__).parents[3] / "doc/source/errors.rst").read_text(encoding="utf-8")
FOLDER: Final = "/var/lib/dfmeta"
"""What the page has in the place of a test's folder."""
UUID: Final = "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"


@dataclass(frozen=True)
class Section:
    """What the page says of one error."""

    name: str
    text: str

    @property
    def classes(self) -> list[str]:
        """The class that it says it is."""
        return re.findall(r"^``(\w+)``: ``", self.text, re.MULTILINE)

    @property
    def sentences(self) -> list[str]:
        """The sentence that it says it has."""
        return re.findall(r"^``\w+``: ``(.*)``$", self.text, re.MULTILINE)

    @property
    def examples(self) -> list[str]:
        """Lines as they are printed."""
        blocks = re.findall(
            r"^    ((?:dfmeta(?:-agent)?:|WARNING|ERROR) .*(?:\n    .*)*)", self.text, re.MULTILINE
        )
        return [" ".join(block.split()) for block in blocks]


def sections(page: str = PAGE) -> list[Section]:
    """The page's sections on errors, in their order."""
    return [
        Section(one.title.strip("`"), "\n\n".join(one.paragraphs))
        for one in reader.sections(page)
        if one.mark == "~"
    ]


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


class Maker:
    """Runs programs wrongly."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "store.db"
        self.config = folder / "dfmeta.conf"
        self.write("")

    def write(self, daemon: str) -> None:
        """Write a configuration of this folder."""
        lines = [
            "[df_metadata]",
            f"state_path = {self.folder}",
            f"libvirt_xml_path = {self.folder}",
            daemon,
            "[store]",
            f"connection = sqlite:///{self.file}",
            f"token_file = {self.folder}/tokens",
        ]
        self.config.write_text("\n".join(lines))

    def dfmeta(self, *words: str, stdin: str = "") -> str:
        """Run ``dfmeta`` with the configuration, and return the last line of stderr."""
        at = 2 if words[0] in ("store", "token", "devices") else 1
        line = [*words[:at], "--config-file", str(self.config), *words[at:]]
        return self._known(CliRunner().invoke(cli, line, input=stdin).stderr)

    def raised(self, prog: str, work: Callable[[], object]) -> str:
        """Return the line that *prog* ends with, or logs, for what *work* raises."""
        said = io.StringIO()
        try:
            work()
        except DfmetaError as error:
            with contextlib.redirect_stderr(said):
                last_words.say(prog, error)
        return self._known(said.getvalue())

    def logged(self, logger: str, work: Callable[[], object]) -> str:
        """Return what *work* has a logger write, without the time."""
        said = io.StringIO()
        handler = logging.StreamHandler(said)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
        logging.getLogger(logger).addHandler(handler)
        try:
            work()
        finally:
            logging.getLogger(logger).removeHandler(handler)
        return self._known(said.getvalue())

    def database(self, statement: str) -> None:
        """Make a store, and change it behind dfmeta's back."""
        Database(f"sqlite:///{self.file}").close()
        with contextlib.closing(sqlite3.connect(self.file)) as connection, connection:
            connection.execute(statement)

    def _known(self, text: str) -> str:
        last = text.splitlines()[-1] if text else ""
        return re.sub(
            r"127\.0\.0\.1:\d{4,5}", "127.0.0.1:9697", last.replace(str(self.folder), FOLDER)
        )


def _wrong_option(maker: Maker) -> str:
    maker.write("hold_timeout = soon")
    return maker.raised("dfmeta-agent", lambda: dfmeta.conf.load([str(maker.config)], prog="x"))


def _unknown_option(maker: Maker) -> str:
    maker.write("hold_timeot = 5")
    (found,) = unknown_options(dfmeta.conf.load([str(maker.config)], prog="x"))
    return maker.logged("dfmeta.cmd.logs", lambda: warn([found]))


def _already_running(maker: Maker) -> str:
    with BridgeLock("unix:/run/errors.sock", "br-int"):
        second = BridgeLock("unix:/run/errors.sock", "br-int")
        return maker.raised("dfmeta-agent", second.__enter__)


def _cannot_start(maker: Maker) -> str:
    (maker.folder / "taken").write_text("")
    return maker.raised("dfmeta-agent", lambda: StateFile(maker.folder / "taken"))


def _damaged(maker: Maker) -> str:
    maker.file.write_text("this is no database" * 100)
    return maker.dfmeta("store", "list")


def _schema(maker: Maker) -> str:
    maker.database("UPDATE alembic_version SET version_num = '9999'")
    return maker.dfmeta("store", "list")


def _access(maker: Maker) -> str:
    maker.file.mkdir()
    return maker.dfmeta("store", "list")


def _gone(maker: Maker) -> str:
    database = Database(f"sqlite:///{maker.file}")
    maker.file.unlink()

    def ask() -> None:
        try:
            database.ping()
        except StoreError as error:
            _failure(error)

    with contextlib.closing(database):
        return maker.logged("dfmeta.store.api.admin", ask)


def _busy(maker: Maker) -> str:
    maker.database("SELECT 1")
    with contextlib.closing(sqlite3.connect(maker.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        return maker.raised("dfmeta", lambda: Database(f"sqlite:///{maker.file}", seconds=0.1))


def _sqlite(maker: Maker, code: int, cause: str) -> str:
    """What a disk does that no test can break: SQLite's own word for it."""

    def fail() -> None:
        raise kind_of(code)(cause=f"{maker.file}: {cause}")

    return maker.raised("dfmeta", fail)


def _full(maker: Maker) -> str:
    maker.database("SELECT 1")
    with contextlib.closing(sqlite3.connect(maker.file)) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
        try:
            connection.execute("CREATE TABLE big AS SELECT randomblob(1000000)")
        except sqlite3.Error as error:
            code, cause = error.sqlite_errorcode, str(error)
    return _sqlite(maker, code, cause)


def _read_only(maker: Maker) -> str:
    maker.database("SELECT 1")
    with contextlib.closing(sqlite3.connect(f"file:{maker.file}?mode=ro", uri=True)) as connection:
        try:
            connection.execute("CREATE TABLE one (two)")
        except sqlite3.Error as error:
            code, cause = error.sqlite_errorcode, str(error)
    return _sqlite(maker, code, cause)


def _no_api(maker: Maker) -> str:
    class Silent(WSGIRequestHandler):
        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    def answer(_environ: object, start: Callable[..., object]) -> list[bytes]:
        start("404 Not Found", [("Content-Length", "0")])
        return []

    with make_server("127.0.0.1", 0, answer, handler_class=Silent) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        line = maker.dfmeta("store", "get", UUID, "--url", url)
        thread.join()
    return line


def _refused(maker: Maker) -> str:
    def fail() -> None:
        raise refusal(401, "http://127.0.0.1:9697 answers 401 (unauthorized request)")

    return maker.raised("dfmeta", fail)


def _tokens(maker: Maker) -> str:
    (maker.folder / "tokens").write_text("x\n")
    (maker.folder / "tokens").chmod(0o600)
    return maker.dfmeta("token", "list")


def _not_running(maker: Maker) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    maker.write(f"admin_listen = 127.0.0.1:{port}")
    return maker.dfmeta("ports")


def _wrong_devices(maker: Maker) -> str:
    file = maker.folder / "devices.json"
    file.write_text('{"devices": [{"type": 7}]}')
    return maker.dfmeta("devices", "write-config-drive", str(maker.folder), "--file", str(file))


def _domain(maker: Maker) -> Path:
    file = maker.folder / "web1.dump"
    file.write_text(f"<domain><uuid>{UUID}</uuid><name>web1</name></domain>")
    return file


def _ovsdb(maker: Maker) -> str:
    maker.write(f"ovsdb_connection = unix:{maker.folder}/db.sock")
    return maker.dfmeta("trace", "tap1")


def _no_switch(maker: Maker) -> str:
    maker.write(f"ovsdb_connection = unix:{maker.folder}/db.sock")
    return maker.dfmeta("flows")


def _usage(maker: Maker) -> str:
    def fail() -> None:
        try:
            cli.main(["ports", "--formt", "json"], prog_name="dfmeta", standalone_mode=False)
        except click.UsageError as error:
            raise usage_error(error) from error

    return maker.raised("dfmeta", fail)


def _unexpected(maker: Maker) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            raise KeyError("ofport")
        except KeyError as error:
            last_words.say_unexpected("dfmeta", error)
    return re.sub(r" in \S+:\d+:", " in dfmeta/cli/ports_command.py:35:", said.getvalue().strip())


def _system(maker: Maker) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            (maker.folder / "missing").open()
        except OSError as error:
            last_words.say_unexpected("dfmeta", error)
    return maker._known(said.getvalue())


MAKERS: Final[Mapping[str, Callable[[Maker], str]]] = {
    "wrong-option": _wrong_option,
    "unknown-option": _unknown_option,
    "cannot-start": _cannot_start,
    "already-running": _already_running,
    "wrong-usage": _usage,
    "wrong-value": lambda maker: maker.dfmeta("store", "get", "web1"),
    "not-running": _not_running,
    "ovsdb": _ovsdb,
    "no-switch-socket": _no_switch,
    "wrong-devices": _wrong_devices,
    "wrong-tag": lambda maker: maker.dfmeta(
        "devices", "from-libvirt", f"{_domain(maker)}", "--tag", "lan"
    ),
    "no-record": lambda maker: maker.dfmeta("store", "get", UUID),
    "no-token": lambda maker: maker.dfmeta("token", "revoke", "ci"),
    "import-incomplete": lambda maker: maker.dfmeta("store", "import", "-", stdin="{"),
    "backup": lambda maker: maker.dfmeta("store", "restore", str(maker.config)),
    "store-damaged": _damaged,
    "store-schema": _schema,
    "store-access": _access,
    "store-gone": _gone,
    "store-busy": _busy,
    "store-full": _full,
    "store-read-only": _read_only,
    "store-away": lambda maker: maker.dfmeta("store", "list", "--url", "http://127.0.0.1:1"),
    "store-refused": _refused,
    "no-api": _no_api,
    "token-file": _tokens,
    "system": _system,
    "unexpected": _unexpected,
}
"""Name of an error → how an operator comes to it."""
