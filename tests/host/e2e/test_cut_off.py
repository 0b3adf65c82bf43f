"""A guest that gets nothing: what each tool says of its port and the host, proved by its curl."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from dfmeta.flows.family import FAMILIES
from tests.harness import domains
from tests.harness.agent import Agent
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.netns import Namespace
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.breakages import hangs
from tests.host.e2e.support import put
from tests.host.e2e.test_doctor import apply, examine, named, pretend_nft

TAP = "tap-metadata"
GUEST_CUTS = {
    "mod-port down": ("ofctl mod-port br-int PORT down", "its device is down"),
    "ip link down": ("ip link set PORT down", "its device is down"),
    "no-forward": ("ofctl mod-port br-int PORT no-forward", "the switch sends no frames to it"),
    "no-receive": ("ofctl mod-port br-int PORT no-receive", "the switch accepts no frames from it"),
}
TAP_CUTS = {name: cut for name, cut in GUEST_CUTS.items() if name.startswith("no-")}


def served(guest: Guest) -> bool:
    """Whether its own record answers the guest."""
    return guest.curl("/latest/meta-data/instance-id", timeout=1).status == 200


@dataclass(frozen=True)
class Scene:
    """A host with a guest that is served."""

    host: OpenvSwitch
    agent: Agent
    guest: Guest

    def run(self, command: str, port: str) -> None:
        """Run a command of a table above."""
        program, *arguments = command.replace("PORT", port).split()
        if program == "ofctl":
            self.host.ofctl(*arguments)
        else:
            self.host.namespace.run([program, *arguments])

    def state(self, port: str) -> tuple[str, str]:
        """State and fault of a port, in the listing."""
        rows = self.agent.admin("/ports").json()
        return next((row["state"], row["fault"]) for row in rows if row["port"] == port)

    def is_served(self) -> None:
        """The guest is answered, and its port is shown so."""
        wait_for(lambda: served(self.guest), "an answer")
        wait_for(lambda: self.state(self.guest.port) == ("served", ""), "its state")

    def trace(self, port: str, status: int = 1) -> str:
        """The last line of a trace."""
        done = self.agent.ctl("trace", port, check=False)
        assert (done.returncode, done.stderr) == (status, ""), done.stdout
        return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The host; its packet filter is empty, whatever the test machine has."""
    folder: Path = tmp_path_factory.mktemp("host")
    pretend_nft(folder, {"nftables": []})
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PATH", str(folder), prepend=":")
        host = stack.enter_context(OpenvSwitch())
        options = {"df_metadata": {"libvirt_xml_path": folder}}
        agent = stack.enter_context(Agent(host, options)).start()
        guest = stack.enter_context(Guest(host))
        domains.write(folder, "web1", domains.definition(guest.instance_id, domain="web1"))
        put(agent, guest)
        yield Scene(host, agent, guest)


@pytest.mark.parametrize("name", GUEST_CUTS)
def test_a_guests_port_that_is_cut_off(scene: Scene, name: str) -> None:
    port = scene.guest.port
    command, cause = GUEST_CUTS[name]
    scene.is_served()
    scene.run(command, port)
    hangs(scene.guest)
    state, fault = wait_for(
        lambda: (found := scene.state(port))[0] == "cut off" and found, "the state"
    )
    assert state == "cut off"
    assert fault.startswith(cause)
    wait_for(lambda: scene.agent.metric("dfmeta_ports", state="cut off") == 1, "its count")
    assert f"Port {port}: cut off: " in scene.agent.log()
    status, found = examine(scene.agent)
    assert status == 1
    assert scene.trace(port).startswith(f"Stops at {port}: {cause}")
    apply(scene.host, named(found, "ports", f"cut off: {port} ({cause}"))
    scene.is_served()


def test_a_guest_whose_own_interface_is_down(scene: Scene) -> None:
    port = scene.guest.port
    scene.is_served()
    scene.guest.namespace.ip("link set eth0 down")
    wait_for(lambda: scene.state(port)[0] == "cut off", "the state")
    status, found = examine(scene.agent)
    assert status == 1
    remedy = named(found, "ports", f"cut off: {port} (its device has no link")
    assert "start the guest, or set its interface up" in remedy
    assert scene.trace(port).startswith(f"Stops at {port}: its device has no link")
    scene.guest.namespace.ip("link set eth0 up", "route add 169.254.0.0/16 dev eth0")
    scene.is_served()


@pytest.mark.parametrize("name", TAP_CUTS)
def test_tap_metadata_that_is_cut_off(scene: Scene, name: str) -> None:
    command, cause = TAP_CUTS[name]
    scene.is_served()
    scene.run(command, TAP)
    hangs(scene.guest)
    status, found = examine(scene.agent)
    assert status == 1
    assert scene.trace(scene.guest.port).startswith(f"Stops at {TAP}: {cause}")
    apply(scene.host, named(found, "tap", "is cut off, so no guest is served", cause))
    scene.is_served()


