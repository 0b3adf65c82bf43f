"""Somebody types doc/source/first-hour-openstack.rst on a compute node; it prints what is shown.

What is real: Open vSwitch, Neutron's own Open vSwitch agent, Nova's metadata API, the daemon and
dfmeta's commands as they are installed, and curl in an instance that is a network namespace.
:class:`tests.host.e2e.shell.Shell` stands in for pip and systemd.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.core.docs.typed import untyped
from tests.harness import domains as libvirt
from tests.harness.console import blocks
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.netns import ROOT
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.host.e2e.shell import Shell, options
from tests.host.e2e.support import PROJECT
from tests.host.neutron.agent import OUTSIDE, NeutronAgent
from tests.host.neutron.api import NeutronServer
from tests.host.nova.server import NovaServer

PAGE = (ROOT / "doc/source/first-hour-openstack.rst").read_text(encoding="utf-8")
WEB1 = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
CONFIGURATION = next(block.text for block in blocks(PAGE) if block.kind == "ini")
NOVA = options(CONFIGURATION)["DEFAULT"]


class Compute(Shell):
    """A compute node whose Neutron agent has wired the port of an instance."""

    def __init__(self, stack: ExitStack) -> None:
        switch = stack.enter_context(OpenvSwitch(bridges=(BRIDGE, OUTSIDE)))
        super().__init__(stack, switch)
        switch.namespace.ip(f"address add {NOVA['nova_metadata_host']}/32 dev lo")
        self.nova = stack.enter_context(
            NovaServer(
                switch.namespace,
                stack.enter_context(NeutronServer(switch.namespace)).start(),
                host=str(NOVA["nova_metadata_host"]),
                secret=str(NOVA["metadata_proxy_shared_secret"]),
            )
        )
        self.nova.put(WEB1, PROJECT, "web1", cached=False)
        ids = Ids(iface_id=uuid_of("port of web1"), vm_uuid=WEB1)
        self.guest = stack.enter_context(Guest(switch, "web1", route="gateway", ids=ids))
        self.guests["web1"] = self.guest
        self.neutron = stack.enter_context(NeutronAgent(switch))
        self.neutron.put(self.guest, network="net1", vlan=101)
        self.neutron.start()
        # The agent of a compute node has run for long: it has deleted its stale flows.
        self.neutron.clean_up()
        running = self.folder / "libvirt"
        running.mkdir()
        text = libvirt.definition(WEB1, project=PROJECT, name="web1")
        libvirt.write(running, "instance-00000001", libvirt.status(text))
        self.agent.configure({"df_metadata": {"libvirt_xml_path": running, "backend": None}})
        agents = self.folder / "etc/neutron/metadata_agent.ini"
        agents.parent.mkdir()
        lines = [f"{name} = {value}\n" for name, value in NOVA.items()]
        agents.write_text("[DEFAULT]\n# metadata_workers = 2\n" + "".join(lines) + "[cache]\n")


@pytest.fixture
def operator() -> Iterator[Compute]:
    with ExitStack() as stack:
        yield Compute(stack)


def test_a_compute_node_prints_what_the_page_shows(operator: Compute) -> None:
    operator.names["VERSION"] = "0.1.0"
    for block in blocks(PAGE):
        operator.read(block)
    assert untyped("first-hour-openstack", operator.typed) == []
    assert 200 in {status for path, status in operator.nova.requests() if path != "/"}
