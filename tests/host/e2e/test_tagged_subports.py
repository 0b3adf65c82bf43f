"""Containers whose tagged frames reach br-int: each VLAN of a port is a guest of its own."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from dfmeta.store.db.repository import Repository
from tests.core.flows.frames import ethernet, ipv4, tagged, tcp
from tests.harness.agent import Agent
from tests.harness.container import Container, declare
from tests.harness.guest import EC2_6, METADATA_IP, OPENSTACK6, Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.harness.trunk import Trunk
from tests.host.e2e import shared
from tests.host.e2e.support import Capture, asks_own, is_unanswered, source_of

VIDS = (1, 300, 4094)
BEHIND = (300, 4094)
"""VLAN ids of the virtual machine whose trunk takes the tags off."""
HOSTS = (METADATA_IP, OPENSTACK6, EC2_6)
FREE = 77
"""A VLAN id without a subport."""

host, agent = shared.host, shared.agent_with()


@dataclass(frozen=True)
class Site:
    """Two virtual machines whose tags reach br-int, and one on a trunk's bridge of its own.

    All containers have the same MAC and the same addresses.
    """

    vms: tuple[Guest, ...]
    containers: dict[tuple[str, int], Container]

    def __getitem__(self, of: tuple[int, int]) -> Container:
        """The container of a virtual machine, by its place, and of a VLAN id."""
        return self.containers[self.vms[of[0]].name, of[1]]

    def of(self, vm: Guest) -> list[Container]:
        """The containers of a virtual machine."""
        return [container for container in self.containers.values() if container.parent is vm]

    def declare(self, vm: Guest) -> None:
        """Declare the subports of a virtual machine as they were made."""
        declare(vm, *(container.entry() for container in self.of(vm)))


@pytest.fixture(scope="module")
def site(host: OpenvSwitch, agent: Agent) -> Iterator[Site]:
    """Provide the guests, each with a record in the store."""
    with ExitStack() as stack:

        def vm(number: int, *, plug: bool = True) -> Guest:
            guest = Guest(host, f"vm{number}", address=f"10.0.0.{number + 4}/24", plug=plug)
            return stack.enter_context(guest)

        vms = vm(1), vm(2), vm(3, plug=False)
        made = {}
        for guest in vms:
            for vid in BEHIND if guest is vms[2] else VIDS:
                container = Container(guest, vid, address6=["fd12:3456::5/64"])
                made[guest.name, vid] = stack.enter_context(container)
        result = Site(vms, made)
        trunk = Trunk(vms[2], *BEHIND)
        # As Neutron does it: otherwise frames of an unknown VLAN would be flooded to the trunk's
        # bridge, and come back at a subport.
        for vlan, name in enumerate(
            (trunk.inner, *(subport.inner for subport in trunk.subports)), 11
        ):
            host.vsctl("set", "Port", name, f"tag={vlan}")
        for subport in trunk.subports:
            instance = made[vms[2].name, subport.vid].instance_id
            where = ("set", "Interface", subport.inner)
            host.vsctl(*where, f'external_ids:dfmeta-instance="{instance}"')
        for guest in vms[:2]:
            result.declare(guest)
        with Repository(f"sqlite:///{agent.state_path}/store.db") as records:
            for guest in (*vms, *made.values()):
                records.put(guest.instance_id, document={"hostname": guest.name})
        yield result


@pytest.fixture(autouse=True)
def _all_are_served(request: pytest.FixtureRequest) -> Iterator[None]:
    """Afterwards each guest gets its own."""
    yield
    site: Site = request.getfixturevalue("site")
    for guest in (*site.vms, *site.containers.values()):
        asks_own(guest)


def test_each_guest_gets_its_own_over_both_versions_of_ip(site: Site) -> None:
    for address in HOSTS:
        for guest in (*site.containers.values(), *site.vms[: 2 if address != EC2_6 else 0]):
            asks_own(guest, host=address)
    assert site.vms[0].ping(site.vms[1].ip)


def packet(frame: bytes) -> bytes:
    """Return the EtherType and all behind it, without a tag."""
    return frame[16:] if frame[12:14] == b"\x81\x00" else frame[12:]


def test_an_answer_has_the_tag_of_its_request_and_no_other_guest_sees_it(site: Site) -> None:
    asking, sibling = site[0, 300], site[0, 1]
    with (
        Capture(asking.parent.namespace, "eth0", arriving=True) as at_vm,
        Capture(sibling.namespace, "eth0", arriving=True) as at_sibling,
        Capture(site.vms[1].namespace, "eth0", arriving=True) as at_other,
    ):
        asks_own(asking)
        mac = bytes.fromhex(asking.mac.replace(":", ""))
        frames = [data for _, data in at_vm.frames() if data[:6] == mac]
        assert frames
        assert {data[12:16] for data in frames} == {b"\x81\x00" + (300).to_bytes(2, "big")}
        answer = {packet(data) for data in frames}
        for other in (at_sibling, at_other):
            assert answer.isdisjoint(packet(data) for _, data in other.frames())


@pytest.mark.parametrize("limit", [1, 2])
def test_other_tags_and_second_tags_gain_nothing(
    host: OpenvSwitch, agent: Agent, site: Site, limit: int
) -> None:
    vm, container = site.vms[0], site[0, 300]
    sport = 33000
    segment = tcp(dst=METADATA_IP, src=container.ip, sport=sport)
    packet = ipv4(segment, dst=METADATA_IP, src=container.ip)
    syn = ethernet(packet, dst="fa:16:3e:99:99:99", src=container.mac)
    for guest in (vm, container):
        asks_own(guest)
    rows = agent.admin("/ports").json()
    known = {address_["key"] for row in rows for address_ in row["addresses"]}
    own = {vm.instance_id, container.instance_id}
    theirs = {
        address_["key"] for row in rows if row["instance"] in own for address_ in row["addresses"]
    }
    host.vsctl("set", "Open_vSwitch", ".", f"other_config:vlan-limit={limit}")
    before = agent.metric("dfmeta_packet_ins_total")
    with Capture(host.namespace, SIDE.tap, arriving=True) as tap:
        for outer, inner in ((300, 1), (300, 0), (1, 4094), (FREE, 300), (300, 300), (0, 300)):
            vm.send_frames(tagged(tagged(syn, inner), outer))
            vm.send_frames(tagged(tagged(syn, inner), outer, tpid=0x88A8))
        vm.send_frames(tagged(syn, FREE), tagged(syn, 0), tagged(syn, 4095))
        # A container's own tag is the inner one of two.
        container.send_frames(tagged(syn, 1), tagged(syn, 300))
        asks_own(vm)
        asks_own(container)
        frames = [data for _, data in tap.frames()]
        # The ends of other guests' connections may be sent again.
        sources = {source_of(data) for data in frames} - SIDE.probes
        assert sources <= known
        assert len(sources & theirs) == 2
        of_syn = [data for data in frames if data[34:36] == sport.to_bytes(2, "big")]
        assert {source_of(data) for data in of_syn} <= theirs
    assert agent.metric("dfmeta_packet_ins_total") == before
    host.vsctl("remove", "Open_vSwitch", ".", "other_config", "vlan-limit")


def test_a_container_that_claims_anothers_key_gets_its_own(agent: Agent, site: Site) -> None:
    rows = agent.admin("/ports").json()
    asking = site[0, 1]
    (key,) = {
        row["addresses"][0]["key"] for row in rows if row["instance"] == site.vms[0].instance_id
    }
    asking.add_address(f"{key}/32")
    try:
        asks_own(asking, source=key)
    finally:
        asking.namespace.ip(f"addr del {key}/32 dev eth0")


def test_only_the_mac_of_its_entry_is_served_on_a_vlan(agent: Agent, site: Site) -> None:
    container = site[1, 300]
    others = [other.entry() for other in site.of(container.parent) if other is not container]
    declare(container.parent, *others, container.entry(mac="fa:16:3f:00:00:77"))
    wait_for(lambda: is_unanswered(container), "the MAC to be refused")
    declare(container.parent, *others, container.entry(mac=container.mac.upper()))
    wait_for(lambda: not is_unanswered(container), "the container to be served again")
    site.declare(container.parent)
