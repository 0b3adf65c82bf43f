"""Which store a command means: the configured database, or an admin API."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from oslo_config import cfg

from dfmeta.cli.common import config_options, load_config
from dfmeta.cli.progress import shown
from dfmeta.exceptions import RecordError
from dfmeta.store.api.client import Client
from dfmeta.store.db.repository import Repository

TOKEN: Final = "DFMETA_TOKEN"  # noqa: S105  # the variable's name
TOKEN_MAX: Final = 16 * 1024
"""Bytes; more than servers take of a header."""

Records = Repository | Client
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChoice:
    """What the command line says of the store."""

    config_files: tuple[str, ...]
    url: str | None
    token_file: str | None
    ca_file: str | None

    def conf(self) -> cfg.ConfigOpts:
        """Read the configuration.

        :raises ConfigError: it is wrong.
        """
        return load_config(self.config_files)

    @contextlib.contextmanager
    def opened(self, conf: cfg.ConfigOpts) -> Iterator[Records]:
        """Open the store.

        :raises StoreError: the database cannot be opened.
        :raises RecordError: the URL or the token cannot be one.
        """
        if self.url is None:
            # A server that is away is waited for, and an older schema is brought up to date.
            with shown("opening the store"):
                repository = Repository(conf.store.connection)
            with repository:
                yield repository
            return
        client = Client(self.url, token=_token(self.token_file), ca_file=self.ca_file or "")
        with contextlib.closing(client):
            yield client


def store_options(function: F) -> F:
    """Give a command the options that say which store, as ``store: StoreChoice``."""

    @config_options
    @click.option(
        "--url",
        metavar="URL",
        help="The admin API of a store, such as http://127.0.0.1:9697, in the place of the "
        "configured database.",
    )
    @click.option(
        "--token-file",
        metavar="FILE",
        help=f"Where the token for --url stands; without it, the environment's {TOKEN}.",
    )
    @click.option(
        "--ca-file",
        metavar="FILE",
        help="PEM certificates of the authorities that alone count for an https URL; without it, "
        "the system's.",
    )
    @functools.wraps(function)
    def command(
        config_files: tuple[str, ...],
        url: str | None,
        token_file: str | None,
        ca_file: str | None,
        **values: Any,
    ) -> Any:
        if url is None and (token_file or ca_file):
            raise click.UsageError("--token-file and --ca-file go with --url: give that as well")
        store = StoreChoice(
            config_files=config_files, url=url, token_file=token_file, ca_file=ca_file
        )
        return function(store=store, **values)

    return command  # type: ignore[return-value]  # what click calls has other parameters


def _token(file: str | None) -> str:
    """Return the token; empty when there is none."""
    shown = file or TOKEN
    try:
        if file is None:
            token = os.environ.get(TOKEN, "")
        else:
            with Path(file).open("rb") as opened:
                token = opened.read(TOKEN_MAX).decode("latin-1").strip()
    except (OSError, ValueError) as error:
        raise RecordError(
            what="--token-file",
            value=shown,
            cause=getattr(error, "strerror", None) or error,
            remedy="Name a file that can be read",
        ) from error
    if not all("!" <= character <= "~" for character in token) or (file and not token):
        raise RecordError(
            what="--token-file" if file else "the environment",
            value=shown,
            cause="it holds no token",
            remedy="One line with the token alone is wanted",
        )
    return token
