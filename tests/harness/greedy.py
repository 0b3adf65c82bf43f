"""A guest that opens as many connections as it can; see :mod:`tests.harness.greedy_client`."""

import json
import signal
from dataclasses import dataclass
from typing import Literal

from tests.harness.guest import METADATA_IP, Guest
from tests.harness.program import Script

Kind = Literal["silent", "head", "body", "unread", "asks", "spellings", "chunks"]


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Numbers of connections: opened ones, and those that the other side has closed."""

    opened: int
    ended: int
    answered: int
    """Complete answers, for the kinds that send requests again and again."""


class Greedy(Script):
    """A running client, which has begun when it has opened the wanted number of connections."""

    def __init__(
        self, guest: Guest, kind: Kind, *, wanted: int, path: str = "/", host: str = METADATA_IP
    ) -> None:
        """Start the client.

        :param wanted: number of simultaneous connections.
        :param path: the path that ``unread``, ``asks`` and ``spellings`` request.
        """
        super().__init__(guest.namespace, "greedy_client", kind, str(wanted), path, host)

    def rest(self) -> None:
        """Stop opening connections, and keep the open ones."""
        self._process.send_signal(signal.SIGUSR1)

    def finish(self) -> Taken:
        """End the client, and return its counts."""
        self._process.terminate()
        return Taken(**json.loads(self.last_words()))
