"""The ``dfmeta`` command. Each of its commands is imported when it is used."""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

from dfmeta.cmd.common import PROG
from dfmeta.exceptions import (
    ConfigError,
    DeviceError,
    DfmetaError,
    RecordError,
    StartError,
    TagRuleError,
)

COMMANDS: Final = {
    "devices": "dfmeta.cmd.devices_command:devices",
    "doctor": "dfmeta.cmd.doctor_command:doctor",
    "flows": "dfmeta.cmd.flows_command:flows",
    "ports": "dfmeta.cmd.ports_command:ports",
    "store": "dfmeta.cmd.store_commands:store",
    "token": "dfmeta.cmd.token_command:token",
    "trace": "dfmeta.cmd.trace_command:trace",
}
"""Name to where its ``click.Command`` is, ``module:attribute``."""

FAILED: Final = 1
WRONG_INPUT: Final = 2


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for, and turns our errors into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, the lazy ones included."""
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a :class:`DfmetaError` is one line on stderr and an exit status."""
        try:
            return super().invoke(ctx)
        except DfmetaError as error:
            click.echo(f"{PROG}: {error}", err=True)
            ctx.exit(exit_status(error))


def exit_status(error: DfmetaError) -> int:
    """Return 2 for what the operator has to correct in the input, else 1."""
    wrong_input = ConfigError | RecordError | StartError | DeviceError | TagRuleError
    return WRONG_INPUT if isinstance(error, wrong_input) else FAILED


@click.group(
    cls=LazyGroup, epilog="Each command's own --help has examples and what its status says."
)
@click.version_option(package_name=PROG, prog_name=PROG)
def cli() -> None:
    """Look after a host's metadata service and its store.

    When guests complain: doctor, then ports, then trace with the guest's port.
    """


def main() -> None:
    """Run the command line and exit with its status."""
    cli(prog_name=PROG)
