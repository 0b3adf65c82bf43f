"""A start that would move a port of another bridge should end, and name the remedy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dfmeta.cmd.elsewhere import refuse_elsewhere
from dfmeta.exceptions import OvsdbError, StartError
from dfmeta.ports.conflicts import TapElsewhereError
from dfmeta.wiring.lock import BridgeLock

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
