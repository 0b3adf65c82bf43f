"""Programs that write "begun" when they are under way."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import IO, Self

from tests.harness import nursery
from tests.harness.closing import Closing, Process
from tests.harness.netns import Namespace


class Program(Closing):
    """A process; a context manager that kills it."""

    def __init__(self, process: Process, said: IO[bytes]) -> None:
        """:param said: its standard output, which is closed with it."""
        self._process, self._said = process, said

    def __enter__(self) -> Self:
        """Wait until it has begun."""
        assert self._said.readline() == b"begun\n"
        return self

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        self._said.close()

    def last_words(self) -> bytes:
        """Wait for its end; all that it has written and that is not read yet."""
        words = self._said.read()
        self._process.wait()
        return words


class Script(Program):
    """One of the harness' own programs, in a namespace."""

    def __init__(self, namespace: Namespace, name: str, *arguments: str) -> None:
        """Start it; see :func:`tests.harness.nursery.script`."""
        reading, writing = os.pipe()
        with ExitStack() as unless_begun, open(writing, "wb") as stdout:
            said = unless_begun.enter_context(open(reading, "rb"))
            process = nursery.script(name, *arguments, namespace=namespace, stdout=stdout)
            super().__init__(process, said)
            unless_begun.pop_all()
