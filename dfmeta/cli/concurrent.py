"""Calls that may take long, each in a thread of its own, so that they run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Later(Generic[T]):
    """The result of a call that runs in a thread.

    :param question: the call; it starts at once, in a thread that ends with the process.
    """

    def __init__(self, question: Callable[[], T]) -> None:
        self._question = question
        self._answer: list[T] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def get(self, seconds: float) -> T | None:
        """Wait for the result; return None if the call does not end within *seconds* from now.

        An exception of the call is raised here.
        """
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        return self._answer[0] if self._answer else None

    def _run(self) -> None:
        try:
            self._answer.append(self._question())
        except Exception as error:  # get() raises it
            self._error = error
