"""pytest fixtures for the harness, and the details in the report of a failed test."""

import atexit
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness import cloudinit, netns
from tests.harness.agent import Agent, Daemon, Options
from tests.harness.guest import Guest
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.postgres import Postgres

_views: list[tuple[str, Callable[[], str]]] = []
"""Titles and contents of what a test has made, for the report of its failure."""


@dataclass
class MakeGuest:
    """Makes guests on a host; see :class:`tests.harness.guest.Guest`."""

    host: OpenvSwitch
    stack: ExitStack

    def __call__(self, name: str = "guest", **options: Any) -> Guest:
        """Make a guest that is removed after the test."""
        guest = Guest(self.host, name, **options)
        _views.append(
            (repr(guest), lambda: guest.namespace.ip("addr", "route", "neigh", check=False))
        )
        return self.stack.enter_context(guest)


@dataclass
class MakeAgent:
    """Makes daemons on a host; see :class:`tests.harness.agent.Agent`."""

    host: OpenvSwitch
    stack: ExitStack

    def __call__(self, options: Options | None = None, *, start: bool = True) -> Agent:
        """Make a daemon that is removed after the test; with *start*, it is started and ready."""
        agent = self.stack.enter_context(Agent(self.host, options))
        _views.append(("dfmeta-agent", agent.log))
        self.stack.callback(_stop, agent)
        return agent.start() if start else agent


@pytest.fixture(scope="session", autouse=True)
def _tidy() -> Iterator[None]:
    """Remove everything that this process has created, for any reason of its end."""
    atexit.register(netns.remove_own)
    yield
    netns.remove_own()


@pytest.fixture
def host() -> Iterator[OpenvSwitch]:
    """Provide a compute node: Open vSwitch with br-int in a namespace. It starts in 0.2 s."""
    with OpenvSwitch() as switch:
        yield switch


@pytest.fixture(scope="session")
def _one_host() -> Iterator[OpenvSwitch]:
    with OpenvSwitch() as switch:
        yield switch


@pytest.fixture
def shared_host(_one_host: OpenvSwitch) -> OpenvSwitch:
    """Provide the session's compute node, reset to one flow and no ports before each test."""
    _one_host.reset()
    return _one_host


@pytest.fixture(scope="module")
def lasting_host(_one_host: OpenvSwitch) -> OpenvSwitch:
    """Provide the session's compute node, reset before each module that uses it so alone."""
    _one_host.reset()
    return _one_host


@pytest.fixture
def make_guest(host: OpenvSwitch) -> Iterator[MakeGuest]:
    """Provide a function that makes guests on ``host``."""
    with ExitStack() as stack:
        yield MakeGuest(host, stack)


@pytest.fixture
def make_agent(host: OpenvSwitch) -> Iterator[MakeAgent]:
    """Provide a function that makes daemons on ``host``, backend=store.

    A daemon that runs at the end of the test must stop with exit status 0.
    """
    with ExitStack() as stack:
        yield MakeAgent(host, stack)


@pytest.fixture
def nova(host: OpenvSwitch) -> Iterator[RecordingNova]:
    """Provide a recording Nova on ``host``, 127.0.0.1:8775."""
    with RecordingNova(host.namespace) as server:
        yield server


@pytest.fixture
def nova_agent(make_agent: MakeAgent, nova: RecordingNova) -> Agent:
    """Provide the daemon with backend=nova and that Nova."""
    return make_agent(
        {"DEFAULT": {"metadata_proxy_shared_secret": SECRET}, "df_metadata": {"backend": "nova"}}
    )


@pytest.fixture
def cloud_init() -> Iterator[Callable[..., cloudinit.Booting]]:
    """Provide a real cloud-init in a guest: ``cloud_init(guest, mode="Ec2").finish()``."""
    with ExitStack() as stack:

        def start(guest: Guest, **options: Any) -> cloudinit.Booting:
            booting = cloudinit.Booting(guest.namespace, **options)
            stack.callback(booting.close)
            return booting

        yield start


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Provide the session's PostgreSQL server, which starts in a second; tests leave it running.

    A test that stops, kills or pauses a server uses ``with Postgres() as server``, in 0.1 s.
    """
    # It forks a process for each connection: on a busy machine, dfmeta's own 3 s may not be enough.
    with Postgres(connect_timeout=60) as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """Provide an empty PostgreSQL database that is dropped after the test."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Provide an unused database: the test runs on SQLite (without a file) and PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state/store.db"
    # Requested only here, so that a test on SQLite starts no server.
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the switch, guests' neighbours and the logs of daemons and PostgreSQL to a failure."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, OpenvSwitch):
                report.sections.append((f"switch ({name})", value.diagnosis()))
            if isinstance(value, Daemon):
                report.sections.append((f"the end of the log of {name}", value.tail(60)))
            if isinstance(value, Postgres):
                report.sections.append((f"the end of the log of {name}", value.log()[-8000:]))
        report.sections.extend((title, shown(view)) for title, view in _views)
    if call.when == "teardown":
        _views.clear()
    return report


def shown(view: Callable[[], str]) -> str:
    """Return the content of a view, or why it has none: after a teardown, the guest is gone.

    An error here would end the run without a word about the failure.
    """
    try:
        return view()
    except Exception as error:
        return f"not available: {error}"


def _stop(agent: Agent) -> None:
    if agent.running:
        agent.stop()
