"""Types of options beyond those of oslo.config.

Their errors name the reason and never the value, which may be a secret: the caller decides whether
to show the value.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from oslo_config import types

HTTP_URL: Final = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?", re.IGNORECASE)
"""URL of a host and a path alone: a user and password would appear in logs."""
_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):\d{1,5}")


class Text(types.String):
    """A string of a given form.

    :param noun: name of the form; follows "it is not" in the reason.
    :param fits: returns a true value for a string of that form; may raise ValueError for others.
    :param example: follows "Give one such as" in the remedy.
    :param optional: accept an empty value, which counts as unset.
    """

    def __init__(
        self,
        noun: str,
        fits: Callable[[str], object],
        *,
        example: str,
        optional: bool = False,
        type_name: str = "string value",
    ) -> None:
        super().__init__(type_name=type_name)
        self.noun, self.fits, self.optional = noun, fits, optional
        self.wanted = f"one such as {example}"

    def __call__(self, value: Any) -> str:
        text = str(value)
        with contextlib.suppress(ValueError):
            if (self.optional and not text) or self.fits(text):
                return text
        raise ValueError(f"it is not {self.noun}")


class Several(types.List):
    """Values of one type with commas between them; an error names the wrong value.

    :param item: type of a value: a :class:`Text`, or a type of oslo.config with choices.
    :param least: smallest number of values.
    :param noun: name of a choice, such as "source", if *item* has choices.
    """

    def __init__(self, item: Any, *, least: int = 1, noun: str = "") -> None:
        super().__init__(item)
        self.least, self.noun = least, noun
        choices = ", ".join(map(str, getattr(item, "choices", None) or ()))
        some = f"some of {choices}," if choices else f"{item.wanted}, or several"
        self.wanted = f"{some} with commas between them"

    def __call__(self, value: Any) -> list[Any]:
        texts = value.strip().rstrip(",").split(",") if isinstance(value, str) else value
        given = [str(text).strip() for text in texts if texts != [""]]
        if len(given) < self.least:
            raise ValueError(f"it does not name a {self.noun}" if self.noun else "it is empty")
        return [self._item(text) for text in given]

    def _item(self, text: str) -> Any:
        try:
            return self.item_type(text)
        except ValueError as error:
            noun = getattr(self.item_type, "noun", "")
            if noun:
                cause = f"{text!r} is not {noun}"
            elif self.noun:
                cause = f"there is no {self.noun} {text!r}"
            else:
                cause = f"{text!r} is not one of the choices"
            raise ValueError(cause) from error


absolute_path: Final = partial(Text, "an absolute path", lambda text: text.startswith("/"))
http_url: Final = partial(Text, "an http or https URL of a host and a path alone")
host_port: Final = partial(
    Text,
    "HOST:PORT with a port from 1 to 65535",
    lambda text: _HOST_PORT.fullmatch(text) and has_port(text),
)


def has_port(text: str) -> bool:
    """Return whether the digits after the last colon are a TCP port; True if there are none."""
    port = text.rpartition(":")[2]
    return not port.isdigit() or 1 <= int(port) <= 65535


def without_password(text: str) -> str:
    """Return a URL without its user and password, for use in a message."""
    before, slashes, rest = text.partition("//")
    _user, at, host = rest.rpartition("@")
    return f"{before}{slashes}(hidden)@{host}" if at else text
