"""The store that a command works on: the configured database, or an admin API."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from oslo_config import cfg

from dfmeta.cli.common import config_options, load_config
from dfmeta.cli.progress import shown
from dfmeta.errors import RecordError
from dfmeta.store.api.client import Client
from dfmeta.store.db.repository import Repository

TOKEN: Final = "DFMETA_TOKEN"  # noqa: S105  # the variable's name
TOKEN_MAX: Final = 16 * 1024
"""Bytes; more than servers accept in a header."""

Records = Repository | Client


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChoice:
    """The options of the command line that choose the store."""

    config_files: tuple[str, ...]
    url: str | None
    token_file: str | None
    ca_file: str | None

    def conf(self) -> cfg.ConfigOpts:
        """Read the configuration.

        :raises ConfigError: when it is wrong.
        """
        return load_config(self.config_files)

    @contextlib.contextmanager
    def opened(self, conf: cfg.ConfigOpts) -> Iterator[Records]:
        """Open the store.

        :raises StoreError: when the database cannot be opened.
        :raises RecordError: when the URL or the token is invalid.
        """
        if self.url is None:
            # This waits for a server that is unavailable, and upgrades an older schema.
            with shown("opening the store"):
                repository = Repository(conf.store.connection)
            with repository:
                yield repository
            return
        yield Client(self.url, token=_token(self.token_file), ca_file=self.ca_file or "")


def store_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose the store, as ``store: StoreChoice``."""

    @config_options
    @click.option(
        "--url",
        metavar="URL",
        help="Use the admin API of a store, such as http://127.0.0.1:9697, instead of the "
        "configured database.",
    )
    @click.option(
        "--token-file",
        metavar="FILE",
        help=f"File with the token for --url. Default: the environment variable {TOKEN}.",
    )
    @click.option(
        "--ca-file",
        metavar="FILE",
        help="PEM file with the certificates of the only authorities to trust for an https URL. "
        "Default: the system's authorities.",
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
            raise click.UsageError("--token-file and --ca-file need --url: give it as well")
        store = StoreChoice(
            config_files=config_files, url=url, token_file=token_file, ca_file=ca_file
        )
        return function(store=store, **values)

    return command


def _token(file: str | None) -> str:
    """Return the token from *file* or the environment; empty if neither gives one."""
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
            cause="it contains no token",
            remedy="Write the token alone on one line",
        )
    return token
