"""Fixtures: a SQLite database in a temporary folder, a guest, and commands on that database."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import create_engine, text

from dfmeta.cli.ctl import cli
from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest.backend import StoreBackend
from tests.core.unit.store.lookup.support import build, store
from tests.core.unit.store.support import database_file
from tests.core.unit.support import INSTANCE

__all__ = ["build", "store"]  # fixtures of the tests below this folder


@pytest.fixture
def instance_id() -> str:
    return INSTANCE


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database without a file."""
    return f"sqlite:///{tmp_path}/state/store.db"


@pytest.fixture(scope="session")
def made_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the schema of this version, closed: to make one takes longer than a test."""
    path = tmp_path_factory.mktemp("made") / "state" / "store.db"
    Repository(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def database_url(url: str, made_file: Path) -> str:
    """An empty database with the schema; on PostgreSQL below tests/host/store."""
    shutil.copytree(made_file.parent, database_file(url).parent)
    return url


@pytest.fixture
def repository(database_url: str) -> Iterator[Repository]:
    """An empty store."""
    with Repository(database_url) as opened:
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
