"""The program haproxy should be asked for its version as its user."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dfmeta.proxy.haproxy.program import Program
from dfmeta.wiring import haproxy_program
from tests.harness import netns


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the user of haproxy may enter."""
    made = netns.temporary_folder("haproxy")
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_program_that_fails_or_that_its_user_may_not_run_has_no_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(folder / "stand-in", "echo 'HAProxy version 3.0.1 2024/06/10'")
    program = Program(binary=str(path), user="nobody")
    told = haproxy_program.version(program)
    assert told is not None
    assert (told.version, told.lua) == ("3.0.1", False)
    path.chmod(0o700)
    assert haproxy_program.version(program) is None
    script(path, "echo 'HAProxy version 3.0.1 2024/06/10'\nexit 1")
    assert haproxy_program.version(program) is None
    # The limit itself is met by the program.
    monkeypatch.setattr(haproxy_program, "_ASKED", 0.5)
    script(path, "exec sleep 60")
    assert haproxy_program.version(program) is None
