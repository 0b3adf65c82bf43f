"""Fixtures of the tests in this folder."""

from tests.core.unit.haproxy.support import loopback, one

__all__ = ["loopback", "one"]
