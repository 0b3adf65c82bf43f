"""Examples of a property test: a few, the same in each run of the tests; many in tools/soak."""

import os

FIXED = "DFMETA_TEST_EXAMPLES" not in os.environ
"""Whether each run has the same examples."""
FACTOR = int(os.environ.get("DFMETA_TEST_EXAMPLES", "1"))
USUAL = 35
"""Examples of a test that does not set a number."""


def examples(number: int) -> int:
    """Return *number* times DFMETA_TEST_EXAMPLES."""
    return number * FACTOR
