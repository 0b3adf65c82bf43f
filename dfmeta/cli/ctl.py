"""The ``dfmeta`` command. Its subcommands are imported when they are used."""

import difflib
import gc
import importlib
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final, NamedTuple

import click

from dfmeta import errors
from dfmeta.cli.common import CONFIG_FILE, SENTENCE, Group, config_before
from dfmeta.wiring import process


class LazyCommand(NamedTuple):
    """A command that is not imported yet, and the first sentence of its help."""

    module: str
    """It has the command under the command's name."""
    sentence: str


COMMANDS: Final = {
    "attachment": LazyCommand(
        "dfmeta.cli.attachment_command",
        "Manage the attachments of containers in VMs, which the VMs request over the "
        "metadata address.",
    ),
    "devices": LazyCommand(
        "dfmeta.cli.devices_command", "Describe to guests the roles of their devices."
    ),
    "doctor": LazyCommand(
        "dfmeta.cli.doctor_command",
        "Check everything that a working host needs, and show the remedy for each fault.",
    ),
    "flows": LazyCommand(
        "dfmeta.cli.flows_command",
        "Show dfmeta's flows on the bridges, and mark unknown and missing flows.",
    ),
    "ports": LazyCommand(
        "dfmeta.cli.ports_command",
        "Show every guest port: key, slots, instance, project, their sources, state, last answer.",
    ),
    "store": LazyCommand(
        "dfmeta.cli.store_commands", "Write, read and delete instances' metadata."
    ),
    "subport": LazyCommand(
        "dfmeta.cli.trunk_commands", "Manage the instances of subports, the VLANs of a VM's trunk."
    ),
    "token": LazyCommand(
        "dfmeta.cli.token_command",
        "Create, list and revoke the static tokens of the store's admin API.",
    ),
    "trace": LazyCommand(
        "dfmeta.cli.trace_command",
        "Trace a SYN of PORT through the switch and the host, and the answer back.",
    ),
    "trunk": LazyCommand(
        "dfmeta.cli.trunk_commands",
        "Give a VM a trunk, so that its containers can have ports of their own.",
    ),
}
"""Name → place of its ``click.Command``; help and version are in this module."""

FAILED: Final = 1
WRONG_INPUT: Final = 2


class LazyGroup(Group):
    """A group that imports a command when it is used, and reports dfmeta's errors on one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, including those that are not imported yet."""
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = COMMANDS[cmd_name].module
        # To look for garbage among all that is imported, and stays, costs a tenth of a command.
        gc.disable()
        command: click.Command = getattr(importlib.import_module(module), cmd_name)
        gc.freeze()
        gc.enable()
        return command

    def sentences(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return the names of the commands and their sentences; imports none of them."""
        texts = {name: it.get_short_help_str(limit=SENTENCE) for name, it in self.commands.items()}
        texts |= {name: place.sentence for name, place in COMMANDS.items()}
        return sorted(texts.items())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. The error for an unknown name suggests the most similar command.

        :raises click.UsageError: when there is no command of that name.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if near and near[0] not in error.message:
                text = f"{error.message.rstrip('.')}. Did you mean {near[0]}?"
                raise click.UsageError(text, ctx) from error
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; report a :class:`DfmetaError` as one line on stderr and exit."""
        try:
            return super().invoke(ctx)
        except errors.DfmetaError as error:
            process.print_error(process.PROG, error)
            ctx.exit(exit_status(error))


def exit_status(error: errors.DfmetaError) -> int:
    """Return 2 for errors in the operator's input, else 1."""
    wrong_input = (
        errors.ConfigError
        | errors.RecordError
        | errors.StartError
        | errors.DeviceError
        | errors.TagRuleError
        | errors.UsageError
    )
    return WRONG_INPUT if isinstance(error, wrong_input) else FAILED


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="The --help of each command has examples and explains its exit status.",
)
@click.version_option(package_name=process.PROG, prog_name=process.PROG)
@config_before
def cli() -> None:
    """Check and manage the metadata service of a host and its store.

    When guests fail, run doctor, then ports, then trace with the guest's port.
    """


@cli.subcommand("help", "dfmeta help", "dfmeta help store put", failed="nothing can be written")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def show_help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, like its --help."""
    meant, left = command_meant(words, ctx.find_root())
    if left:
        raise click.UsageError(f"No such command {left[0]!r}.", meant)
    click.echo(meant.get_help())


@cli.subcommand("version", "dfmeta version", failed="nothing can be written")
def show_version() -> None:
    """Show the version of dfmeta, like --version."""
    click.echo(f"{process.PROG}, version {metadata.version(process.PROG)}")


def command_meant(words: Sequence[str], root: click.Context) -> tuple[click.Context, Sequence[str]]:
    """Return the command that the words of a command line name, and the words after it."""
    ctx, left = root, [*words]
    while left and isinstance(ctx.command, click.Group):
        if left[0].startswith("-"):
            del left[: 2 if left[0] == CONFIG_FILE else 1]
            continue
        command = ctx.command.get_command(ctx, left[0])
        if command is None:
            break
        ctx = click.Context(command, info_name=left.pop(0), parent=ctx)
    return ctx, left


def main() -> None:
    """Run the command line and exit with its status."""
    process.escape_unencodable()
    sys.exit(_status())


def _status() -> int:
    try:
        # Commands return None; click returns a status only after a call of exit().
        return int(cli.main(prog_name=process.PROG, standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return WRONG_INPUT
    except click.UsageError as error:
        if error.ctx is None:  # the parser knows the option but not its command
            root = click.Context(cli, info_name=process.PROG)
            error.ctx, _left = command_meant(sys.argv[1:], root)
        click.echo(error.ctx.get_usage(), err=True)
        process.print_error(process.PROG, usage_error(error))
        return WRONG_INPUT
    except click.ClickException as error:
        process.print_error(process.PROG, errors.UsageError(cause=error.format_message()))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return process.INTERRUPTED
    except Exception as error:  # report every error on one line
        process.print_unexpected(process.PROG, error)
        return FAILED


def usage_error(error: click.UsageError) -> errors.UsageError:
    """Return the error to report for a command line that click rejects."""
    path = error.ctx.command_path if error.ctx is not None else process.PROG
    return errors.UsageError(cause=error.format_message(), remedy=f"See {path} --help")
