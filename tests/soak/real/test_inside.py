"""Modules of tests/host/e2e should pass on the kernel datapath too, on a machine that boots.

They run inside it as they stand, with the harness' limits of time multiplied.
"""

import shlex

import pytest

from tests.soak.real.machine import Machine

DEADLINE = 480
COMMAND = (
    "cd /srv/dfmeta && DFMETA_TEST_DATAPATH=system "
    f"DFMETA_TEST_DEADLINE={DEADLINE} /opt/dfmeta/bin/python -m pytest "
    "-p no:cacheprovider --timeout=1200 --tb=short -q"
)
LIMIT = 3600
"""Seconds for one module."""


def passes(machine: Machine, *arguments: str) -> None:
    """pytest passes inside with these arguments, and has run something."""
    machine.run("systemctl stop dfmeta-agent.service 2>/dev/null || true")
    done = machine.run(f"{COMMAND} {shlex.join(arguments)}", check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stdout[-8000:]


MODULES = ("twins", "addresses", "faults", "identity", "hostile_packets")


@pytest.mark.long
@pytest.mark.parametrize("module", MODULES)
def test_a_module(machine: Machine, module: str) -> None:
    passes(machine, f"tests/host/e2e/test_{module}.py")
