"""The pages on migration should have every option of Neutron's own code."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.core.docs.test_migrate import OF_NEUTRON, rows
from tests.host.neutron.agent import PYTHON


def test_tables_have_every_option_of_neutron_with_its_default() -> None:
    program = Path(__file__).with_name("neutron_options.py")
    done = subprocess.run(
        [str(PYTHON), "-W", "ignore", str(program)], capture_output=True, text=True, check=True
    )
    registered = json.loads(done.stdout)
    for name in OF_NEUTRON:
        options = [(f"[{group}] {option}", value) for group, option, value in registered[name]]
        assert [(row.old, row.old_default) for row in rows(name)] == options, name
