"""What is wrong with the page on limits, in sentences: each number against what holds it.

:func:`faults` takes the page's text, so that a test can hand it a page that it has damaged.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from dfmeta import conf
from dfmeta.flows.pipeline import Purpose

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_CELL = r"(.+(?:\n       .+)*)"
_ROW = re.compile(rf"^   \* - {_CELL}\n     - ([\d.]+) ?(\w*)\n     - ``(.+)``\n", re.MULTILINE)
_OPTION = re.compile(r"\[(\w+)\] (\w+)( \(max\))?")
_CONSTANT = re.compile(r"(dfmeta[\w.]+)\.(\w+)(?:\[(\w+)\])?")


class Row(NamedTuple):
    """A limit as the page has it."""

    what: str
    number: float
    held_by: str


def rows(page: str) -> list[Row]:
    """All of the page's limits."""
    return [
        Row(" ".join(one[1].split()), float(one[2]) * UNITS[one[3]], one[4])
        for one in _ROW.finditer(page)
    ]


def faults(page: str) -> list[str]:
    """Everything that is wrong."""
    return [*_numbers(page), *_without_a_row(page)]


def held(name: str) -> float:
    """The number behind an option or a constant; of a collection, how many it has."""
    if option := _OPTION.fullmatch(name):
        found = _options()[option[1]][option[2]]
        return float(found.type.max if option[3] else found.default)
    constant = _CONSTANT.fullmatch(name)
    assert constant is not None, name
    value: Any = getattr(importlib.import_module(constant[1]), constant[2])
    if constant[3]:
        value = value[Purpose[constant[3]]]
    return float(len(value) if isinstance(value, tuple) else value)


def _options() -> dict[str, dict[str, Any]]:
    return {group or "DEFAULT": {one.name: one for one in them} for group, them in conf.own_opts()}


def _numbers(page: str) -> Iterator[str]:
    for row in rows(page):
        if (number := held(row.held_by)) != row.number:
            yield f"{row.what}: {row.number:g}, and {row.held_by} is {number:g}"


def _without_a_row(page: str) -> Iterator[str]:
    said = {row.held_by for row in rows(page)}
    for name in _options()["guest_limits"]:
        if f"[guest_limits] {name}" not in said:
            yield f"[guest_limits] {name} is not there"
