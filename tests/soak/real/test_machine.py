"""A machine should reach nothing outside, and leave nothing."""

import sys
from pathlib import Path

from tests.harness import netns
from tests.harness.poll import wait_for
from tests.soak.real.images import Disk
from tests.soak.real.machine import Machine

PORT = 8123
SERVER = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(PORT)]


def test_it_reaches_nothing_outside(machine: Machine) -> None:
    # QEMU's own network calls the host's loopback 10.0.2.2. With user-mode Linux this is the
    # host's end of the tap device, where the server does not listen.
    server = machine.namespace.spawn(SERVER, cwd=machine.folder)
    try:
        request = ["curl", "-s", "-o", "/dev/null", "-m", "5", f"http://127.0.0.1:{PORT}/"]
        wait_for(lambda: not machine.namespace.run(request, check=False).returncode, "a server")
        request[-1] = f"http://10.0.2.2:{PORT}/"
        assert machine.run(" ".join(request), check=False).returncode
    finally:
        netns.end(server)


def test_a_machine_that_ends_leaves_nothing(disk: Disk) -> None:
    with Machine(disk) as machine:
        machine.power_on()
        wait_for(machine.answers, "the emulator")
        namespace = Path("/run/netns", machine.namespace.name)
        assert namespace.exists()
        pids = machine.namespace.processes()
        assert pids
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert not machine.folder.exists()
    assert not namespace.exists()
