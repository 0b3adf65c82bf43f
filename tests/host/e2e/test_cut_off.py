"""A port that is cut off: its state, doctor and a trace name the cause, and the remedy works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import domains
from tests.harness.agent import Agent
from tests.harness.guest import Guest, uuid_of
from tests.harness.netns import Namespace, tx_off
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import is_unanswered, put
from tests.host.e2e.test_doctor import apply, examine, named, pretend_nft

TAP = "tap-metadata"
LINK_DOWN = ("ip link set PORT down", "its device is down")
NO_FORWARD = ("ofctl mod-port br-int PORT no-forward", "the switch sends no frames to it")
NO_RECEIVE = ("ofctl mod-port br-int PORT no-receive", "the switch accepts no frames from it")


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
    """The host; its packet filter is empty."""
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


@pytest.mark.parametrize(("command", "cause"), [LINK_DOWN, NO_RECEIVE], ids=["link", "switch"])
def test_a_guests_port_that_is_cut_off(scene: Scene, command: str, cause: str) -> None:
    port = scene.guest.port
    scene.is_served()
    scene.run(command, port)
    assert is_unanswered(scene.guest)
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


def test_tap_metadata_that_is_cut_off(scene: Scene) -> None:
    command, cause = NO_FORWARD
    scene.is_served()
    scene.run(command, TAP)
    assert is_unanswered(scene.guest)
    status, found = examine(scene.agent)
    assert status == 1
    assert scene.trace(scene.guest.port).startswith(f"Stops at {TAP}: {cause}")
    apply(scene.host, named(found, "tap", "is cut off, so no guest is served", cause))
    scene.is_served()


def test_ports_that_are_cut_off_while_no_daemon_runs(scene: Scene) -> None:
    port = scene.guest.port
    scene.is_served()
    scene.agent.stop()
    command, cause = NO_RECEIVE
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
        tx_off(inside, name)
        with inside.connect("169.254.169.254", 80):
            assert scene.state(name) == ("served", "")
        assert examine(scene.agent)[0] == 0
        assert scene.trace(name, 0)
    host.vsctl("del-port", name)


def shown(host: OpenvSwitch, port: str) -> str:
    """What ``ovs-ofctl show`` has of a port."""
    _, _, rest = host.ofctl("show", BRIDGE).partition(f"({port})")
    return rest.partition("speed:")[0]
