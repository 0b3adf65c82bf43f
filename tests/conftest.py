"""Fixtures of all tiers; they start nothing until a test asks for it."""

pytest_plugins = ["tests.harness.fixtures"]
