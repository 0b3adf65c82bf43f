"""Context managers whose end is their ``close``."""

import abc
import contextlib
import threading
from collections.abc import Iterator
from socketserver import BaseServer
from types import TracebackType
from typing import Self, TypeVar

S = TypeVar("S", bound=BaseServer)


class Closing(abc.ABC):
    """A resource of a test that is closed at the end of its ``with`` statement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """End all that the resource has started. Idempotent."""


@contextlib.contextmanager
def serving(server: S) -> Iterator[S]:
    """Serve in a thread until the end of the block, and close the server."""
    loop = {"poll_interval": 0.01}
    thread = threading.Thread(target=server.serve_forever, kwargs=loop, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
