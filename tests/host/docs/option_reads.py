"""Runs dfmeta-store and prints which options it looks at, by itself: not while it checks them.

Run as ``python -m tests.host.docs.option_reads CONFIG``; SIGTERM ends it.
"""

import json
import sys
from typing import Any

from oslo_config import cfg

CHECKS = {"load", "keep_running_values", "freeze", "thaw"}
"""Functions of dfmeta.conf that look at all."""


def main() -> int:
    """Run the service."""
    seen: set[tuple[str, str]] = set()
    original = cfg.ConfigOpts._get

    def get(self: Any, name: str, group: Any = None, namespace: Any = None) -> Any:
        if not _checking() and not (group is None and name in self._groups):
            seen.add((getattr(group, "name", group) or "DEFAULT", name))
        return original(self, name, group, namespace)

    cfg.ConfigOpts._get = get
    from dfmeta.cmd.store import main as run

    status = run(["--config-file", sys.argv[1]])
    sys.stdout.write(json.dumps(sorted(seen)))
    return status


def _checking() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name in CHECKS and "/dfmeta/conf/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    sys.exit(main())
