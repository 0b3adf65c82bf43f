"""The fixtures of tests/host/e2e."""

from tests.host.e2e.conftest import agent, guest, pytest_runtest_makereport

__all__ = ["agent", "guest", "pytest_runtest_makereport"]
