"""How many examples a property test tries: few in each run of the tests, many in tools/soak."""

from __future__ import annotations

import os

FACTOR = int(os.environ.get("DFMETA_TEST_EXAMPLES", "1"))
USUAL = 35
"""Examples of a test that says nothing of it."""


def examples(number: int) -> int:
    """*number*, or as many times more as DFMETA_TEST_EXAMPLES says."""
    return number * FACTOR
