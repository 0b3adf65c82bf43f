"""Fixtures of the tests with haproxy itself."""

from tests.core.unit.conftest import authority, books, upstream, upstreams, vital
from tests.host.haproxy.support import loopback, with_guest

__all__ = ["authority", "books", "loopback", "upstream", "upstreams", "vital", "with_guest"]
