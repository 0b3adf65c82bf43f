"""Somebody types doc/source/first-hour-libvirt.rst on a new host; it prints what the page shows.

What is real: Open vSwitch, the daemon and dfmeta's commands as they are installed, curl and
cloud-init in guests that are network namespaces. What stands in, since it cannot run here, is in
:data:`STAND_INS`: apt, pip, systemd, dnsmasq and libvirt, whose part of the page is right by their
documentation. libvirt's stand-in does to Open vSwitch and to its folders what libvirt does
(src/util/virnetdevopenvswitch.c).
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dfmeta.ports.domain import parse
from tests.e2e.support import KEY
from tests.harness import domains as libvirt
from tests.harness import netns
from tests.harness.agent import Agent, program
from tests.harness.cloudinit import Boot, Booting
from tests.harness.console import Block, Step, blocks, difference, steps
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.netns import ROOT
from tests.harness.ovs import BRIDGE, UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for

PAGE = (ROOT / "doc/source/first-hour-libvirt.rst").read_text(encoding="utf-8")
WEB1 = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
WEB2 = "9b1d5f0e-2c63-4d51-8f0a-5b1f6a7c8d03"
LEASES = {"web1": "192.168.150.11/24", "web2": "192.168.150.12/24"}
"""What dnsmasq would give."""
BROUGHT_BACK = ("/run/hello", "/run/cloud-init/result.json")
_PATH = re.compile(r"(?<![\w:/.])/[\w/.-]*")
_SERIAL = re.compile(r"<entry name='serial'>ds=nocloud-net;s=(.*)/nocloud/</entry>")


def places(folder: Path, agent: Agent, switch: OpenvSwitch) -> Mapping[str, str]:
    """Where on this machine what the page names is; what is below others comes first."""
    return {
        "/etc/dfmeta/dfmeta.conf": str(agent.config_file),
        "/var/lib/dfmeta": str(agent.state_path),
        "/var/run/openvswitch": str(switch.rundir),
        **{
            place: f"{folder}{place}"
            for place in ("/etc/", "/opt/dfmeta", "/usr/local/bin", "/root/.ssh")
        },
    }


@dataclass
class Host:
    """A host without a bridge, and somebody at its shell.

    :ivar domains: those that libvirt knows, by name: their XML.
    """

    switch: OpenvSwitch
    agent: Agent
    folder: Path
    stack: ExitStack
    domains: dict[str, str] = field(default_factory=dict)
    guests: dict[str, Guest] = field(default_factory=dict)
    boots: dict[str, Booting] = field(default_factory=dict)
    booted: dict[str, Boot] = field(default_factory=dict)

    def read(self, block: Block) -> None:
        """Do what a block says."""
        if block.kind == "console":
            for step in steps(block.text):
                printed = self.type(step)
                assert not (found := difference(step.shown, printed)), f"{step.command}: {found}"
        elif block.kind == "ini":
            self.agent.configure(options(block.text))
        else:
            (self.folder / "source" / block.caption).write_text(block.text + "\n")

    def type(self, step: Step) -> str:
        """What a command prints; it has to succeed."""
        if step.guest:
            return self.within(step.guest, step.command)
        for pattern, does in STAND_INS.items():
            if found := re.fullmatch(pattern, step.command):
                does(self, *found.groups())
                return "" if not step.shown else "what the page leaves out\n"
        return self.shell(step.command)

    def shell(self, command: str) -> str:
        """What a command on the host prints."""
        known = places(self.folder, self.agent, self.switch)
        for named in _PATH.findall(command):
            assert named.startswith(tuple(known)), f"{named} is this machine's"
        for place, real in known.items():
            command = re.sub(rf"(?<![\w/.]){re.escape(place)}", real, command)
        inside = ["nsenter", f"--net=/run/netns/{self.switch.namespace.name}"]
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        done = netns.run(
            [*inside, "sh", "-euc", f"cd {self.folder}/source; {command} 2>&1"],
            env={**self.switch.environment(), "PATH": path},
        )
        printed = done.stdout
        for place, real in known.items():
            printed = printed.replace(real, place)
        return printed

    def within(self, name: str, command: str) -> str:
        """What a command prints in a guest; its cloud-init ends first."""
        guest = self.guests[name]
        if name in self.boots:
            boot = self.booted[name] = self.boots.pop(name).finish()
            assert boot.errors == []
            assert boot.authorized_keys.strip() == KEY
        if command == "hostname":
            return self.booted[name].hostname
        if command.startswith("cat "):
            return self.booted[name].files[command.removeprefix("cat ")]
        assert command.startswith("curl -s ")
        return guest.namespace.run(shlex.split(command)).stdout

    # What stands in for others

    def define(self, file: str) -> None:
        """virsh define."""
        path = self.folder / "source" / file
        if not path.exists():
            text = path.with_name("web1.xml").read_text()
            path.write_text(text.replace("web1", "web2").replace(WEB1, WEB2))
        name = path.stem
        self.domains[name] = path.read_text()
        libvirt.write(self.folder / "libvirt/etc", name, self.domains[name])

    def start(self, name: str) -> None:
        """virsh start, as far as Open vSwitch and the guest see it; web1's cloud-init begins."""
        root = ElementTree.fromstring(self.domains[name])
        assert root.find("devices/interface/virtualport").get("type") == "openvswitch"
        assert root.find("devices/interface/source").get("bridge") == BRIDGE
        text = self.domains[name]
        libvirt.write(self.folder / "libvirt/run", name, libvirt.status(text))
        found = parse(text.encode())
        guest = self.stack.enter_context(
            Guest(
                self.switch,
                name,
                address=LEASES[name],
                mac=found.nics[0].mac,
                route="gateway",
                ids=Ids(iface_id=uuid_of(name), extra={"vm-id": found.instance_id}),
                plug=False,
            )
        )
        device = f"vnet{len(self.guests)}"
        rename = (f"link set {guest.port} down", f"link set {guest.port} name {device}")
        self.switch.namespace.ip(*rename, f"link set {device} up")
        guest.port = device
        guest.plug()
        self.guests[name] = guest
        wait_for(lambda: f'"{device}"' in self.agent.admin("/ports").text, 5, "the port")
        if name == "web1":
            url = _SERIAL.search(text)[1]
            booting = Booting(guest.namespace, mode="NoCloud", url=url, files=BROUGHT_BACK)
            self.stack.callback(booting.close)
            self.boots[name] = booting
            self.within(name, "hostname")

    def add_bridge(self, name: str) -> None:
        """The datapath of the tests is in user space."""
        self.switch.add_bridge(name)

    def nothing(self, *_said: str) -> None:
        """Others' business."""


