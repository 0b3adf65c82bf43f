"""doc/source/first-hour-libvirt.rst is typed on a new host; it prints what the page shows.

What is real: Open vSwitch, the daemon and dfmeta's commands, curl and cloud-init in guests that are
network namespaces. What stands in, since it cannot run here, is in
:data:`STAND_INS` and in :class:`tests.host.e2e.shell.Shell`: apt, pip, systemd, dnsmasq and
libvirt, whose part of the page is right by their documentation. libvirt's stand-in does to Open
vSwitch and to its folders what libvirt does (src/util/virnetdevopenvswitch.c).
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from xml.etree import ElementTree

import pytest

from dfmeta.sources.domain import parse
from tests.core.docs.typed import page, untyped
from tests.harness import domains as libvirt
from tests.harness.cloudinit import Boot, Booting
from tests.harness.console import Step, blocks
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.shell import LEFT_OUT, Shell
from tests.host.e2e.support import KEY

PAGE = page("first-hour-libvirt")
WEB1 = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
WEB2 = "9b1d5f0e-2c63-4d51-8f0a-5b1f6a7c8d03"
LEASES = {"web1": "192.168.150.11/24", "web2": "192.168.150.12/24"}
"""What dnsmasq would give."""
BROUGHT_BACK = ("/run/hello", "/run/cloud-init/result.json")
_SERIAL = re.compile(r"<entry name='serial'>ds=nocloud-net;s=(.*)/nocloud/</entry>")


class Host(Shell):
    """A host without a bridge.

    :ivar domains: those that libvirt knows, by name: their XML.
    """

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack, stack.enter_context(OpenvSwitch(bridges=())))
        self.stack = stack
        self.domains: dict[str, str] = {}
        self.booted: dict[str, Boot] = {}
        self.libvirt = [self.folder / "libvirt" / name for name in ("run", "etc")]
        for path in self.libvirt:
            path.mkdir(parents=True)
        self.agent.configure(
            {"df_metadata": {"libvirt_xml_path": ",".join(map(str, self.libvirt))}}
        )
        (self.folder / "root/.ssh/id_ed25519.pub").write_text(f"{KEY}\n")

    def type(self, step: Step) -> str:
        """What a command prints; it has to succeed."""
        for pattern, does in STAND_INS.items():
            if match := re.fullmatch(pattern, step.command):
                does(self, *match.groups())
                return LEFT_OUT if step.shown else ""
        return super().type(step)

    def within(self, name: str, command: str) -> str:
        """What a command prints in a guest whose cloud-init has ended."""
        if command == "hostname":
            return self.booted[name].hostname
        if command.startswith("cat "):
            return self.booted[name].files[command.removeprefix("cat ")]
        assert command.startswith("curl -s ")
        return self.guests[name].namespace.run(shlex.split(command)).stdout

    def nothing(self) -> None:
        """Others' business."""

    def add_bridge(self) -> None:
        """Make it with the datapath of the tests, which is in user space."""
        self.switch.add_bridge(BRIDGE)

    def define(self, name: str) -> None:
        """virsh define."""
        path = self.folder / "source" / f"{name}.xml"
        if not path.exists():
            text = path.with_name("web1.xml").read_text()
            path.write_text(text.replace("web1", name).replace(WEB1, WEB2))
        self.domains[name] = path.read_text()
        libvirt.write(self.libvirt[1], name, self.domains[name])

    def start(self, name: str) -> None:
        """virsh start, as far as Open vSwitch and the guest see it; web1's cloud-init runs."""
        text = self.domains[name]
        interface = ElementTree.fromstring(text).find("devices/interface")
        assert interface is not None
        request = {element.tag: element.attrib for element in interface}
        assert (request["source"], request["virtualport"]) == (
            {"bridge": BRIDGE},
            {"type": "openvswitch"},
        )
        libvirt.write(self.libvirt[0], name, libvirt.status(text))
        guest = self.guests[name] = self.plug(name, parse(text.encode()).instance_id, request)
        wait_for(lambda: f'"{guest.port}"' in self.agent.admin("/ports").text, "the port")
        if name == "web1":
            serial = _SERIAL.search(text)
            assert serial is not None
            booting = Booting(guest.namespace, mode="NoCloud", url=serial[1], files=BROUGHT_BACK)
            self.stack.callback(booting.close)
            boot = self.booted[name] = booting.finish()
            assert (boot.errors, boot.authorized_keys.strip()) == ([], KEY)

    def plug(self, name: str, instance: str, asked: Mapping[str, Mapping[str, str]]) -> Guest:
        """Give a domain its device, with what libvirt writes of it."""
        guest = Guest(
            self.switch,
            name,
            address=LEASES[name],
            mac=asked["mac"]["address"],
            route="gateway",
            ids=Ids(iface_id=uuid_of(name), extra={"vm-id": instance}),
            plug=False,
        )
        self.stack.enter_context(guest)
        device = f"vnet{len(self.guests)}"
        rename = (f"link set {guest.port} down", f"link set {guest.port} name {device}")
        self.switch.namespace.ip(*rename, f"link set {device} up")
        guest.port = device
        guest.plug()
        return guest


STAND_INS: Mapping[str, Callable[..., None]] = {
    r"apt-get install .*": Host.nothing,
    rf"ovs-vsctl --may-exist add-br {BRIDGE}": Host.add_bridge,
    r"dnsmasq .*": Host.nothing,
    r"virsh define (\w+)\.xml": Host.define,
    r"virsh start (\w+)": Host.start,
}
"""What cannot run here, and what is done in its place."""


@pytest.fixture
def operator() -> Iterator[Host]:
    with ExitStack() as stack:
        yield Host(stack)


def test_a_libvirt_host_prints_what_the_page_shows(operator: Host) -> None:
    operator.names["VERSION"] = "0.1.0"
    for block in blocks(PAGE):
        operator.read(block)
    assert untyped("first-hour-libvirt", operator.typed) == []
    assert list((operator.folder / "opt").iterdir()) == []
