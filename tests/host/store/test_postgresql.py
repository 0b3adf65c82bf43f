"""PostgreSQL should hold records as SQLite does: the tests of core, once more."""

import pytest

from dfmeta.store.db.repository import Repository
from dfmeta.store.db.schema import metadata
from tests.core.unit.store.db import test_migrations, test_repository
from tests.core.unit.store.db.test_migrations import connection
from tests.harness.postgres import Postgres

__all__ = ["connection"]

for _module in (test_migrations, test_repository):
    globals().update(
        {name: variable for name, variable in vars(_module).items() if name[:5] == "test_"}
    )


@pytest.fixture(scope="module")
def lasting_url(postgres: Postgres) -> str:
    """A database with the schema, for one test after the other."""
    url = postgres.create_database()
    Repository(url).close()
    return url


@pytest.fixture
def database_url(postgres: Postgres, lasting_url: str) -> str:
    """That database, emptied."""
    name = lasting_url.partition("?")[0].rpartition("/")[2]
    with postgres.admin(name) as admin:
        tables = ", ".join(table.name for table in metadata.sorted_tables)
        admin.execute(f"TRUNCATE {tables} CASCADE".encode())
    return lasting_url


@pytest.fixture
def url(postgres_url: str) -> str:
    """A database without tables."""
    return postgres_url
