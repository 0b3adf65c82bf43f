"""The schemas that a database may be at. Apart from the tables, which take a while to import."""

from __future__ import annotations

from typing import Final

REVISIONS: Final = ("0001", "0002", "0003")
"""All migrations, the oldest first."""
HEAD: Final = REVISIONS[-1]
