"""Nova, given by a name, should be found again when nameservers or its address change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.agent import Options
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.nameserver import Nameserver, Resolv
from tests.host.e2e.support import NOVA_OPTIONS, project_ids, put_nova

NAME = "nova.example"
PATH = "/latest/meta-data/instance-id"
HOLD_TIMEOUT = 4
OLD, NEW = "127.0.0.51", "127.0.0.52"
FIRST, SECOND = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def resolv(host: OpenvSwitch, tmp_path: Path) -> Iterator[Resolv]:
    with Resolv(host.namespace, tmp_path / "resolv.conf", OLD) as file:
        yield file


def answered(guest: Guest) -> bool:
    return guest.curl(PATH).status == 200


def test_nova_is_resolved_again_when_nameservers_or_its_address_change(
    host: OpenvSwitch, resolv: Resolv, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    options: Options = {
        **NOVA_OPTIONS,
        "DEFAULT": {**NOVA_OPTIONS["DEFAULT"], "nova_metadata_host": NAME},
        "df_metadata": {"backend": "nova", "hold_timeout": HOLD_TIMEOUT},
    }
    guest = make_guest("one", ids=project_ids("one"))
    with (
        Nameserver(host.namespace, OLD, NAME, None) as old,
        Nameserver(host.namespace, NEW, NAME, FIRST) as new,
        RecordingNova(host.namespace, host=FIRST) as nova,
    ):
        put_nova(nova, guest)
        agent = make_agent(options)
        # Its nameserver is silent: the guest is answered all the same.
        assert guest.curl(PATH).status == 503
        assert old.asked
        # Others take its place, without a restart.
        resolv.use(NEW)
        assert answered(guest)
        # Connections are kept and answers too: a name is not asked for with each request.
        assert all(answered(guest) for _ in range(20))
        assert new.asked <= 4, "two questions for a look-up"
        # No nameserver answers, and Nova closes its connections: what was known is used.
        new.answer = None
        nova.fault(close=True, times=1)
        assert answered(guest)
        # Nova moves, and the nameservers say so.
        new.answer = SECOND
        nova.close()
        with RecordingNova(host.namespace, host=SECOND) as moved:
            put_nova(moved, guest)
            wait_for(lambda: answered(guest), "Nova at its new address")
        assert agent.ready()
