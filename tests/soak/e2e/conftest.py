"""The fixtures of tests/host/e2e."""

from tests.host.e2e.conftest import agent, guest

__all__ = ["agent", "guest"]
