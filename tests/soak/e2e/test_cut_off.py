"""A tap-metadata that is cut off should be named."""

from tests.harness.ovs import BRIDGE
from tests.harness.poll import wait_for
from tests.host.e2e import test_cut_off
from tests.host.e2e.support import is_unanswered, served
from tests.host.e2e.test_cut_off import NO_FORWARD, Scene
from tests.host.e2e.test_doctor import apply, examine, named

scene = test_cut_off.scene

TAP = "tap-metadata"


def test_tap_metadata_that_is_cut_off_and_a_device_that_is_down_without_the_daemon(
    scene: Scene,
) -> None:
    port = scene.guest.port
    scene.host.ofctl("mod-port", BRIDGE, TAP, "no-forward")
    assert is_unanswered(scene.guest)
    scene.agent.stop()
    scene.host.namespace.ip(f"link set {port} down")
    _, found = examine(scene.agent)
    assert scene.trace(port).startswith(f"Stops at {port}: its device is down")
    apply(scene.host, named(found, "ports", f"cut off: {port} (its device is down"))
    assert scene.trace(port).startswith(f"Stops at {TAP}: {NO_FORWARD}")
    apply(scene.host, named(found, "tap", "is cut off, so no guest is served", NO_FORWARD))
    assert scene.trace(scene.guest.ip).startswith("Stops at the proxy: dfmeta-agent does not run")
    scene.agent.start()
    wait_for(lambda: served(scene.guest), "an answer")
