"""Fixtures of the store's tests that need processes or PostgreSQL: those of core, either database.

A test that has ``database_url`` or ``repository`` runs on SQLite and on PostgreSQL.
"""

from tests.core.unit.conftest import authority, load
from tests.core.unit.store.conftest import config, domains, repository, run, url

__all__ = ["authority", "config", "domains", "load", "repository", "run", "url"]
