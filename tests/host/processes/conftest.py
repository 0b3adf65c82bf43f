"""Fixtures of tests that need processes, OS threads, terminals or network namespaces."""

from tests.core.unit.conftest import authority, load, vital

__all__ = ["authority", "load", "vital"]
