"""Readiness: what is still missing, by name."""

from __future__ import annotations

from collections.abc import Callable

Probe = Callable[[], bool]


class Health:
    """Collects the parts that must work before guests are served."""

    def __init__(self) -> None:
        self._probes: dict[str, Probe] = {}

    def watch(self, name: str, probe: Probe) -> None:
        """Count *name* as missing while *probe* says False."""
        self._probes[name] = probe

    def missing(self) -> list[str]:
        """Names of the parts that do not work at the moment."""
        return [name for name, probe in self._probes.items() if not probe()]
