"""A central store on a full disk is made once there is room."""

from contextlib import closing

from tests.harness.central import Central
from tests.harness.netns import Namespace
from tests.harness.poll import wait_for
from tests.host.e2e.test_full_disk import Disk, missing


def test_a_central_store_without_room_is_made_when_there_is_some() -> None:
    with Namespace("store") as namespace, Central(namespace=namespace) as central:
        state = central.folder / "state"
        state.mkdir(mode=0o700)
        with closing(Disk(state)) as disk:
            central.start(wait=False)
            wait_for(lambda: missing(central) == ["store", "disk"], "everything but the disk")
            disk.free()
            wait_for(central.ready, "database and key")
            central.stop()
