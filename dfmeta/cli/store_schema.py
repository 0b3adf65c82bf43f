"""``dfmeta store schema``: the schema of the database, and the rollback to an older schema."""

from __future__ import annotations

import click

from dfmeta.cli.common import config_options, ending, load_config
from dfmeta.cli.progress import shown
from dfmeta.errors import RecordError
from dfmeta.store.db.database import move_schema, schema_of
from dfmeta.store.db.schema import HEAD, REVISIONS


@click.command(
    "schema", epilog=ending("dfmeta store schema", failed="the database cannot be opened")
)
@config_options
@click.option(
    "--to",
    metavar="REVISION",
    help="Upgrade or downgrade the database to this schema. Refused while another dfmeta process "
    "has the database open; the next dfmeta that opens it upgrades it to its own schema.",
)
def schema(config_files: tuple[str, ...], to: str | None) -> None:
    """Show the schema of the database, or change it before you install an older dfmeta."""
    url = load_config(config_files).store.connection
    if to is not None:
        if to not in REVISIONS:
            raise RecordError(
                what="--to",
                value=to,
                cause="this dfmeta does not know that revision",
                remedy=f"Give one of {', '.join(REVISIONS)}",
            )
        with shown(f"changing the database to schema {to}"):
            move_schema(url, to)
    click.echo(f"schema {schema_of(url) or 'none, the database is empty'}; this dfmeta's is {HEAD}")
