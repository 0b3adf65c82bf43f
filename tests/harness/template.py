"""A process that has collected all tests, and forks the processes of pytest.

Each process of pytest would import pytest, dfmeta and some hundred modules of tests, which takes
longer than most of its tests. ``tools/test`` starts this one, and has its pytest and the workers of
xdist begin as children of it (``tests/harness/forked_python.py``).
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest

from tests.harness import forking, kernel, nursery


def main() -> None:
    """Collect, and serve orders at a socket: ``template.py SOCKET TESTS...``."""
    place, *tests = sys.argv[1:]
    kernel.end_with_parent()
    server = forking.Server(_become)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        collected = pytest.main(["--collect-only", "-qq", "--prepared", *tests])
    if collected:
        sys.exit(f"{said.getvalue()[-4000:]}\ncannot collect: exit status {int(collected)}")
    if threading.active_count() > 1:
        sys.exit(f"modules of tests have started threads: {threading.enumerate()}")
    gc.collect()
    gc.freeze()
    server.listen(forking.listener(place))
    server.serve()


def _become(order: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """Be Python with the order's arguments: ``-c CODE`` or ``-m pytest ARGUMENT...``."""
    kernel.end_with_parent()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["env"])
    nursery.open_streams()
    kind, what, *rest = (one for one in order["arguments"] if one != "-u")
    sys.argv[:] = [kind if kind == "-c" else what, *rest]
    if kind == "-m":
        nursery.end(int(pytest.main(rest)))
    exec(what, {"__name__": "__main__"})
    nursery.end(0)


if __name__ == "__main__":
    main()
