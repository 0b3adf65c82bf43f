"""Types of options beyond those of oslo.config.

A refusal names the reason, never the value: that may be a secret, and the caller shows it or not.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from oslo_config import types

HTTP_URL: Final = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?", re.IGNORECASE)
"""Of a host and a path alone: a user and password would come into logs."""
_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):\d{1,5}")


class Text(types.String):
    """A string of a certain form.

    :param noun: the form; follows "it is not" in the reason.
    :param fits: tells by a true value that a string has the form; may raise ValueError otherwise.
    :param example: follows "Give one such as" in the remedy.
    :param optional: an empty value is accepted, and counts as unset.
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
    """Values of one type with commas between them; a refusal names the value that is wrong.

    :param item: the type: a :class:`Text`, or one of oslo.config with choices.
    :param least: how many there have to be.
    :param noun: one of the choices, such as "source", where *item* has choices.
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
            raise ValueError(f"it is without a {self.noun}" if self.noun else "it is empty")
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
                cause = f"{text!r} cannot be chosen"
            raise ValueError(cause) from error


absolute_path: Final = partial(Text, "an absolute path", lambda text: text.startswith("/"))
http_url: Final = partial(Text, "an http or https URL of a host and a path alone")
host_port: Final = partial(
    Text,
    "HOST:PORT with a port from 1 to 65535",
    lambda text: _HOST_PORT.fullmatch(text) and has_port(text),
)


def has_port(text: str) -> bool:
    """Whether the digits after the last colon, where there are any, are a TCP port."""
    port = text.rpartition(":")[2]
    return not port.isdigit() or 1 <= int(port) <= 65535


def without_password(text: str) -> str:
    """Return a URL as a message may repeat it: without its user and password."""
    before, slashes, rest = text.partition("//")
    _user, at, host = rest.rpartition("@")
    return f"{before}{slashes}(hidden)@{host}" if at else text
