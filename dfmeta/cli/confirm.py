"""Confirmation before data is lost: the operator is asked on a terminal, never in a script."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def yes_option(function: F) -> F:
    """Give a command ``--yes`` as ``yes: bool``."""
    return click.option(
        "--yes", is_flag=True, help="Do not ask for confirmation, even on a terminal."
    )(function)


def agreed(question: str, *, yes: bool) -> None:
    """Ask a question, and return if the answer is yes.

    :param yes: do not ask.
    :raises click.exceptions.Exit: with status 1 when the answer is no.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not click.confirm(question, err=True):
        click.echo("Nothing was changed.", err=True)
        raise click.exceptions.Exit(1)
