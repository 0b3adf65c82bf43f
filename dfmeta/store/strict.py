"""Strict readers of files that users write: text, JSON and YAML. Pure.

Each function raises ValueError with a cause that quotes nothing of the input, which may hold
secrets.

Trust: none. YAML may use one value in many places, so that a few bytes grow without bound. The
values are counted while the text is composed, before any object is made of them.
"""

import re
from typing import Any, Final

import yaml

from dfmeta.store import strictjson

NOT_TEXT: Final = "it is not UTF-8"
VALUES_MAX: Final = 100_000
"""Most values of a YAML text. An alias counts as a copy of the value that it stands for, and a
string as one value for each :data:`TEXT_PIECE` characters."""
TEXT_PIECE: Final = 256
NUMBER_MAX: Final = 1000
"""Most characters of a number in YAML: Python reads a number to the base 60 in quadratic time, and
does not write a number of more than 4,300 digits."""

_NAMED: Final = re.compile(r"(alias|anchor|handle|tag) ['\"].*", re.DOTALL)
"""Matches the places of PyYAML's messages that repeat a word of the input, such as a password that
begins with ``*``."""


def decode(data: bytes) -> str:
    """Return the text of UTF-8 bytes without a byte order mark.

    :raises ValueError: the bytes are not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(NOT_TEXT) from None


def parse_object(data: bytes | str) -> dict[str, Any]:
    """Return a JSON object; see :func:`dfmeta.store.strictjson.loads`."""
    return strictjson.loads_object(data if isinstance(data, str) else decode(data))


def parse_mapping(data: bytes | str) -> dict[str, Any]:
    """Return a JSON object or a YAML mapping (YAML 1.1, without tags of a language).

    One value may be used in several places, and counts in each of them. There are at most
    :data:`VALUES_MAX` values, nested at most :data:`dfmeta.store.strictjson.DEPTH_MAX` deep. No
    value contains itself.

    :raises ValueError: the input is neither, or exceeds these limits.
    """
    text = data if isinstance(data, str) else decode(data)
    try:
        mapping = _load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}" if mark else ""
        problem = _NAMED.sub(r"\1", error.problem or "it ends too soon")
        raise ValueError(f"it is not YAML: {problem}{where}") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, ArithmeticError):
        # PyYAML raises other errors than YAMLError for !!bool x, !!timestamp x and "\UFFFFFFFF".
        raise ValueError("it is not YAML") from None
    if isinstance(mapping, dict):
        return mapping
    raise ValueError("it is not a mapping of names to values")


def _load(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Refuses values that would grow too large or too deep, or contain themselves, as it reads."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._depth = 0
        self._height = 0
        """Greatest depth so far inside the value that is being composed."""
        self._anchored: dict[str, tuple[int, int]] = {}
        """Anchor → number of values under it, and their depth."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a value; see ``yaml.composer.Composer``."""
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchored:
                raise _refused("an alias of a value that is not defined before it", event)
            values, height = self._anchored[event.anchor]
            self._count(event, values, height)
            return super().compose_node(parent, index)
        before, beside, self._height = self._values, self._height, 0
        length = len(event.value) if isinstance(event, yaml.ScalarEvent) else 0
        self._count(event, 1 + length // TEXT_PIECE, 0)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if length > NUMBER_MAX and node.tag.endswith((":int", ":float")):
            raise _refused(f"a number of more than {NUMBER_MAX} characters", event)
        height = self._height + 1
        if event.anchor is not None:
            self._anchored[event.anchor] = self._values - before, height
        self._height = max(beside, height)
        return node

    def _count(self, event: Any, values: int, height: int) -> None:
        self._values += values
        self._height = max(self._height, height)
        if self._values > VALUES_MAX:
            cause = f"more than {VALUES_MAX} values, where an alias counts as a copy of its value"
            raise _refused(cause, event)
        if self._depth + max(height, 1) > strictjson.DEPTH_MAX:
            raise _refused(f"more than {strictjson.DEPTH_MAX} nested values", event)


def _refused(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
