"""The known schemas of a database, in a module without the tables, which are slow to import."""

from __future__ import annotations

from typing import Final

REVISIONS: Final = ("0001", "0002", "0003", "0004")
"""All migrations, the oldest first."""
HEAD: Final = REVISIONS[-1]
