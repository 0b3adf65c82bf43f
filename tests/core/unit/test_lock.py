"""Two daemons on one bridge: the second should say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from dfmeta.exceptions import AlreadyRunningError
from dfmeta.wiring.lock import BridgeLock


@pytest.fixture
def ovsdb(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/db.sock"


def test_second_daemon_on_a_bridge_is_refused_with_the_lock(ovsdb: str) -> None:
    with BridgeLock(ovsdb, "br-int"):
        with pytest.raises(AlreadyRunningError, match="already serves br-int") as caught:
            BridgeLock(ovsdb, "br-int").__enter__()
        assert str(caught.value.fields["lock"]).startswith("@dfmeta-agent ")


def test_lock_ends_with_its_holder(ovsdb: str) -> None:
    with pytest.raises(RuntimeError), BridgeLock(ovsdb, "br-int"):
        raise RuntimeError
    with BridgeLock(ovsdb, "br-int"):
        pass


def test_another_bridge_or_database_is_another_lock(ovsdb: str) -> None:
    long = f"unix:/{'x' * 120}/db.sock"
    for one, other in (
        ((ovsdb, "br-int"), (ovsdb, "br-ex")),
        (("unix:/a.sock", "br-int"), ("tcp:127.0.0.1:6640", "br-int")),
        ((long, "br-int"), (long, "br-ex")),
        ((f"unix:/{'ü' * 60}/db.sock", "br-int"), (ovsdb, "br-int")),
    ):
        with BridgeLock(*one), BridgeLock(*other):
            pass


def test_one_database_by_two_names_is_one_lock(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    one, other = f"unix:{tmp_path}/run/db.sock", f"unix:{tmp_path}/link/../link/db.sock"
    with BridgeLock(one, "br-int"), pytest.raises(AlreadyRunningError):
        BridgeLock(other, "br-int").__enter__()
