"""A program that eventlet patches should collect garbage once everything is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness.poll import PATIENCE

OBJECTS = 10_000
"""Objects that the imports of each program leave, at the least."""
PROGRAM = """
import gc, importlib, sys
from dfmeta.cmd import {entry}, patching

def report(*arguments, **options):
    print(gc.isenabled(), gc.get_freeze_count())
    sys.exit()

def patch():
    whole()
    assert not gc.isenabled()
    importlib.import_module("{place}").{name} = report

whole, {entry}.patch = patching.patch, patch
{entry}.main({arguments})
"""


@pytest.mark.parametrize(
    ("entry", "place", "name", "arguments"),
    [
        ("agent", "dfmeta.cmd.daemon", "run", []),
        ("store", "dfmeta.cmd.central", "run", []),
        ("worker", "dfmeta.cmd.serving", "Serving", ["0", "1", "2"]),
    ],
)
def test_what_is_imported_is_left_out_of_collections_and_the_rest_is_not(
    entry: str, place: str, name: str, arguments: list[str]
) -> None:
    program = PROGRAM.format(entry=entry, place=place, name=name, arguments=arguments)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        # coverage would import eventlet before.
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30 * PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    enabled, frozen = ran.stdout.split()
    assert enabled == "True"
    assert int(frozen) > OBJECTS
