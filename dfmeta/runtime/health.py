"""Readiness: names of the parts that do not work yet."""

from __future__ import annotations

from collections.abc import Callable

Probe = Callable[[], bool]


class Health:
    """Collects the parts that must work before guests are served."""

    def __init__(self) -> None:
        self._probes: dict[str, Probe] = {}

    def watch(self, name: str, probe: Probe) -> None:
        """Report *name* as missing while *probe* returns False."""
        self._probes[name] = probe

    def missing(self) -> list[str]:
        """Return the names of the parts that do not work at the moment."""
        return [name for name, probe in self._probes.items() if not probe()]
