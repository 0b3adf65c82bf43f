"""A first start on a full disk serves all that needs no file, and the rest once there is room."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dfmeta.runtime.throttle import LONGEST_PAUSE
from tests.harness.agent import Agent, Daemon
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.harness.nova import RecordingNova
from tests.harness.poll import wait_for
from tests.host.e2e.support import NOVA_OPTIONS, asks_own, project_ids, put_nova

CHUNK = bytes(4096)


class Disk:
    """A small file system at a daemon's state_path, which is full until :meth:`free`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "tmpfs", path], check=True
        )
        self._filler = path / "filler"
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(CHUNK)
            except OSError:
                return

    def free(self) -> None:
        """Make room."""
        self._filler.unlink()

    def close(self) -> None:
        """Remove the file system."""
        subprocess.run(["umount", "--lazy", self.path], check=True)


@pytest.fixture
def disks(make_agent: MakeAgent) -> Iterator[list[Disk]]:
    """Provide a list of the disks to remove after the test, before the daemons' folders are."""
    del make_agent
    made: list[Disk] = []
    yield made
    for disk in made:
        disk.close()


def started(
    make_agent: MakeAgent, disks: list[Disk], options: dict[str, dict[str, object]]
) -> Agent:
    """A daemon that starts on a full disk."""
    agent = make_agent(options, start=False)
    disks.append(Disk(agent.state_path))
    return agent.start(wait=False)


def missing(agent: Daemon) -> list[str] | None:
    """The parts that are missing; None: the daemon does not answer yet."""
    if not agent.readiness():
        return None
    return list(agent.admin("/healthz/readiness").json().get("missing", ()))


def asks_for_token(guest: Guest) -> int:
    ttl = ("X-aws-ec2-metadata-token-ttl-seconds", "60")
    return guest.curl("/latest/api/token", "-X", "PUT", headers=[ttl]).status


def test_tokens_alone_wait_for_room(
    make_agent: MakeAgent, make_guest: MakeGuest, nova: RecordingNova, disks: list[Disk]
) -> None:
    agent = started(make_agent, disks, NOVA_OPTIONS)
    guest = make_guest("one", ids=project_ids("one"))
    put_nova(nova, guest)
    wait_for(lambda: missing(agent) == ["disk"], "everything but the disk")
    asks_own(guest)
    assert asks_for_token(guest) == 503
    wait_for(lambda: f"DOWN for {LONGEST_PAUSE:g} s, disk: " in agent.log(), "the log")
    message = f"the disk of {agent.state_path} is full, and guests get no tokens"
    assert agent.log().count(message) == 1
    asks_own(guest)
    disks[0].free()
    wait_for(agent.ready, "the key")
    wait_for(lambda: asks_for_token(guest) == 200, "tokens, of each worker")
    agent.restart()
    assert asks_for_token(guest) == 200
    asks_own(guest)
