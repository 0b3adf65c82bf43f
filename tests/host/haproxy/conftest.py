"""Fixtures of the tests with haproxy itself."""

from tests.core.unit.conftest import authority, books, upstream, upstreams, vital
from tests.host.haproxy.support import known, loopback

__all__ = ["authority", "books", "known", "loopback", "upstream", "upstreams", "vital"]