STAND_INS: Mapping[str, Callable[..., None]] = {
    r"apt-get install .*": Host.nothing,
    r"ovs-vsctl --may-exist add-br (\S+)": Host.add_bridge,
    r"dnsmasq .*": Host.nothing,
    r"python3 -m venv /opt/dfmeta": Host.nothing,
    r"/opt/dfmeta/bin/pip install \.": Host.nothing,
    r"systemctl daemon-reload": Host.nothing,
    r"systemctl enable --now dfmeta-agent": lambda host: host.agent.start(),
    r"systemctl disable --now dfmeta-agent": lambda host: host.agent.stop(),
    r"virsh define (\S+)": Host.define,
    r"virsh start (\S+)": Host.start,
}
"""What cannot run here, and what is done in its place."""


def options(text: str) -> dict[str, dict[str, object]]:
    """A configuration file's groups."""
    reader = configparser.ConfigParser(interpolation=None)
    reader.read_string(text)
    return {group: dict(reader[group]) for group in reader.sections()}


def script(path: Path, *command: str) -> None:
    """A program that is another with some arguments."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


def programs(folder: Path, agent: Agent, switch: OpenvSwitch) -> None:
    """What is on the operator's PATH."""
    folder.mkdir()
    code = (
        "import sys\nfrom dfmeta import conf\nfrom dfmeta.cmd.ctl import main\n"
        f"conf.DEFAULT_FILES = ({str(agent.config_file)!r},)\nmain()"
    )
    script(folder / "dfmeta", sys.executable, "-c", code)
    script(folder / "dfmeta-agent", *program("dfmeta-agent"))
    script(
        folder / "ovs-vsctl", str(UNPACKED / "usr/bin/ovs-vsctl"), f"--db={switch.ovsdb_connection}"
    )


@pytest.fixture
def operator() -> Iterator[Host]:
    with ExitStack() as stack:
        switch = stack.enter_context(OpenvSwitch(bridges=()))
        agent = stack.enter_context(Agent(switch))
        folder = netns.temporary_folder("hour")
        stack.callback(shutil.rmtree, folder)
        libvirts = [folder / "libvirt" / name for name in ("run", "etc")]
        for path in libvirts:
            path.mkdir(parents=True)
        agent.configure({"df_metadata": {"libvirt_xml_path": ",".join(map(str, libvirts))}})
        programs(folder / "bin", agent, switch)
        key = folder / "root/.ssh/id_ed25519.pub"
        key.parent.mkdir(parents=True)
        key.write_text(f"{KEY}\n")
        for place in ("opt/dfmeta", "usr/local/bin", "etc/dfmeta"):
            (folder / place).mkdir(parents=True)
        (folder / "source").mkdir()
        (folder / "source/etc").symlink_to(ROOT / "etc")
        yield Host(switch, agent, folder, stack)


def test_the_page_prints_what_it_shows(operator: Host) -> None:
    for block in blocks(PAGE):
        operator.read(block)
