"""Fixtures: a database in a temporary folder, a guest, and keys that nobody owns."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import create_engine, make_url, text

from dfmeta.cli.ctl import cli
from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest.backend import StoreBackend
from tests.core.unit.store.lookup.support import build, clock, store
from tests.core.unit.store.reused import Reused
from tests.harness.postgres import Postgres

__all__ = ["build", "clock", "store"]  # fixtures of the tests below this folder

T = TypeVar("T")

INSTANCE = "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"


def said(backend: StoreBackend, identity: Identity) -> str | None:
    """What the record says of tokens."""
    return backend.open(GuestRequest("GET", "/latest"), identity).http_tokens


@pytest.fixture
def instance_id() -> str:
    return INSTANCE


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state/store.db"


@pytest.fixture(scope="session")
def made_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with the schema of this version, closed."""
    path = tmp_path_factory.mktemp("made") / "state" / "store.db"
    Repository(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def made_template(postgres: Postgres) -> str:
    """The name of such a database on PostgreSQL."""
    url = postgres.create_database()
    Repository(url).close()
    return make_url(url).database or ""


@pytest.fixture(scope="session")
def reused(postgres: Postgres, made_template: str) -> Iterator[Reused]:
    """Such databases, for one test after the other."""
    databases = Reused(postgres, made_template)
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(postgres: Postgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """The harness's, and with the schema where the test has ``repository``.

    To make the schema anew takes longer than most tests: those of migrations do.
    """
    if has_repository(request):
        reused: Reused = request.getfixturevalue("reused")
        yield reused.take()
        reused.give_back()
    else:
        url = postgres.create_database()
        yield url
        postgres.drop_database(url)


@pytest.fixture
def database_url(database_url: str, request: pytest.FixtureRequest) -> str:
    """As ``postgres_url``, also for SQLite."""
    url = make_url(database_url)
    if has_repository(request) and url.get_backend_name() == "sqlite":
        made = request.getfixturevalue("made_file")
        shutil.copytree(made.parent, Path(url.database or "").parent)
    return database_url


def has_repository(request: pytest.FixtureRequest) -> bool:
    """Whether the test has an open store."""
    return "repository" in request.fixturenames


@pytest.fixture
def repository(database_url: str) -> Iterator[Repository]:
    """An empty store, on SQLite and on PostgreSQL: a test that has it runs twice."""
    turn = threading.Lock()

    def apart(step: Callable[[], T], *, write: bool, **_limits: object) -> T:
        """As in the daemon, one thread writes at a time: SQLite does not let writers queue."""
        with turn if write else contextlib.nullcontext():
            return step()

    with Repository(database_url, apart=apart) as opened:
        yield opened


@pytest.fixture
def sql(database_url: str) -> Callable[[str], None]:
    """Change the database behind the repository's back."""

    def execute(statement: str) -> None:
        engine = create_engine(database_url)
        with engine.begin() as connection:
            connection.execute(text(statement))
        engine.dispose()

    return execute


@pytest.fixture
def identity() -> Identity:
    return Identity(
        instance_id=INSTANCE,
        project_id="the-port's-project",
        port_id="port-1",
        port_name="tap1",
        incarnation=1,
    )


@pytest.fixture
def ask(repository: Repository, identity: Identity) -> Callable[..., Answer]:
    """Ask the store as the guest ``INSTANCE``."""
    backend = StoreBackend(repository)

    def ask(path: str, method: str = "GET", body: bytes = b"") -> Answer:
        request = GuestRequest(method=method, path=path, body=body)
        return backend.open(request, identity).answer()

    return ask


@pytest.fixture
def domains(tmp_path: Path) -> Path:
    """A folder with libvirt's domains; see :mod:`tests.harness.domains`."""
    folder = tmp_path / "libvirt"
    folder.mkdir()
    return folder


@pytest.fixture
def config(tmp_path: Path, url: str, domains: Path) -> Path:
    path = tmp_path / "dfmeta.conf"
    libvirt = f"[df_metadata]\nstate_path = {tmp_path}/state\nlibvirt_xml_path = {domains}\n"
    path.write_text(f"{libvirt}[store]\nconnection = {url}\n")
    return path


@pytest.fixture
def run(config: Path) -> Callable[..., Result]:
    """Run ``dfmeta store COMMAND --config-file … ARGUMENTS``."""

    def run(command: str, *arguments: str, stdin: bytes = b"") -> Result:
        line = ["store", command, "--config-file", str(config), *arguments]
        return CliRunner().invoke(cli, line, input=stdin)

    return run
