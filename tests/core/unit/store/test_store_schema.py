"""An operator should see the schema, and go back before an older dfmeta is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dfmeta.cli.ctl import cli
from dfmeta.store.db.database import schema_of
from dfmeta.store.db.repository import Repository
from dfmeta.store.db.schema import HEAD


@pytest.fixture
def config(tmp_path: Path, database_url: str) -> Path:
    path = tmp_path / "dfmeta.conf"
    path.write_text(f"[store]\nconnection = {database_url}\n")
    return path


def run(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["store", "schema", "--config-file", str(config), *arguments])


def test_it_says_what_the_database_has_and_changes_nothing(config: Path, database_url: str) -> None:
    assert run(config).output == f"schema none, the database is empty; this dfmeta's is {HEAD}\n"
    Repository(database_url).close()
    assert run(config).output == f"schema {HEAD}; this dfmeta's is {HEAD}\n"


def test_it_goes_back_and_forth(config: Path, database_url: str) -> None:
    Repository(database_url).close()
    assert run(config, "--to", "0001").output == f"schema 0001; this dfmeta's is {HEAD}\n"
    assert schema_of(database_url) == "0001"
    assert run(config, "--to", HEAD).exit_code == 0
    assert schema_of(database_url) == HEAD


def test_a_schema_that_there_is_not_is_one_line(config: Path) -> None:
    result = run(config, "--to", "9999")
    assert result.exit_code == 2
    assert result.stderr.startswith("dfmeta: --to = '9999' is wrong: ")
    assert "0001, 0002, 0003, 0004" in result.stderr
