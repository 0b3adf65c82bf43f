"""The first hour of doc/source/containers.rst is typed on a host and in its two VMs.

What is real: Open vSwitch on the host and in the VMs, the daemon, the plugin as one file, and
namespaces as VMs and containers. Stand-ins: systemd is :class:`tests.host.e2e.shell.Shell`'s, and
``ping`` is the harness' own program. A VM's Open vSwitch has its socket in a folder of the test.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.core.docs.typed import page, untyped
from tests.harness import cni_file, netns
from tests.harness.console import blocks
from tests.harness.guest import Guest
from tests.harness.ovs import UNPACKED, OpenvSwitch
from tests.host.e2e.shell import Shell
from tests.host.e2e.support import asks_own, put

PAGE = page("containers")
BRIDGE = "br-containers"
CONTAINERS = ("c1", "c2", "c3")
ETHTOOL = shutil.which("ethtool")
PING = f"""#!/bin/sh
PYTHONPATH={netns.ROOT} {sys.executable} -P - "$3" << END || exit 1
import socket, sys
from tests.harness.guest import PING, is_answered
link = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
sys.exit(not is_answered(link, sys.argv[1], PING))
END
echo "PING $3"
echo "$2 packets transmitted, $2 received, 0% packet loss"
echo "rtt"
"""


class Vm:
    """A VM whose namespace is that of its own Open vSwitch, and the folder of its shell."""

    def __init__(self, stack: ExitStack, guest: Guest, folder: Path) -> None:
        self.guest, self.folder = guest, folder
        self.switch = stack.enter_context(OpenvSwitch(bridges=(BRIDGE,)))
        self.inside = self.switch.namespace
        guest.namespace.ip(f"link set {guest.device} netns {self.inside.name}")
        self.inside.ip(
            f"link set {guest.device} up", f"addr add {guest.interface} dev {guest.device}"
        )
        netns.tx_off(self.inside, guest.device)
        (folder / "bin").mkdir(parents=True)
        cni_file.pack(folder / "dfmeta-cni")
        self._script("ovs-vsctl", f'exec {UNPACKED}/usr/bin/ovs-vsctl --db={self.db} "$@"\n')
        (folder / "bin/ping").write_text(PING)
        for path in (folder / "bin").iterdir():
            path.chmod(0o755)

    @property
    def db(self) -> str:
        """The socket of its OVSDB."""
        return self.switch.ovsdb_connection

    def run(self, command: str) -> str:
        """Return what a command prints in the VM."""
        env = {"PATH": f"{self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        command = command.replace("/opt/cni", f"{self.folder}/opt/cni")
        # Not `ip netns exec`: the namespaces that it mounts are those of its own mount namespace.
        inside = ["nsenter", f"--net=/run/netns/{self.inside.name}"]
        return netns.run([*inside, "sh", "-euc", f"cd {self.folder}; {command}"], env=env).stdout

    def _script(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{text}")


class Host(Shell):
    """A host with both VMs; namespaces of containers have names of their own on this machine."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack, stack.enter_context(OpenvSwitch()))
        self.vms: dict[str, Vm] = {}
        for number in (1, 2):
            name = f"vm{number}"
            guest = stack.enter_context(Guest(self.switch, name, address=f"10.0.0.1{number}/24"))
            assert guest.port in PAGE
            assert f'hwaddr="{guest.mac}"' in PAGE
            self.guests[name] = guest
        self.agent.start()
        for name, guest in self.guests.items():
            put(self.agent, guest)
            asks_own(guest)
            self.vms[name] = Vm(stack, guest, self.folder / name)
        self.own = {
            container: f"{self.switch.namespace.name}-{container}" for container in CONTAINERS
        }
        stack.callback(self._remove_containers)

    def within(self, name: str, command: str) -> str:
        """What a command prints in a VM."""
        for one, own in self.own.items():
            command = re.sub(rf"(netns/|netns \w+ ){one}\b", rf"\g<1>{own}", command)
        printed = self.vms[name].run(command)
        if "CNI_COMMAND=ADD" in command:
            # The userspace datapath completes no checksums.
            (own,) = (program for program in self.own.values() if program in command)
            assert ETHTOOL is not None
            netns.run(["ip", "netns", "exec", own, ETHTOOL, "-K", "eth0", "tx", "off"])
        return printed

    def read_json(self, text: str, caption: str) -> None:
        """Write a configuration of the plugin into each VM, with the place of its OVSDB."""
        for vm in self.vms.values():
            (vm.folder / caption).write_text(json.dumps({**json.loads(text), "db": vm.db}))

    def _remove_containers(self) -> None:
        for own in self.own.values():
            with suppress(netns.CommandError):
                netns.run(["ip", "netns", "delete", own])


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with ExitStack() as stack:
        yield Host(stack)


def test_the_first_hour_is_as_the_page_says(host: Host) -> None:
    first, rest = PAGE.split("Networks and quotas\n====")
    for block in blocks(first):
        if block.kind == "json":
            host.read_json(block.text, block.caption)
        else:
            host.read(block)
    listed = json.loads(host.run("dfmeta ports --format json"))
    attached = {row["container"]: row["instance"] for row in listed if row["attachment"]}
    assert attached.keys() == {"c1", "c3"}
    host.names |= {"PORT": host.guests["vm1"].port, "INSTANCE": attached["c1"]}
    host.type_all(rest)
    assert untyped("containers", host.typed) == []
    name = "curl -s http://169.254.169.254/latest/meta-data/local-hostname"
    assert host.within("vm1", f"ip netns exec c1 {name}") == "shop"
    assert host.within("vm2", f"ip netns exec c3 {name}") == "c3"
    doctor = json.loads(host.run("dfmeta doctor --format json || true"))
    (line,) = [row for row in doctor if row["check"] == "attachments"]
    assert line["status"] == "ok"
    assert line["text"].startswith("2 attachments of 2 VMs")