def test_the_same_without_the_daemon(scene: Scene) -> None:
    port = scene.guest.port
    scene.is_served()
    scene.agent.stop()
    command, cause = GUEST_CUTS["no-receive"]
    scene.run(command, port)
    _, found = examine(scene.agent)
    assert scene.trace(port).startswith(f"Stops at {port}: {cause}")
    apply(scene.host, named(found, "ports", f"cut off: {port} ({cause}"))
    assert scene.trace(scene.guest.ip).startswith("Stops at the proxy: dfmeta-agent does not run")
    assert scene.trace("web1").startswith("Stops at the proxy: dfmeta-agent does not run")
    assert "does not run" in scene.trace("nowhere")
    scene.run("ip link set PORT down", TAP)
    _, found = examine(scene.agent)
    assert scene.trace(port).startswith(f"Stops at {TAP}: its device is down")
    named(found, "device", f"{TAP} is down")
    scene.agent.start()
    scene.is_served()


def test_a_container_whose_device_open_vswitch_cannot_see_is_served(scene: Scene) -> None:
    """An internal port in the guest's own network namespace is "down" for the switch, and works."""
    host, name, instance = scene.host, "inside0", uuid_of("inside")
    with Namespace("inside") as inside:
        host.vsctl(
            *("add-port", BRIDGE, name, "--", "set", "Interface", name, "type=internal"),
            f"external_ids:vm-uuid={instance}",
        )
        host.namespace.ip(f"link set {name} netns {inside.name}")
        lines = (f"address add 10.0.0.8/24 dev {name}", f"link set {name} up")
        inside.ip(*lines, f"route add 169.254.169.254 dev {name}")
        wait_for(lambda: "PORT_DOWN" in shown(host, name), "the switch to lose sight of it")
        inside.run(["ethtool", "-K", name, "tx", "off"])
        with inside.connect("169.254.169.254", 80):
            assert scene.state(name) == ("served", "")
        assert examine(scene.agent)[0] == 0
        assert scene.trace(name, 0)
    host.vsctl("del-port", name)


def shown(host: OpenvSwitch, port: str) -> str:
    """What ``ovs-ofctl show`` has of a port."""
    _, _, rest = host.ofctl("show", BRIDGE).partition(f"({port})")
    return rest.partition("speed:")[0]


def test_a_trace_ends_at_the_host_where_the_host_drops(scene: Scene) -> None:
    scene.is_served()
    # Of the keys of first slots: the guest has had its port from the beginning of this module.
    address = "128.0.0.77/16 dev lo"
    scene.host.namespace.ip(f"address add {address}")
    try:
        hangs(scene.guest)
        end = scene.trace(scene.guest.port)
    finally:
        scene.host.namespace.ip(f"address del {address}")
    assert end.startswith("Stops at the host: answers to guests do not leave by tap-metadata")
    assert "`ip rule show`" in end
    scene.is_served()


def test_a_port_that_is_no_guests(scene: Scene) -> None:
    guest = scene.guest
    scene.is_served()
    scene.host.vsctl("clear", "Interface", guest.port, "external_ids")
    wait_for(lambda: not served(guest), "the daemon to hear of it")
    hangs(guest)
    _, found = examine(scene.agent)
    (line,) = [one for one in found if one["check"] == "other-ports"]
    assert line["status"] == "ok"
    assert f"ports of {BRIDGE} that are not guests' ports (1): {guest.port}. " in line["text"]
    end = scene.trace(guest.port)
    assert end.startswith(f"Not traced: {guest.port} is not a guest's port")
    apply(scene.host, end, instance=guest.instance_id)
    scene.is_served()
    status, found = examine(scene.agent)
    assert (status, [one for one in found if one["check"] == "other-ports"]) == (0, [])
    end = scene.trace(guest.port, 0)
    assert end.startswith("The path leads to the proxy and back. ")


def test_a_trace_takes_a_name_an_address_and_a_mac(scene: Scene) -> None:
    guest, agent = scene.guest, scene.agent
    scene.is_served()
    with Guest(scene.host, "twin", address=f"{guest.ip}/24", ids=Ids(vm_uuid=uuid_of("t"))) as twin:
        # That bit is about packets without a flow: the twin's first SYN is let in all the same.
        scene.host.ofctl("mod-port", BRIDGE, twin.port, "no-packet-in")
        wait_for(lambda: twin.curl("/", timeout=1).status == 404, "the twin to be served")
        assert scene.state(twin.port) == ("served", "")
        for text, ports in (
            ("web1", [guest.port]),
            (guest.mac, [guest.port]),
            (guest.mac.upper(), [guest.port]),
            (guest.ip, [guest.port, twin.port]),
        ):
            done = agent.ctl("trace", text)
            heads = [line for line in done.stdout.splitlines() if "(ofport" in line]
            assert [line.split()[0] for line in heads] == [one for one in ports for _ in FAMILIES]
