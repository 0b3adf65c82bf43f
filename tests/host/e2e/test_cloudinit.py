"""A real cloud-init boots from the daemon."""

from __future__ import annotations

from collections.abc import Callable

from tests.harness import nursery
from tests.harness.agent import Agent
from tests.harness.cloudinit import Booting
from tests.harness.fixtures import MakeGuest
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.support import KEY, Capture, project_ids, put_nova

StartBoot = Callable[..., Booting]
RAN = "/run/ran-on"
USER_DATA = f"#!/bin/sh\nhostname > {RAN}\n"
CRAWL = 28
"""Connections of cloud-init's OpenStack data source for an instance with a key."""
STALL = 2
"""SYNs that are sent again at most, after 1 s and 3 s, while the machine stands still once."""


def test_a_whole_crawl_is_one_packet_in(
    host: OpenvSwitch,
    nova_agent: Agent,
    nova: RecordingNova,
    make_guest: MakeGuest,
    cloud_init: StartBoot,
) -> None:
    guest = make_guest("web", ids=project_ids("web"))
    put_nova(nova, guest, keys={"key-1": KEY}, user_data=USER_DATA.encode())
    with Capture(host.namespace, guest.port) as capture, nursery.as_installed():
        boot = cloud_init(guest, files=[RAN]).finish()
        syns = capture.syns()
    assert boot.errors == [], boot.output + boot.log
    assert (boot.datasource, boot.instance_id) == ("OpenStack", guest.instance_id)
    assert boot.hostname.partition(".")[0] == guest.name
    assert boot.authorized_keys.splitlines()[0] == KEY
    assert boot.user_data == USER_DATA.encode()
    assert boot.files[RAN].strip().partition(".")[0] == guest.name
    connections = {syn.source_port for syn in syns}
    assert len(connections) == CRAWL
    # They come one after the other, so that a machine that stands still delays one of them.
    again = len(syns) - CRAWL
    assert again <= STALL
    assert len(nova.requests()) == CRAWL
    assert 1 <= nova_agent.metric("dfmeta_packet_ins_total") <= 1 + again
    # The way to Nova is kept open, unlike the guest's.
    assert nova.accepted() == 1
