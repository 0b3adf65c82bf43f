"""dfmeta-agent with a defect: a program that a test starts in the place of dfmeta-agent.

``python -P defective.py TRIGGER MODULE ATTRIBUTE PROGRAM OPTION...``: when the file TRIGGER exists,
each call of MODULE's ATTRIBUTE (``Class.method``) raises a ZeroDivisionError. PROGRAM is ignored;
everything else is the daemon's own code.
"""

import functools
import importlib
import os
import sys
from typing import Any

from dfmeta import runtime


def main(trigger: str, module: str, attribute: str, *options: str) -> int:
    """Run the daemon, and return its exit status."""
    patch = runtime.patch

    def patch_and_break() -> None:
        patch()
        owner: Any = importlib.import_module(module)
        *path, name = attribute.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, name, _defective(getattr(owner, name), trigger))

    runtime.patch = patch_and_break
    agent = importlib.import_module("dfmeta.cmd.agent")
    return int(agent.main(options))


def _defective(function: Any, trigger: str) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if os.path.exists(trigger):
            raise ZeroDivisionError("a defect that a test has made")
        return function(*args, **named)

    return call


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4], *sys.argv[5:]))
