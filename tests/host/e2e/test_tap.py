"""The listeners' device leads to the proxy only, and nobody else's traffic is touched."""

import socket
from functools import partial

from dfmeta.model import TAP_MAC
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import METADATA_IP, Guest, Ids
from tests.harness.netns import Namespace, veth
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import shared
from tests.host.e2e.support import PROXY_PORT, Attempt, Capture, asks_own, put

TAP = SIDE.tap
host, agent, guest = shared.host, shared.agent_with(), shared.guest


def key_of(agent: Agent, guest: Guest) -> str:
    """The key of the guest's first address."""
    (row,) = [row for row in agent.admin("/ports").json() if row["port"] == guest.port]
    return str(row["key"])


def asks_for(guest: Guest, address: str) -> None:
    """Start to ask for its owner by ARP."""
    with guest.namespace.open_socket(kind=socket.SOCK_DGRAM) as link:
        link.sendto(b"?", (address, 9))


def test_no_tenants_broadcast_is_flooded_to_it(
    host: OpenvSwitch, agent: Agent, guest: Guest, make_guest: MakeGuest
) -> None:
    """Untagged, a tenant's VLAN, a trunk of both, and the VLAN of Neutron's dead ports."""
    asking, other = (
        make_guest(name, address=address, ids=Ids(attached_mac=False))
        for name, address in (("asking", "10.0.0.5/24"), ("other", "10.0.0.6/24"))
    )
    mac = bytes.fromhex(asking.mac.replace(":", ""))

    def flooded(capture: Capture) -> list[bytes]:
        return [data for _, data in capture.frames() if data[6:12] == mac]

    for columns in ("", "tag=1", "tag=1 vlan_mode=native-untagged trunks=1,2", "tag=4095"):
        for word in (asking, other):
            if columns:
                host.vsctl("set", "Port", word.port, *columns.split())
        with Capture(host.namespace, TAP) as tap, Capture(host.namespace, other.port) as heard:
            asking.forget_neighbours()
            asks_for(asking, "10.0.0.99")
            wait_for(partial(flooded, heard), "the broadcast to reach the other guest")
            # What has come to tap-metadata by now has come behind it.
            asks_own(guest)
            assert flooded(tap) == [], columns


def test_a_guest_cannot_reach_another_port_of_the_host_through_it(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    asks_own(guest)
    guest.namespace.ip(
        f"neigh replace {METADATA_IP} lladdr {TAP_MAC} dev {guest.device} nud permanent"
    )
    with host.namespace.open_socket() as listener:
        listener.bind(("0.0.0.0", 2222))
        listener.listen()
        ports = [2222, 9697, 22, *({PROXY_PORT} - {80})]
        with Capture(host.namespace, TAP) as tap, Capture(host.namespace, guest.port) as sent:
            attempts = [Attempt(guest, port=port) for port in ports]
            wait_for(
                lambda: [syn.is_repeated for syn in sent.syns()] == [True] * len(ports),
                "the SYNs to be repeated",
            )
            assert [attempt.connected_after(0) for attempt in attempts] == [None] * len(ports)
            assert tap.segments_of(*(attempt.port for attempt in attempts)) == []
            for attempt in attempts:
                attempt.close()
    asks_own(guest)


def test_a_guest_that_calls_itself_by_anothers_key_gets_its_own(
    host: OpenvSwitch, agent: Agent, guest: Guest, make_guest: MakeGuest
) -> None:
    asks_own(guest)
    key = key_of(agent, guest)
    thief = make_guest("thief", address=f"{key}/24", mac=guest.mac)
    put(agent, thief)
    asks_own(thief)
    asks_own(guest)


def test_a_guest_cannot_send_to_anothers_key(
    host: OpenvSwitch, agent: Agent, guest: Guest, make_guest: MakeGuest
) -> None:
    asks_own(guest)
    key = key_of(agent, guest)
    thief = make_guest("thief", address="10.0.0.66/24", ids=Ids(attached_mac=False))
    thief.add_route(f"{key}/32 dev {thief.device}")
    neighbour = f"neigh replace {key} lladdr {TAP_MAC} dev {thief.device} nud permanent"
    thief.namespace.ip(neighbour)
    with Capture(host.namespace, TAP) as tap, Capture(host.namespace, thief.port) as sent:
        asks_for(thief, key)
        wait_for(sent.frames, "the datagram")
        asks_own(guest)
        mac = bytes.fromhex(thief.mac.replace(":", ""))
        assert [data for _, data in tap.frames() if data[6:12] == mac] == []


def test_a_tagged_frame_is_not_answered(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    """A tag that a guest sets itself is not the port's untagged traffic."""
    flow = f"in_port={guest.ofport},tcp,nw_src=10.0.0.5,nw_dst={METADATA_IP},tp_dst=80"
    flow += ",dl_vlan=7,tcp_flags=syn"
    assert "controller" not in host.trace(flow)
    assert "NORMAL" in host.trace(flow)


def test_rp_filter_stops_no_answer(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    for rp_filter in (0, 1, 2):
        for name in ("all", TAP):
            host.namespace.sysctl(**{f"net.ipv4.conf.{name}.rp_filter": rp_filter})
        asks_own(guest)


def test_another_card_of_the_host_does_not_lead_to_the_proxy(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    """A neighbour on the host's network knows the proxy's address, and calls itself a key."""
    asks_own(guest)
    key = key_of(agent, guest)
    with Namespace("lan") as lan:
        veth(host.namespace, "lan0", lan, "eth0")
        host.namespace.ip("link set lan0 address 02:00:00:00:00:01", f"route add {key} dev lan0")
        lan.ip(
            f"addr add {key}/32 dev eth0",
            f"route add {SIDE.ip} dev eth0 src {key}",
            f"neigh replace {SIDE.ip} lladdr 02:00:00:00:00:01 dev eth0 nud permanent",
        )
        with (
            Capture(host.namespace, "lan0") as wire,
            Capture(host.namespace, TAP) as tap,
            lan.open_socket() as neighbour,
        ):
            neighbour.setblocking(False)
            neighbour.connect_ex((SIDE.ip, PROXY_PORT))
            (port,) = neighbour.getsockname()[1:]
            wait_for(
                lambda: any(segment.is_repeated for segment in wire.segments_of(port)),
                "the SYN to be repeated",
            )
            assert wire.segments_of(port) == wire.syns()
            assert tap.segments_of(port) == []
        host.namespace.ip(f"route del {key} dev lan0")
    asks_own(guest)
