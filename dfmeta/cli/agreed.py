"""Asks on a terminal before something is lost; scripts, which have none, are not asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def yes_option(function: F) -> F:
    """Give a command ``--yes`` as ``yes: bool``."""
    return click.option("--yes", is_flag=True, help="Do not ask, on a terminal either.")(function)


def agreed(question: str, *, yes: bool) -> None:
    """Ask, and go on where the answer is yes.

    :param yes: do not ask.
    :raises click.exceptions.Exit: status 1; the answer is no.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not click.confirm(question, err=True):
        click.echo("Nothing was changed.", err=True)
        raise click.exceptions.Exit(1)
