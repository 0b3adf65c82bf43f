"""Questions that may take long, all asked at once, each in a thread that nobody has to wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Later(Generic[T]):
    """An answer that is on its way.

    :param question: runs at once, in a thread that ends with the process.
    """

    def __init__(self, question: Callable[[], T]) -> None:
        self._question = question
        self._answer: list[T] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def get(self, seconds: float) -> T | None:
        """Wait for the answer; None when it has not come within *seconds* from now.

        What the question has raised is raised here.
        """
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        return self._answer[0] if self._answer else None

    def _run(self) -> None:
        try:
            self._answer.append(self._question())
        except Exception as error:  # it is raised where the answer is wanted
            self._error = error
