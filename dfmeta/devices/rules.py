"""Rules of operators that give a tag to a device of a domain. Pure.

``TYPE:[KEY:]VALUE=TAG``. TYPE is ``nic`` or ``disk``. With a KEY, only the names under that key are
compared with the value, otherwise the names under all keys. The text up to the first ``=`` names
the device, the rest is the tag: a value that contains ``=`` cannot be written, so another key has
to be used. A value that begins with a key and a colon is written after its own key:
``disk:serial:target:1=db``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from dfmeta.devices.schema import SCHEMA
from dfmeta.errors import TagRuleError

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "nic": ("mac", "target", "alias", "network", "port"),
    "disk": ("serial", "target", "alias", "volume"),
}
"""Type of a device → keys of its names."""
_TAG: Final = re.compile(SCHEMA["$defs"]["tag"]["pattern"])
_SHOWN: Final = 16
"""Largest number of devices that an error names."""


@dataclass(frozen=True, slots=True)
class TagRule:
    """A tag, and the device to which it belongs."""

    type: str
    """``nic`` or ``disk``."""
    value: str
    tag: str
    key: str = ""
    """One of :data:`KEYS`; empty: any of them."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a rule.

        :raises TagRuleError: *text* is not a rule.
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
        """Return the rule as an operator writes it."""
        key = f"{self.key}:" if self.key else ""
        return f"{self.type}:{key}{self.value}={self.tag}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device of a domain to which a rule may give a tag."""

    members: dict[str, Any]
    """Members of its object in the document, without tags."""
    names: Mapping[str, tuple[str, ...]]
    """Key → names of the device; errors show the first name."""
    element: int
    """Number of its element in the XML; the views of one disk share it."""

    @property
    def type(self) -> str:
        """``nic`` or ``disk``."""
        return str(self.members["type"])

    def __str__(self) -> str:
        """Return the names of the device, for an error."""
        first = {key: values[0] for key, values in self.names.items() if values}
        names = (
            f"{key}:{name if name.isprintable() else ascii(name)}" for key, name in first.items()
        )
        return " ".join((self.type, *names))

    def is_meant(self, rule: TagRule) -> bool:
        """Return whether a rule names the device. The case of MACs is ignored."""
        if rule.type != self.type:
            return False
        keys = (rule.key,) if rule.key else KEYS[self.type]
        return any(
            rule.value in self.names.get(key, ())
            or (key == "mac" and rule.value.lower() in self.names.get(key, ()))
            for key in keys
        )


def pick(rule: TagRule, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the one device that a rule names, in all of its views.

    :raises TagRuleError: the rule names no device, or more than one.
    """
    meant = [candidate for candidate in candidates if candidate.is_meant(rule)]
    if not meant:
        same = [candidate for candidate in candidates if candidate.type == rule.type]
        raise TagRuleError(rule=str(rule), cause=f"no such device. Known devices: {_list(same)}")
    if not _same(meant):
        cause = f"{len(meant)} devices match, but a tag is for one. Name one of: {_list(meant)}"
        raise TagRuleError(rule=str(rule), cause=cause)
    serial = meant[0].members.get("serial")
    if not serial:
        return meant
    # Another view of the disk may have other names.
    views = [candidate for candidate in candidates if candidate.members.get("serial") == serial]
    return views if _same(views) else meant


def _same(candidates: Sequence[Candidate]) -> bool:
    """Return whether all are one device: one element, or one serial on different buses."""
    if len({candidate.element for candidate in candidates}) == 1:
        return True
    serials = {candidate.members.get("serial") for candidate in candidates}
    buses = {candidate.members["bus"] for candidate in candidates}
    return len(serials) == 1 and None not in serials and len(buses) == len(candidates)


def _list(candidates: Sequence[Candidate]) -> str:
    shown = [str(candidate) for candidate in candidates[:_SHOWN]]
    more = [f"{len(candidates) - _SHOWN} more"] if len(candidates) > _SHOWN else []
    return "; ".join((*shown, *more)) or "no devices of that type"
