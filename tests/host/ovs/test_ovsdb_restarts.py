"""The daemon's session should outlive each restart of ovsdb-server in the same way."""

import pytest

from dfmeta.ovsdb import watcher
from dfmeta.ovsdb.idl import Noticing
from tests.core.unit.support import until
from tests.harness.ovs import OpenvSwitch
from tests.host.ovs.test_subport_rows import Watch, host, watch

__all__ = ["host", "watch"]


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Noticing]:
    """Provide the list of the IDLs that watchers make from now on."""
    made: list[Noticing] = []

    class Listed(Noticing):
        def __init__(self, remote: str, helper: object) -> None:
            super().__init__(remote, helper)
            made.append(self)

    monkeypatch.setattr(watcher, "Noticing", Listed)
    return made


def test_restart_has_first_pause(host: OpenvSwitch, sessions: list[Noticing], watch: Watch) -> None:
    for _ in range(4):
        # Nothing changes in the database between two restarts.
        (idl,) = sessions
        assert idl._session.reconnect.backoff == 0, "the next loss counts as the first"
        host.kill("ovsdb-server")
        until(lambda: not watch.connected, "the loss")
        host.start("ovsdb-server")
        until(lambda: watch.connected, "the next reading")
