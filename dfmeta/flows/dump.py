"""Flows of a dump as values, for the commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dfmeta.flows.flow import Flow, Value


@dataclass(frozen=True, slots=True)
class Seen:
    """A flow on the switch that carries dfmeta's cookie."""

    flow: Flow | None
    """None if its table, its priority or its cookie is not one of dfmeta's current flows."""
    table: int
    priority: int
    cookie: int
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Foreign:
    """A flow of another program in the classification table."""

    cookie: int
    priority: int
    match: Mapping[str, Value]
    actions: str
    table: int = 0
    hands_on: bool = False
    """Whether it resubmits to the classification table, so that dfmeta's hook follows it."""
