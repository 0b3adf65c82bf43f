"""Fixtures of all tiers; they start nothing until a test asks for it."""

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.harness import nursery
from tests.harness.examples import USUAL, examples

# Their assertions, too, show what they compared.
pytest.register_assert_rewrite("tests.e2e", "tests.flows", "tests.unit", "tests.docs", "tests.real")

pytest_plugins = ["tests.harness.failures", "tests.harness.fixtures"]

# How long an example takes says how busy the machine is.
settings.register_profile(
    "usual",
    max_examples=examples(USUAL),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("usual")

# coverage measures the main thread of a test alone, since it names each thread's greenlet. Those of
# many threads that end at once are freed in a pending call, and under a trace function CPython 3.11
# and 3.12 can stay in that call for ever.
_no_trace: Any = None
threading.settrace(_no_trace)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--soak N``: tests of endurance run N times as long (tools/soak).

    ``--prepared``: daemons begin with everything imported, but for tests marked ``installed``.
    """
    parser.addoption("--soak", type=int, default=1, help="run tests of endurance N times as long")
    parser.addoption(
        "--prepared", action="store_true", help="start daemons by tests/harness/nursery.py"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers.

    ``early``: a module that takes so long that others would wait for it at the end. ``installed``:
    the start of the program itself is tested.
    """
    config.addinivalue_line("markers", "early: begins before the others")
    config.addinivalue_line("markers", "installed: starts each program as it is installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring what is marked as early to the front."""
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """See ``--prepared``."""
    installed = item.get_closest_marker("installed") is not None
    nursery.enabled = item.config.getoption("--prepared") and not installed


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> int:
    """How many times as long as usual a test of endurance is to run."""
    return int(request.config.getoption("--soak"))
