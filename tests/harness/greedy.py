"""A guest that takes as many connections as it gets; see :mod:`tests.harness.greedy_client`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from tests.harness.guest import METADATA_IP, Guest

Kind = Literal["silent", "head", "body", "unread", "churn", "asks", "spellings", "chunks"]
_PROGRAM = Path(__file__).with_name("greedy_client.py")


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What there has been: connections opened, and those that the other side has ended."""

    opened: int
    ended: int
    answered: int
    """Answers that have come whole, of the kinds that ask again and again."""


class Greedy:
    """It under way; a context manager that ends it."""

    def __init__(
        self,
        guest: Guest,
        kind: Kind,
        *,
        wanted: int,
        path: str = "/",
        host: str = METADATA_IP,
    ) -> None:
        """Start it.

        :param wanted: connections at a time.
        :param path: what ``unread``, ``asks`` and ``spellings`` ask for.
        """
        command = [sys.executable, "-IS", str(_PROGRAM), kind, str(wanted), path, host]
        self._process = guest.namespace.spawn(command, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        """Wait until it has had as many as it wants."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"begun\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def rest(self) -> None:
        """Have it open no more, and keep what it has."""
        self._process.send_signal(signal.SIGUSR1)

    def finish(self) -> Taken:
        """End it."""
        self._process.terminate()
        return Taken(**json.loads(self._process.communicate()[0]))
