"""A port that is cut off: its state, doctor and a trace name the cause, and the remedy works."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import METADATA_IP, Guest, uuid_of
from tests.harness.netns import Namespace, tx_off
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import asks_own, is_unanswered, put, served
from tests.host.e2e.test_doctor import apply, examine, named

NO_RECEIVE = "the switch accepts no frames from it"


@dataclass(frozen=True)
class Scene:
    """A host with a guest that is served."""

    host: OpenvSwitch
    agent: Agent
    guest: Guest

    def state(self, port: str) -> tuple[str, str]:
        """State and fault of a port, in the listing."""
        rows = self.agent.admin("/ports").json()
        return next((row["state"], row["fault"]) for row in rows if row["port"] == port)

    def trace(self, port: str, status: int = 1) -> str:
        """The last line of a trace."""
        done = self.agent.ctl("trace", port, check=False)
        assert (done.returncode, done.stderr) == (status, ""), done.stdout
        return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with OpenvSwitch() as host, Agent(host) as agent, Guest(host) as guest:
        agent.start()
        put(agent, guest)
        asks_own(guest)
        yield Scene(host, agent, guest)


def test_a_guests_port_that_is_cut_off_by_the_switch(scene: Scene) -> None:
    port = scene.guest.port
    scene.host.ofctl("mod-port", BRIDGE, port, "no-receive")
    assert is_unanswered(scene.guest)
    wait_for(lambda: scene.state(port)[0] == "cut off", "the state")
    assert scene.state(port)[1].startswith(NO_RECEIVE)
    wait_for(lambda: scene.agent.metric("dfmeta_ports", state="cut off") == 1, "its count")
    assert f"Port {port}: cut off: " in scene.agent.log()
    _, result = examine(scene.agent)
    assert scene.trace(port).startswith(f"Stops at {port}: {NO_RECEIVE}")
    apply(scene.host, named(result, "ports", f"cut off: {port} ({NO_RECEIVE}"))
    wait_for(lambda: served(scene.guest), "an answer")
    wait_for(lambda: scene.state(port) == ("served", ""), "its state")


def test_a_container_whose_device_open_vswitch_cannot_see_is_served(scene: Scene) -> None:
    """An internal port in the guest's own network namespace is "down" for the switch, and works."""
    host, name = scene.host, "inside0"
    ids = f"external_ids:vm-uuid={uuid_of('inside')}"
    with Namespace("inside") as inside:
        host.vsctl("add-port", BRIDGE, name, "--", "set", "Interface", name, "type=internal", ids)
        host.namespace.ip(f"link set {name} netns {inside.name}")
        inside.ip(f"address add 10.0.0.8/24 dev {name}", f"link set {name} up")
        inside.ip(f"route add {METADATA_IP} dev {name}")

        def is_out_of_sight() -> bool:
            _, _, rest = host.ofctl("show", BRIDGE).partition(f"({name})")
            return "PORT_DOWN" in rest.partition("speed:")[0]

        wait_for(is_out_of_sight, "the switch to lose sight of it")
        tx_off(inside, name)
        with inside.connect(METADATA_IP, 80):
            assert scene.state(name) == ("served", "")
        assert examine(scene.agent)[0] == 0
    host.vsctl("del-port", name)
