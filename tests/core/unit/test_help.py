"""The help of ``dfmeta`` should list each command with the sentence of its own help."""

from __future__ import annotations

import click

from dfmeta.cli.common import SENTENCE
from dfmeta.cli.ctl import COMMANDS, cli


def test_the_list_has_the_sentence_of_each_command() -> None:
    context = click.Context(cli)
    listed = {name: place.sentence for name, place in COMMANDS.items()}
    commands = {name: cli.get_command(context, name) for name in COMMANDS}
    assert listed == {
        name: command.get_short_help_str(limit=SENTENCE) if command else ""
        for name, command in commands.items()
    }
