"""Where a thread that the process cannot do without ends, the process should know at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest

from dfmeta.admin import listener as admin
from dfmeta.admin.server import AdminServer
from dfmeta.apps import metadata as switch_module
from dfmeta.apps.controller import Controller
from dfmeta.apps.metadata import connect
from dfmeta.cmd.daemon import Daemon
from dfmeta.errors import StartError
from dfmeta.flows.pipeline import Layout
from dfmeta.http.limits import Limits
from dfmeta.http.server import HttpServer
from dfmeta.identity.registry import Registry
from dfmeta.model import Answer
from dfmeta.proxy.application import guest_server
from dfmeta.runtime.hub import Health, ThreadEndedError, Vital
from tests.core.unit.support import Load, let_hub_run, until


def broken(*_args: object, **_named: object) -> None:
    raise ZeroDivisionError("a defect")


def ended(vital: Vital) -> str:
    until(lambda: not vital.alive, "the thread's end")
    with pytest.raises(ThreadEndedError) as caught:
        vital.check()
    return str(caught.value)


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (broken, "ZeroDivisionError: a defect"),
        (lambda: None, "it has returned"),
        (lambda: eventlet.Timeout(0).__enter__() and eventlet.sleep(5), "Timeout: "),
    ],
)
def test_a_thread_that_ends_is_named_with_its_cause(
    vital: Vital, caplog: pytest.LogCaptureFixture, function: Callable[[], object], cause: str
) -> None:
    told: list[bool] = []
    vital.on_failure = lambda: told.append(vital.alive)
    vital.spawn("one", function)
    assert ended(vital).startswith(f"the thread 'one' has ended: {cause}")
    assert told == [False]
    (record,) = caplog.records
    assert record.levelname == "CRITICAL"
    assert "'one'" in record.getMessage()
    assert ("ZeroDivisionError" in caplog.text) == (function is broken), "with its traceback"


def test_thread_that_may_return_fails_by_an_exception_alone(vital: Vital) -> None:
    vital.spawn("one", lambda: None, may_return=True)
    let_hub_run()
    assert vital.alive
    vital.spawn("two", broken, may_return=True)
    assert "'two'" in ended(vital)


def test_the_daemon_ends_by_it_and_readiness_names_it(
    vital: Vital, monkeypatch: pytest.MonkeyPatch, load: Load, tmp_path: Path
) -> None:
    daemon = Daemon(load(state_path=tmp_path), [])
    monkeypatch.setattr(daemon, "_rest", lambda: None)
    assert "threads" not in daemon.parts.health.missing()
    vital.spawn("one", broken)
    let_hub_run()
    assert "threads" in daemon.parts.health.missing()
    with pytest.raises(ThreadEndedError):
        daemon._turn()
    with pytest.raises(ThreadEndedError):
        daemon._start.wait_for(lambda: False, lambda: StartError(cause="late", remedy="wait"))


class Manager:
    """os-ken's, with applications that have a thread each."""

    def __init__(self) -> None:
        self.apps: list[Any] = []

    def get_instance(self) -> Manager:
        return self

    def instantiate(self, kind: type, **_named: object) -> Any:
        threads: list[Any] = []
        start = lambda: threads.append(eventlet.spawn(eventlet.sleep, 1000))  # noqa: E731  # one call
        app = SimpleNamespace(name=kind.__name__, threads=threads, start=start)
        self.apps.append(app)
        return app


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    manager = Manager()
    monkeypatch.setattr(switch_module, "AppManager", manager)
    return manager


def make_controller() -> Controller:
    return Controller(
        Registry(),
        bridge="br-int",
        layout=Layout(),
        hold_timeout=1.0,
        datapath_id=lambda: None,
        adopts=lambda _endpoint: True,
    )


@pytest.mark.parametrize(
    ("function", "connection", "thread"),
    [
        ("dial", "unix:/none/br-int.mgmt", "OpenFlow connection"),
        ("accept", "listen:127.0.0.1:0", "OpenFlow listener"),
    ],
)
def test_the_end_of_the_connection_to_the_switch_is_the_daemons(
    vital: Vital,
    monkeypatch: pytest.MonkeyPatch,
    manager: Manager,
    function: str,
    connection: str,
    thread: str,
) -> None:
    del manager
    monkeypatch.setattr(switch_module, function, broken)
    connect(make_controller(), connection, "unix:/none/db.sock")
    assert f"'{thread}'" in ended(vital)


@pytest.mark.parametrize("number", [0, 1])
def test_end_of_an_event_loop_ends_the_daemon(vital: Vital, manager: Manager, number: int) -> None:
    connect(make_controller(), "unix:/none/br-int.mgmt", "unix:/none/db.sock")
    let_hub_run()
    app = manager.apps[number]
    app.threads[0].kill()
    assert f"'os-ken's {app.name}'" in ended(vital).replace('"', "'")


def test_end_of_the_listener_is_the_daemons(vital: Vital, monkeypatch: pytest.MonkeyPatch) -> None:
    sock = eventlet.listen(("127.0.0.1", 0))
    server = guest_server(
        [sock], Registry(), lambda _exchange: Answer(200), limits=Limits(), hold_timeout=1.0
    )
    monkeypatch.setattr(server, "_accept_some", broken)
    monkeypatch.setattr(server, "_complain_of_accept", broken)
    server.start()
    with eventlet.connect(sock.getsockname()):
        assert "guests' listener" in ended(vital)


@pytest.mark.parametrize(
    ("loop", "name"), [("_accept_some", "admin listener"), ("_sweep", "admin listener's sweeper")]
)
def test_the_end_of_the_admin_listener_is_the_daemons(
    vital: Vital, monkeypatch: pytest.MonkeyPatch, loop: str, name: str
) -> None:
    monkeypatch.setattr(AdminServer if loop == "_sweep" else HttpServer, loop, broken)
    monkeypatch.setattr(HttpServer, "_complain_of_accept", broken)
    sock = eventlet.listen(("127.0.0.1", 0))
    server = admin.serve("", admin.AdminApplication(Health(), list, {}), sock=sock)
    if loop == "_sweep":
        server._sweep_on()
    with eventlet.connect(sock.getsockname()):
        assert f"{name!r} has ended" in ended(vital)
    server.stop(0.0)
