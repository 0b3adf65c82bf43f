"""``dfmeta trace``: where a SYN ends, in words, on hosts where it ends there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import end_holders
from tests.host.e2e.test_doctor import pretend_nft

pytestmark = pytest.mark.early

BEFORE = "Not traced:"
LEADS = (
    "The path leads to the proxy and back. The flows were traced on the switch, and the host "
    "answered a SYN of dfmeta-agent's own."
)
UNPROBED = (
    "The switch's flows lead to tap-metadata and back, and no check of the host finds a fault. No "
    "packet was sent."
)


@pytest.fixture(autouse=True)
def _filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with an empty packet filter, whatever the test machine has."""
    pretend_nft(tmp_path, {"nftables": []})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def trace(agent: Agent, port: str, status: int, family: int | None = 4) -> str:
    """What it prints; its last line is the verdict.

    :param family: version of IP to trace; None: both.
    """
    options = ("--family", str(family)) if family is not None else ()
    done = agent.ctl("trace", port, *options, check=False)
    assert (done.returncode, done.stderr) == (status, ""), done.stdout
    return done.stdout


def verdict(agent: Agent, port: str, status: int = 1) -> str:
    """The last line."""
    return trace(agent, port, status).splitlines()[-1]


def test_a_known_address_leads_to_the_proxy_and_back(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    assert guest.curl("/").status == 404
    text = trace(agent, guest.port, 0)
    head, *steps, end = text.splitlines()
    assert head == (
        f"{guest.port} (ofport {guest.ofport}), instance {guest.instance_id}, "
        f"{guest.ip} {guest.mac}, key 128.0.0.{guest.ofport}"
    )
    found = [step.split(":")[0].split(maxsplit=1) for step in steps if "proxy  " not in step]
    assert found == [
        ["there", "classification"],
        ["there", "metadata service"],
        ["host", "ok"],
        ["back", "classification"],
        ["back", "metadata service reply"],
        ["probe", "a SYN from br-int to 169.254.169.254"],
    ]
    assert f"output:{guest.ofport}" in steps[-2]
    # Where the way leads, and what its guest gets there, are two things.
    assert "proxy  the guest gets an answer, and fails: 404 (no record) since" in text
    assert end == LEADS


def test_both_versions_are_traced_and_each_alone(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    assert guest.curl("/").status == 404
    text = trace(agent, guest.port, 0, None)
    heads = [line for line in text.splitlines() if line.startswith(f"{guest.port} (ofport")]
    assert heads[0].endswith(f"{guest.ip} {guest.mac}, key 128.0.0.{guest.ofport}")
    assert heads[1].endswith("no address known yet, to fe80::a9fe:a9fe")
    assert text.splitlines()[-1] == LEADS
    assert text.count("  probe  ") == 2
    six = trace(agent, guest.port, 0, 6)
    assert "  finds  neighbour discovery: service-nd" in six
    assert "128.0.0." not in six
    flow = f"cookie=0xbad,priority=400,in_port={guest.ofport},ipv6,actions=NORMAL"
    host.ofctl("add-flow", BRIDGE, flow)
    end = trace(agent, guest.port, 1, None).splitlines()[-1]
    assert end.startswith(
        "Over IPv6 to fe80::a9fe:a9fe: neighbour discovery: stops in the classification table: "
        "another program's flow (cookie 0xbad"
    )
    assert trace(agent, guest.port, 0, 4).splitlines()[-1] == LEADS


def test_ipv6_is_not_traced_where_it_is_not_served(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest = make_guest()
    agent = make_agent({"df_metadata": {"ip6": ""}})
    text = trace(agent, guest.port, 0, None)
    assert text.count(f"{guest.port} (ofport") == 1
    end = trace(agent, guest.port, 1, 6).splitlines()[-1]
    assert end == f"{BEFORE} [df_metadata] ip6 is empty, so guests are served over IPv4 only."


def test_a_port_is_found_by_its_name_its_iface_id_and_its_instance(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    for name in (guest.port, guest.ids.iface_id, guest.instance_id, guest.instance_id.upper()):
        text = trace(agent, name, 0)
        assert text.startswith(f"{guest.port} (ofport")
        assert "the first SYN goes to the controller: no address is known yet" in text
        assert "where the controller installs the flow of the key before that SYN goes on" in text
        assert text.splitlines()[-1] == LEADS


def test_all_ports_of_an_instance_are_traced(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    ids = [Ids(iface_id=uuid_of(f"port {n}"), vm_uuid=uuid_of("two")) for n in range(2)]
    first, second = make_guest(ids=ids[0]), make_guest(ids=ids[1], address="10.0.0.6/24")
    agent = make_agent()
    text = trace(agent, first.instance_id, 0)
    assert text.count(LEADS) == 2
    assert first.port in text
    assert second.port in text


def test_a_port_without_an_instance_stops_in_the_service_table(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest = make_guest(ids=Ids(iface_id=uuid_of("nobody")))
    end = verdict(make_agent(), guest.port)
    assert end.startswith(
        f"Stops in the metadata service table: the port {guest.port} has no instance "
        "(external_ids:vm-uuid is missing)"
    )


def test_ports_that_are_not_served_say_why(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    host.vsctl("set", "Port", guest.port, "tag=4095")
    dead = f"{BEFORE} {guest.port} is dead: its owner has switched it off"
    wait_for(lambda: verdict_of_any(agent, guest.port).startswith(dead), "dead")
    host.vsctl("clear", "Port", guest.port, "tag")
    guest.set_external_ids(vm_uuid="no-uuid")
    broken = f"{BEFORE} {guest.port} is broken: external_ids:vm-uuid='no-uuid' is not a UUID."
    wait_for(lambda: verdict_of_any(agent, guest.port) == broken, "broken")
    host.vsctl(
        *("add-port", BRIDGE, "late0", "--", "set", "Interface", "late0"),
        *("external_ids:iface-id=a", "external_ids:attached-mac=fa:16:3e:00:11:22"),
    )
    late = f"{BEFORE} Open vSwitch has given late0 no port number"
    wait_for(lambda: verdict_of_any(agent, "late0").startswith(late), "late0")


def verdict_of_any(agent: Agent, port: str) -> str:
    """The last line, whatever the exit status."""
    return agent.ctl("trace", port, check=False).stdout.splitlines()[-1]


def test_what_is_no_guests_port_is_told_apart(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    host.add_bridge("br-ex")
    host.vsctl(
        *("add-port", BRIDGE, "patch0", "--"),
        *("set", "Interface", "patch0", "type=patch", "options:peer=patch1"),
        *("--", "add-port", "br-ex", "patch1", "--"),
        *("set", "Interface", "patch1", "type=patch", "options:peer=patch0"),
        *("--", "add-port", BRIDGE, "tapdhcp", "--", "set", "Interface", "tapdhcp"),
        *(
            "type=internal",
            "external_ids:iface-id=dhcp",
            "external_ids:attached-mac=fa:16:3e:0:0:9",
        ),
    )
    agent = make_agent()
    patch = verdict(agent, "patch0")
    assert "patch0 is not a guest's port: its type is patch: it leads to another bridge" in patch
    assert "(patch1)" in patch
    assert "tapdhcp is not a guest's port: its type is internal" in verdict(agent, "dhcp")
    assert "it is the port that leads to the proxy" in verdict(agent, "tap-metadata")
    assert "it is the bridge's own" in verdict(agent, BRIDGE)
    assert "patch1 is on br-ex, not on br-int" in verdict(agent, "patch1")
    nowhere = "no port of br-int has the name, iface-id, MAC, instance (id or name) or address"
    assert f"{nowhere} nowhere" in verdict(agent, "nowhere")


def test_somebodys_flow_before_our_hooks_is_named(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    flow = f"cookie=0xbad,priority=400,in_port={guest.ofport},ip,actions=NORMAL"
    host.ofctl("add-flow", BRIDGE, flow)
    end = verdict(agent, guest.port)
    assert end.startswith("Stops in the classification table: another program's flow")
    assert "(cookie 0xbad, priority 400, actions=NORMAL)" in end
    host.ofctl("add-flow", BRIDGE, "cookie=0xbad2,priority=500,tcp,tcp_flags=+syn+ack,actions=drop")
    host.ofctl("del-flows", BRIDGE, "cookie=0xbad/-1")
    end = verdict(agent, guest.port)
    assert end.startswith("On the return path: stops in the classification table:")
    assert "cookie 0xbad2" in end


def test_a_flow_that_hands_the_packet_on_is_no_stop(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    actions = "load:55->NXM_NX_REG2[0..5],resubmit(,0)"
    host.ofctl("add-flow", BRIDGE, f"cookie=0xd5c,priority=65535,ip,reg2=0,actions={actions}")
    text = trace(agent, guest.port, 0)
    assert "foreign flow, cookie 0xd5c" in text
    assert "classification: guest-syn" in text


@dataclass(frozen=True, kw_only=True)
class Unmended:
    """A daemon that knows a guest's address and has no connection: it mends nothing."""

    host: OpenvSwitch
    agent: Agent
    guest: Guest
    flows: tuple[str, ...]
    """What it had put in, as add-flow takes it."""

    def put_back(self) -> None:
        """All flows as they were."""
        self.host.ofctl("add-flows", BRIDGE, "-", stdin="\n".join(self.flows))

    def verdict(self) -> str:
        """Where the guest's SYN ends."""
        return verdict(self.agent, self.guest.port)


@pytest.fixture
def unmended(host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest) -> Unmended:
    """A switch with all flows, and no daemon that keeps them."""
    options = {"df_metadata": {"openflow_connection": "listen:127.0.0.1:6655"}}
    agent = make_agent(options, start=False).start(wait=False)
    host.vsctl("set-controller", BRIDGE, "tcp:127.0.0.1:6655")
    agent.wait_ready()
    guest = make_guest()
    wait_for(lambda: guest.curl("/", timeout=1).status == 404, "the guest to be served")
    kept = host.flows(match="cookie=0x64666d6500000000/0xffffffff00000000")
    host.vsctl("del-controller", BRIDGE)
    wait_for(lambda: not agent.ready(), "the daemon to lose its connection")
    scene = Unmended(host=host, agent=agent, guest=guest, flows=tuple(map(_as_added, kept)))
    scene.put_back()
    assert verdict(agent, guest.port, 0) == UNPROBED
    return scene


def _as_added(flow: str) -> str:
    """A dumped flow as add-flow takes it; meters went with their flows."""
    head, _, actions = flow.partition(" actions=")
    dropped = ("duration=", "n_packets=", "n_bytes=", "idle_age=", "hard_age=")
    parts = [part for part in head.replace(" ", ",").split(",") if part]
    kept = [part for part in parts if not part.startswith(dropped)]
    actions = ",".join(part for part in actions.split(",") if not part.startswith("meter:"))
    return f"{','.join(kept)},actions={actions}"


def test_a_missing_flow_is_named(unmended: Unmended) -> None:
    for flow, end in (
        ("table=0,cookie=0x64666d650101000a/-1", "the guest-syn flow is missing, so another"),
        ("table=0,cookie=0x64666d6501010001/-1", "the guest-http flow is missing, so another"),
        ("table=0,cookie=0x64666d6501010003/-1", "the from-tap flow is missing"),
        ("table=200,cookie=0x64666d6501020005/-1", "at the controller: it knows 10.0.0.5"),
        ("table=200", "in the metadata service table: no flow matches it"),
        ("table=201,cookie=0x64666d6501030007/-1", "no reply flow for its key"),
        ("table=201", "in the metadata service reply table: no flow matches it"),
    ):
        unmended.host.ofctl("del-flows", BRIDGE, flow)
        assert end in unmended.verdict()
        unmended.put_back()


def test_flows_that_lead_astray_are_told(unmended: Unmended) -> None:
    host, guest, tap = unmended.host, unmended.guest, unmended.host.ofport("tap-metadata")
    (way_in,) = [flow for flow in unmended.flows if "cookie=0x64666d6501020005" in flow]
    (way_back,) = [flow for flow in unmended.flows if "cookie=0x64666d6501030007" in flow]
    for flow, end in (
        (way_in.replace("18080->tcp_dst", "1->tcp_dst"), "tp_dst is 1 and should be 18080"),
        (
            way_in.replace(f"output:{tap}", "output:77"),
            f"does not lead to tap-metadata's port ({tap})",
        ),
        (
            way_back.replace(f"output:{guest.ofport}", "output:77"),
            f"does not leave at {guest.port}",
        ),
    ):
        host.ofctl("add-flow", BRIDGE, flow)
        assert end in unmended.verdict()
        unmended.put_back()


def test_without_the_daemon_it_ends_at_the_proxy_or_the_controller(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    known, silent = make_guest(), make_guest(address="10.0.0.6/24")
    agent = make_agent()
    known.curl("/")
    agent.stop()
    end = verdict(agent, known.port)
    assert end.startswith("Stops at the proxy: dfmeta-agent does not run")
    assert verdict(agent, silent.port).startswith("Stops at the controller: dfmeta-agent does not")


def test_nobody_listens(host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    guest, agent = make_guest(), make_agent()
    guest.curl("/")
    agent.stop()
    end_holders(host)
    end = verdict(agent, guest.port)
    assert end.startswith("Stops at the host: no process listens on 169.254.169.254:18080; start")


def test_tap_is_missing(host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    guest, agent = make_guest(), make_agent()
    agent.stop()
    host.vsctl("del-port", "tap-metadata")
    assert verdict(agent, guest.port).startswith(f"{BEFORE} tap-metadata is not on br-int")


def test_a_switch_that_is_away_is_one_line(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    host.kill("ovs-vswitchd")
    done = agent.ctl("trace", guest.port, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("dfmeta: ovs-vswitchd at")
    assert done.stderr.count("\n") == 1
