"""Fixtures of all tiers; they start nothing until a test asks for it."""

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, find, settings
from hypothesis import strategies as st

from tests.harness.examples import FIXED, USUAL, examples

# Hundreds of programs start: none is to compile again what it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell without job control starts its background with SIGINT ignored; programs inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Their assertions, too, show what they compared.
pytest.register_assert_rewrite("tests.core", "tests.host", "tests.soak")

pytest_plugins = [
    "tests.harness.reach",  # before anything imports dfmeta
    "tests.harness.failures",
    "tests.harness.fixtures",
    "tests.harness.tier",
]

# How long an example takes says how busy the machine is. The examples are the same in each run, so
# that a run judges the change and not the luck of its draw; tools/soak draws others each time.
settings.register_profile(
    "usual",
    max_examples=examples(USUAL),
    derandomize=FIXED,
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("usual")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among the thousands of tests, which stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        # Hypothesis looks for what refers to its random numbers, and garbage collection to nothing
        # that is frozen: on Python 3.14 they seem to be lost, unless they are registered before.
        find(st.none(), lambda _value: True)
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--soak N``: tests of endurance run N times as long (tools/soak)."""
    parser.addoption("--soak", type=int, default=1, help="run tests of endurance N times as long")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker: a module that takes long begins before the others, which end with it."""
    config.addinivalue_line("markers", "early: begins before the others")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring what is marked as early to the front."""
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> int:
    """How many times as long as usual a test of endurance is to run."""
    return int(request.config.getoption("--soak"))
