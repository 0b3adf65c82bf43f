"""``dfmeta doctor``: checks of everything that a working host needs, each with its remedy."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
from oslo_config import cfg

from dfmeta.cli.client import agent_of, take_over
from dfmeta.cli.common import TABLE, cell_text, command, listing_options, print_rows, shown
from dfmeta.conf import unknown_options
from dfmeta.doctor import table
from dfmeta.doctor.checks_daemon import OptionFacts
from dfmeta.doctor.finding import CheckStatus, Finding, healthy, summary
from dfmeta.doctor.probes import Inspection
from dfmeta.wiring.host import make_host_settings
from dfmeta.wiring.inspection import make_inspection_options

COLUMNS: Final = {"status": "STATUS", "check": "CHECK", "text": "FOUND", "remedy": "REMEDY"}
STYLES: Final = {
    "status": {"ok": "green", "warning": "yellow", "wrong": "bold red", "unknown": "yellow"}
}


@command(
    "doctor",
    "dfmeta doctor",
    "dfmeta doctor --failing",
    "dfmeta doctor --format json",
    failed="anything is wrong, or dfmeta-agent does not run",
)
@listing_options
@click.option("--failing", is_flag=True, help="Show only lines that are not ok.")
@click.option(
    "--root",
    default="/",
    metavar="DIRECTORY",
    help="Root directory of the host's files, for doctor in a container that has them mounted "
    "elsewhere: the files of systemd-networkd.",
)
def doctor(conf: cfg.ConfigOpts, *, fmt: str, wide: bool, failing: bool, root: str) -> None:
    """Check everything that a working host needs, and show the remedy for each fault.

    Each check has a line: its status (ok, warning, wrong, unknown), its name, the finding and, for
    a warning and a fault, the remedy. The last line has the number of each status; JSON has no such
    line. The command changes nothing. Run it as root, on the host.
    """
    # Errors of libraries are in the findings; their log lines would not help the operator.
    logging.disable()
    # On terminals only: programs that read doctor's output take text on stderr for an error.
    with shown("checking the host") if sys.stderr.isatty() else contextlib.nullcontext():
        findings = list(examine(conf, Path(root)))
    rows = [
        {key: asdict(finding)[key] for key in COLUMNS}
        for finding in findings
        if not (failing and finding.status is CheckStatus.OK)
    ]
    if fmt == TABLE and not wide and sys.stdout.isatty():
        from dfmeta.cli import terminal

        texts = [{key: cell_text(text) for key, text in row.items() if text} for row in rows]
        terminal.draw_findings(texts, ("status", "check"), ("text", "remedy"), styles=STYLES)
    else:
        print_rows(rows, COLUMNS, fmt, styles=STYLES, wide=wide)
    if fmt == TABLE:
        click.echo(summary(findings))
    sys.exit(0 if healthy(findings) else 1)


def examine(conf: cfg.ConfigOpts, root: Path) -> Iterator[Finding]:
    """Run every check.

    :param root: root directory of the host's files.
    """
    # The checks use the values in force in the daemon, not those that its files have now.
    in_force = take_over(conf)
    strange = [(str(error), error.remedy) for error in unknown_options(conf)]
    compared = OptionFacts(**vars(in_force.differences), cause=in_force.cause, strange=strange)
    options = make_inspection_options(conf, compared)
    return table.examine(Inspection(make_host_settings(conf), options, agent_of(conf), root=root))
