"""Which device of a domain a tag is for: a rule, as an operator writes it. Pure.

``TYPE:[KEY:]VALUE=TAG``. TYPE is ``nic`` or ``disk``. With a KEY the value is looked for there
alone, without one under all keys. The text up to the first ``=`` names the device, the rest is the
tag: a value with ``=`` in it cannot be named, and another key has to be. A value that begins with
a key and a colon is written after its own key: ``disk:serial:target:1=db``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from dfmeta.devices.schema import SCHEMA
from dfmeta.exceptions import TagRuleError

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "nic": ("mac", "target", "alias", "network", "port"),
    "disk": ("serial", "target", "alias", "volume"),
}
"""Type of device to what one is known by."""
_TAG: Final = re.compile(SCHEMA["$defs"]["tag"]["pattern"])
_SHOWN: Final = 16
"""Devices that an error names."""


@dataclass(frozen=True, slots=True)
class TagRule:
    """A tag, and the device that it is for."""

    type: str
    """``nic`` or ``disk``."""
    value: str
    tag: str
    key: str = ""
    """One of :data:`KEYS`; empty: any of them."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a rule.

        :raises TagRuleError: it is none.
        """
        device, equals, tag = text.partition("=")
        kind, colon, value = device.partition(":")
        key, second, rest = value.partition(":")
        if not (equals and colon and value and kind in KEYS):
            raise TagRuleError(rule=text, cause="write nic:VALUE=TAG or disk:VALUE=TAG")
        if not second or key not in KEYS[kind]:
            key, rest = "", value
        if not rest:
            raise TagRuleError(rule=text, cause=f"no value after {key}:")
        if not _TAG.search(tag) or not 1 <= len(tag) <= SCHEMA["$defs"]["tag"]["maxLength"]:
            cause = "a tag has 1 to 60 characters, without comma, slash and control characters"
            raise TagRuleError(rule=text, cause=cause)
        return cls(kind, rest, tag, key)

    def __str__(self) -> str:
        """The rule as it is written."""
        key = f"{self.key}:" if self.key else ""
        return f"{self.type}:{key}{self.value}={self.tag}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device of a domain, as a rule may mean it."""

    members: dict[str, Any]
    """Of its object in the document, without tags."""
    names: Mapping[str, tuple[str, ...]]
    """Key to the values that it is known by; the first is the one that errors show."""
    element: int
    """The number of its element in the XML: the views of one disk share it."""

    @property
    def type(self) -> str:
        """``nic`` or ``disk``."""
        return str(self.members["type"])

    def __str__(self) -> str:
        """What it is known by, for an error."""
        first = {key: values[0] for key, values in self.names.items() if values}
        known = (f"{key}:{one if one.isprintable() else ascii(one)}" for key, one in first.items())
        return " ".join((self.type, *known))

    def is_meant(self, rule: TagRule) -> bool:
        """Whether a rule names it. MACs are compared without regard to case."""
        if rule.type != self.type:
            return False
        keys = (rule.key,) if rule.key else KEYS[self.type]
        return any(
            rule.value in self.names.get(key, ())
            or (key == "mac" and rule.value.lower() in self.names.get(key, ()))
            for key in keys
        )


def pick(rule: TagRule, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the one device that a rule means, in all of its views.

    :raises TagRuleError: there is none, or more than one.
    """
    meant = [one for one in candidates if one.is_meant(rule)]
    if not meant:
        there = [one for one in candidates if one.type == rule.type]
        raise TagRuleError(rule=str(rule), cause=f"no such device. There are: {_list(there)}")
    if not _same(meant):
        cause = f"{len(meant)} devices, and a tag is for one. Name one of: {_list(meant)}"
        raise TagRuleError(rule=str(rule), cause=cause)
    serial = meant[0].members.get("serial")
    if not serial:
        return meant
    # Another view may be known by other names.
    views = [one for one in candidates if one.members.get("serial") == serial]
    return views if _same(views) else meant


def _same(candidates: Sequence[Candidate]) -> bool:
    """Whether all are one device: one element, or one serial seen on different buses."""
    if len({one.element for one in candidates}) == 1:
        return True
    serials = {one.members.get("serial") for one in candidates}
    buses = {one.members["bus"] for one in candidates}
    return len(serials) == 1 and None not in serials and len(buses) == len(candidates)


def _list(candidates: Sequence[Candidate]) -> str:
    shown = [str(one) for one in candidates[:_SHOWN]]
    more = [f"{len(candidates) - _SHOWN} more"] if len(candidates) > _SHOWN else []
    return "; ".join((*shown, *more)) or "none of that type"
