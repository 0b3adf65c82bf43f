"""The store's database: records, their owners and addresses, on SQLite or PostgreSQL."""

from typing import Final

HEAD: Final = "0004"
"""The schema that this version needs: the newest revision below ``migrations``."""
