"""Conditions that a start waits for, and for how long; the store's API on the admin listener."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dfmeta.admin.listener import AdminApplication
from dfmeta.cmd import central, daemon
from dfmeta.cmd.agent_admin import AgentAdmin
from dfmeta.cmd.central import Central
from dfmeta.cmd.daemon import Daemon, Start
from dfmeta.cmd.faults import refuse_elsewhere
from dfmeta.errors import OvsdbError, StartError
from dfmeta.ovsdb.meta_bridge import TapElsewhereError
from dfmeta.runtime.hub import Bell, Health
from dfmeta.wiring.process import BridgeLock
from tests.core.unit.support import Load


@pytest.fixture
def start() -> Start:
    made: Any = Start.__new__(Start)
    made._parts = SimpleNamespace(bell=Bell())
    made._deadline = 0.0
    made._ending = lambda: False
    return cast("Start", made)


def late() -> StartError:
    return StartError(cause="it is late", remedy="wait")


def test_a_condition_is_waited_for_until_the_time_is_over(start: Start) -> None:
    assert start.wait_for(lambda: True, late), "at the last moment"
    with pytest.raises(StartError, match="it is late"):
        start.wait_for(lambda: False, late)
    start._ending = lambda: True
    assert not start.wait_for(lambda: False, late, busy=lambda: True)


def test_a_switch_that_takes_flows_is_waited_for_beyond_the_time(start: Start) -> None:
    answers: Iterator[bool] = iter([False, False, True])
    assert start.wait_for(lambda: next(answers), late, busy=lambda: True)
    turns: Iterator[bool] = iter([True, True, False])
    with pytest.raises(StartError, match="it is late"):
        start.wait_for(lambda: False, late, busy=lambda: next(turns))
    assert list(turns) == []


# The store's API, with a backend that changes


@pytest.fixture
def mounting() -> AgentAdmin:
    made = AgentAdmin.__new__(AgentAdmin)
    made._api = None
    made.application = AdminApplication(Health(), list, {})
    return made


def test_stores_api_follows_the_store(mounting: AgentAdmin, load: Load, tmp_path: Path) -> None:
    secret = {"backend": "nova", "DEFAULT__metadata_proxy_shared_secret": "a secret"}
    store, nova = load(state_path=tmp_path), load(state_path=tmp_path, **secret)
    mounting.prepare(store)
    assert mounting.application.api is None, "prepared and not used"
    for conf, mounted in ((nova, False), (store, True), (nova, False), (store, True)):
        mounting.prepare(conf)()
        assert (mounting.application.api is not None) == mounted


# A port of dfmeta's on another bridge

OVSDB = "unix:/none"
ARGV = ["--config-file", "one two"]
IN_PORT = ("in_port", "tap-metadata", "br-old")
META_IP = ("meta_ip", "tap-meta", "br-meta")


def refusal(scheme: str, tap: str, bridge: str, *, owner: str | None) -> str:
    """What a start says of a port that is elsewhere."""
    group: Any = SimpleNamespace(
        identity_scheme=scheme, ovsdb_connection=OVSDB, integration_bridge="br-int"
    )
    error = OvsdbError(connection=OVSDB, cause="elsewhere")
    error.__cause__ = TapElsewhereError(tap, bridge, owner=owner)
    with pytest.raises(StartError) as raised:
        refuse_elsewhere(error, group, ARGV)
    return str(raised.value)


def test_any_other_error_ends_no_start() -> None:
    refuse_elsewhere(OvsdbError(connection=OVSDB, cause="slow"), SimpleNamespace(), ARGV)


def test_a_port_of_another_program_has_to_be_deleted_or_gets_another_name() -> None:
    for scheme, tap, bridge in (IN_PORT, META_IP):
        text = refusal(scheme, tap, bridge, owner=None)
        assert f"{tap} is a port of {bridge}, and dfmeta did not create it" in text
        assert f"ovs-vsctl del-port {bridge} {tap}" in text
        assert ("metadata_interface" in text) == (scheme == "in_port")
    text = refusal("meta_ip", "int-br-meta", "br-ex", owner=None)
    assert "Set another [df_metadata] meta_bridge, or delete the port: ovs-vsctl del-port" in text


def test_another_programs_port_on_the_own_bridge_is_not_one_of_another_daemon() -> None:
    with BridgeLock(OVSDB, "br-int"):
        text = refusal("meta_ip", "tap-meta", "br-int", owner=None)
    assert "tap-meta is a port of br-int, and dfmeta did not create it" in text


def test_leftovers_have_to_be_cleaned_up_where_no_daemon_serves_them() -> None:
    command = "OS_DF_METADATA__INTEGRATION_BRIDGE=br-old dfmeta-agent --config-file 'one two'"
    for case in (IN_PORT, META_IP):
        text = refusal(*case, owner="br-old")
        assert "dfmeta has served before" in text
        assert f"{command} --cleanup" in text
        with BridgeLock(OVSDB, "br-old"):
            text = refusal(*case, owner="br-old")
        assert "another dfmeta-agent serves" in text
        assert ("identity_scheme = in_port" in text) == (case == META_IP)


# SIGHUP


@pytest.mark.parametrize("program", [Daemon, Central])
def test_reload_names_a_misspelt_option_as_a_start_does(
    program: Any, load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running = load()
    again = load(hold_timout="3")
    for module in (daemon, central):
        monkeypatch.setattr(module, "_load", lambda _argv: again)
        monkeypatch.setattr(module, "set_up_logging", lambda **_options: None)
    made = program.__new__(program)
    made._argv, made.conf, made._guests = [], running, None
    made._api = SimpleNamespace(prepare=lambda _conf: lambda: None)
    made._admin = made._api
    learner = SimpleNamespace(learner=SimpleNamespace(hold_timeout=8))
    made.parts = SimpleNamespace(conf=running, proxy=None, controller=learner, take_conf=print)
    made._reload()
    (line,) = [text for text in caplog.messages if "hold_timout" in text]
    assert "Did you mean hold_timeout?" in line
