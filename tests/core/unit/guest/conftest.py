"""A machine to find devices on, and the messages of the program."""

from pathlib import Path

import pytest

from tests.harness.sysfs import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "sys")


@pytest.fixture
def messages() -> list[str]:
    return []
