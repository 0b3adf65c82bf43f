"""The harness' own programs, in a namespace; each writes "begun" when it is under way."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Self

from tests.harness.closing import Closing
from tests.harness.netns import Namespace


def script(
    name: str,
    *arguments: str,
    namespace: Namespace,
    stdin: int | IO[Any] | None = subprocess.DEVNULL,
    stdout: int | IO[Any] | None = subprocess.DEVNULL,
    stderr: int | IO[Any] | None = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a module of this package that uses only the standard library.

    :param name: of the module.
    """
    path = str(Path(__file__).with_name(f"{name}.py"))
    command = [sys.executable, "-IS", path, *arguments]
    return namespace.spawn(command, stdin=stdin, stdout=stdout, stderr=stderr)


class Program(Closing):
    """A process; a context manager that kills it."""

    def __init__(self, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        """:param output: its standard output, which is closed with it."""
        self._process, self._output = process, output

    def __enter__(self) -> Self:
        """Wait until it has begun."""
        assert self._output.readline() == b"begun\n"
        return self

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    def last_words(self) -> bytes:
        """Wait for its end; return the output that is not read yet."""
        words = self._output.read()
        self._process.wait()
        return words


class Script(Program):
    """One of the harness' own programs, in a namespace."""

    def __init__(
        self,
        namespace: Namespace,
        name: str,
        *arguments: str,
        stdin: int | IO[Any] = subprocess.DEVNULL,
    ) -> None:
        """Start it; see :func:`script`."""
        reading, writing = os.pipe()
        with ExitStack() as unless_begun, open(writing, "wb") as stdout:
            output = unless_begun.enter_context(open(reading, "rb"))
            process = script(name, *arguments, namespace=namespace, stdin=stdin, stdout=stdout)
            super().__init__(process, output)
            unless_begun.pop_all()
