"""A parser of OVSDB's messages that leaves the work to the standard library.

The parser of the package ovs takes a character at a time where its C extension is missing, as in
the package on PyPI: a second for a megabyte, in which hardly any other thread of the daemon runs.
This one finds the end of a message by its brackets, and gives the text to :mod:`json`.

Source: RFC 7047, 4 (JSON-RPC 1.0: a message is an object, and no mark ends it). Trust: the texts
come from ovsdb-server; their nesting is bounded.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

DEPTH_MAX: Final = 100
"""Brackets that may be open at a time: OVSDB's messages have fewer than ten, and json fails with
about a thousand."""
_TOKEN: Final = re.compile(r'[{\[]|[}\]]|"[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)
"""A bracket or a string; group 1 is empty where the string goes on in the next text."""
_OPENING: Final = frozenset("{[")


class MessageParser:
    """Takes one message; the interface is that of ``ovs.json.Parser``."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._depth = 0
        self._open = ""
        """The beginning of a string that goes on: a quote, and a backslash before the next text."""
        self._error = ""
        self._done = False

    def feed(self, text: str) -> int:
        """Take the characters up to the end of the message, and return how many those are."""
        if self._done:
            return 0
        end = self._end_in(text)
        self._texts.append(text[:end])
        return end

    def is_done(self) -> bool:
        """Return whether the message is complete, or is not one."""
        return self._done

    def finish(self) -> Any:
        """Return the message; a string says why there is none."""
        if not self._done:
            return "unexpected end of input"
        if self._error:
            return self._error
        try:
            return json.loads("".join(self._texts))
        except ValueError as error:
            return str(error)

    def _end_in(self, text: str) -> int:
        before, self._open = self._open, ""
        if not self._depth and text.lstrip()[:1] not in ("", "{"):
            return self._fail("a message must be an object")
        whole = before + text
        for found in _TOKEN.finditer(whole):
            token = found[0]
            if token[0] == '"':
                if not found[1]:
                    self._open = '"' + whole[found.end() :]
                    break
            elif token in _OPENING:
                self._depth += 1
                if self._depth > DEPTH_MAX:
                    return self._fail(f"more than {DEPTH_MAX} brackets are open")
            else:
                self._depth -= 1
                if not self._depth:
                    self._done = True
                    return found.end() - len(before)
        return len(text)

    def _fail(self, error: str) -> int:
        self._error, self._done = error, True
        return 0
