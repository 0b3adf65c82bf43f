"""The export on the page should bring hollow-metadataservice's records over as they are."""

import json
import re
from pathlib import Path

import psycopg
from click.testing import CliRunner

from dfmeta.cli.ctl import cli

PAGE = Path(__file__).parents[3] / "doc/source/migrate.rst"
FULL = "67fe638b-87b3-4fde-b191-1effb94b3c19"
BARE = "820a7791-b6d1-4319-a748-5614797f5047"
DOCUMENT = {"id": FULL, "hostname": 'web "1"', "tags": ["a\nb", "ü"], "facility": "da11"}
USERDATA = b"#cloud-config\npackages:\n  - nginx\n" + bytes(range(256))
# The original's own, by its migrations; `bytes` there is CockroachDB's word.
SCHEMA = """
CREATE TABLE instance_metadata (
  id uuid PRIMARY KEY, metadata json NOT NULL DEFAULT '{}',
  created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE instance_userdata (
  id uuid PRIMARY KEY, userdata bytea,
  created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE instance_ip_addresses (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(), instance_id uuid NOT NULL,
  address inet UNIQUE NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now());
"""


def statements() -> list[str]:
    """Those of export.sql on the page."""
    block = re.search(
        r"   :caption: export\.sql\n\n((?: {6}.*\n|\n)+)", PAGE.read_text(encoding="utf-8")
    )
    assert block
    return [word for word in block[1].split(";") if word.strip()]


def export(url: str) -> list[str]:
    """The lines that psql would print."""
    with psycopg.connect(url.replace("+psycopg", "")) as database:
        database.execute(SCHEMA)
        for instance, document in ((FULL, json.dumps(DOCUMENT, indent=2)), (BARE, "{}")):
            database.execute(
                "INSERT INTO instance_metadata (id, metadata) VALUES (%s, %s)", (instance, document)
            )
        for instance, userdata in ((FULL, USERDATA), (BARE, None)):
            database.execute(
                "INSERT INTO instance_userdata (id, userdata) VALUES (%s, %s)", (instance, userdata)
            )
        for address in ("10.1.2.0/28", "139.73.254.254", "2001:db8:8583::9"):
            database.execute(
                "INSERT INTO instance_ip_addresses (instance_id, address) VALUES (%s, %s)",
                (FULL, address),
            )
        # As text, which is what psql prints.
        return [
            row[0]
            for statement in statements()
            for row in database.execute(
                f"SELECT line::text FROM ({statement}) AS lines (line)"  # type: ignore[arg-type]
            )
        ]


def store(*arguments: str, config: Path, stdin: str = "") -> bytes:
    """Run ``dfmeta store``, and return its output."""
    done = CliRunner().invoke(cli, ["store", *arguments, "--config-file", str(config)], input=stdin)
    assert done.exit_code == 0, done.output
    return done.stdout_bytes


def test_exported_records_are_imported_as_they_were(postgres_url: str, tmp_path: Path) -> None:
    lines = export(postgres_url)
    assert len(lines) == 4
    assert not any("\n" in line for line in lines)
    config = tmp_path / "dfmeta.conf"
    config.write_text(f"[df_metadata]\nstate_path = {tmp_path / 'state'}\n")
    store("import", "-", config=config, stdin="\n".join(lines))
    assert json.loads(store("get", FULL, "--document", config=config)) == DOCUMENT
    assert store("get", FULL, "--user-data", config=config) == USERDATA
    (shown,) = json.loads(store("get", FULL, "--format", "json", config=config))
    wanted = {"10.1.2.0/28", "139.73.254.254/32", "2001:db8:8583::9/128"}
    assert set(shown["addresses"]) == wanted
    assert json.loads(store("get", BARE, "--document", config=config)) == {}
    assert store("get", BARE, "--user-data", config=config) == b""
