"""Fixtures of all tiers; they start nothing until a test asks for it."""

import gc
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import greenlet
import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.harness import netns, nursery
from tests.harness.examples import FIXED, USUAL, examples

# Their assertions, too, show what they compared.
pytest.register_assert_rewrite("tests.e2e", "tests.flows", "tests.unit", "tests.docs", "tests.real")

pytest_plugins = ["tests.harness.failures", "tests.harness.fixtures"]

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

MEASURED = 0.3
"""Seconds of CPU time for which coverage measures one test, with all its parameters. It takes
twice as long under coverage, and the further sets reach hardly any more lines, nor do the examples
of Hypothesis."""
_measured: defaultdict[str, float] = defaultdict(float)
"""Test → seconds for which it was measured."""
_no_trace: Any = None
_one_stack = False
"""Whether coverage does not follow greenlets in this process."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among the thousands of tests, which stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
    the start of the program itself is tested. ``greenthreads``: a module whose tests switch
    greenlets in the process of the test.
    """
    global _one_stack
    # coverage measures the main thread of a test alone, since it names each thread's greenlet.
    # Those of many threads that end at once are freed in a pending call, and under a trace function
    # CPython 3.11 and 3.12 can stay in that call for ever.
    threading.settrace(_no_trace)
    # coverage is half as fast when it follows greenlets. Tests that switch none are measured
    # without; the programs that they start are measured with it.
    _one_stack = os.environ.get(netns.MEASURING) == str(netns.WITHOUT_GREENTHREADS)
    if _one_stack and "PYTEST_XDIST_WORKER" in os.environ:
        os.environ[netns.MEASURING] = str(netns.WITH_GREENTHREADS)
    config.addinivalue_line("markers", "early: begins before the others")
    config.addinivalue_line("markers", "installed: starts each program as it is installed")
    config.addinivalue_line("markers", "greenthreads: switches greenlets in the test's process")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring what is marked as early to the front."""
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """See ``--prepared``."""
    installed = item.get_closest_marker("installed") is not None
    nursery.enabled = item.config.getoption("--prepared") and not installed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure a test, and the programs that it starts, no longer than is of use."""
    setting = os.environ.get(netns.MEASURING)
    if setting is None:
        return (yield)
    name = item.nodeid.partition("[")[0]
    if _measured[name] < MEASURED and not is_hypothesis_test(getattr(item, "obj", None)):
        begun = time.process_time()
        try:
            return (yield)
        finally:
            _measured[name] += time.process_time() - begun
    trace = sys.gettrace()
    sys.settrace(None)
    del os.environ[netns.MEASURING]
    try:
        return (yield)
    finally:
        os.environ[netns.MEASURING] = setting
        sys.settrace(trace)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that switches greenlets where coverage would mix up their stacks."""
    if not _one_stack:
        return (yield)
    switches = []
    greenlet.settrace(lambda event, _between: switches.append(event))
    try:
        yield
    finally:
        greenlet.settrace(None)
    if "switch" in switches:
        pytest.fail(f"{item.path.name} switches greenlets: mark the module as greenthreads")


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> int:
    """How many times as long as usual a test of endurance is to run."""
    return int(request.config.getoption("--soak"))
