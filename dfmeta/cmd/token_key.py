"""The key of guests' tokens while the disk of state_path has no room for its file."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dfmeta.errors import StartError
from dfmeta.proxy.tokens import KEY_BYTES, KEY_FILE, load_key
from dfmeta.runtime import clock, hub

LOG = logging.getLogger(__name__)

PAUSE: Final = 2.0
"""Seconds between two attempts to write the file."""


class TokenKey:
    """The key in state_path. Where the disk is full at the first start, it is written later.

    Until then guests get no tokens, since these would not be valid after a restart. Everything else
    is served.

    :param folder: state_path.
    :raises StartError: see :func:`~dfmeta.proxy.tokens.load_key`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.value = secrets.token_bytes(KEY_BYTES)
        """The key that the file has or will get."""
        self.fault = ""
        """Why the file does not exist yet, with the remedy; empty: it exists."""
        self._load()

    @property
    def usable(self) -> bytes:
        """The key if the file exists, else empty."""
        return b"" if self.fault else self.value

    def follow(self, ready: Callable[[], object]) -> None:
        """If the file does not exist yet, write it when there is room, and then call *ready*."""
        if self.fault:
            hub.VITAL.spawn("key of tokens", self._await_room, ready, may_return=True)

    def _await_room(self, ready: Callable[[], object]) -> None:
        while self.fault:
            clock.sleep(PAUSE)
            try:
                self._load()
            except StartError as error:
                self.fault = str(error)
        ready()

    def _load(self) -> None:
        key = load_key(self._folder, make=lambda _length: self.value)
        if key is None:
            self.fault = (
                f"the disk of {self._folder} is full, and guests get no tokens before {KEY_FILE} "
                f"is written there. Make room: `df -h {self._folder}`"
            )
        else:
            self.value, self.fault = key, ""
