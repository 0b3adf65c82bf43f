"""The model kernel is a fixture of all tests below."""

from tests.core.unit.host.kernel import kernel

__all__ = ["kernel"]
