"""A libvirt host: Open vSwitch in user space, dnsmasq, libvirt and dfmeta-agent, with real guests.

Its programs run in a copy of a distribution's files, in namespaces of their own; nothing is
installed. Guests run in QEMU with an emulated CPU, because the host has no /dev/kvm.
"""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dfmeta.doctor.checks_guests import DRIVER
from tests.harness import netns
from tests.harness.closing import Closing
from tests.harness.poll import wait_for
from tests.soak.real.libvirt_images import GuestDisk

START = 120
"""Maximum seconds until a program of the host answers, on a busy machine."""
LIMIT = 120
"""Maximum seconds of a command."""
ADMIN = "http://127.0.0.1:9697"
_BOOT = "/var/lib/libvirt/boot"
"""Directory of the guests' kernel and disk on the host."""
_LOGS = "/var/log/consoles"
_CMDLINE = "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off audit=0 quiet"
_QEMU_CONF = """\
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
namespaces = []
remember_owner = 0
"""
_LIBVIRTD_CONF = """\
auth_unix_ro = "none"
auth_unix_rw = "none"
"""
_ENVIRONMENT = ("PATH=/opt/dfmeta/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8")
# Without this machine's /dev: with /dev/kvm, libvirt would probe its features.
_ENTER = """
tree=$1 boot=$2
mount -t proc proc "$tree/proc"
mount --rbind /sys "$tree/sys"
mount -t tmpfs tmpfs "$tree/run"
mount -t tmpfs tmpfs "$tree/dev"
mkdir "$tree/dev/net" "$tree/dev/pts" "$tree/dev/shm"
for device in full net/tun null random tty urandom zero; do
    : > "$tree/dev/$device"
    mount --bind "/dev/$device" "$tree/dev/$device"
done
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$tree/dev/pts"
ln -s pts/ptmx "$tree/dev/ptmx"
ln -s /proc/self/fd "$tree/dev/fd"
mkdir -p "$tree/var/lib/libvirt/boot"
mount --bind "$boot" "$tree/var/lib/libvirt/boot"
mkdir "$tree/run/openvswitch" "$tree/run/entered"
exec chroot "$tree" /bin/sleep infinity
"""
_SWITCH = """
cd /run/openvswitch
ovsdb-tool create /etc/openvswitch/real.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server /etc/openvswitch/real.db --remote=punix:/run/openvswitch/db.sock \\
    --pidfile --detach --log-file
ovs-vsctl --no-wait init
ovs-vswitchd --pidfile --detach --log-file
ovs-vsctl --may-exist add-br br-int -- set Bridge br-int datapath_type=netdev
"""
_LIBVIRT = """
virtlogd -d
libvirtd -d
"""


class Libvirt(Closing):
    """The libvirt host; a context manager that ends it with its guests.

    The bridge exists from the start; :meth:`start_agent` starts dfmeta.
    """

    def __init__(self, tree: Path, guest: GuestDisk) -> None:
        """:param tree: the result of :func:`tests.soak.real.libvirt_images.host`."""
        self.tree = tree
        self._guest = guest
        self._stack = contextlib.ExitStack()
        self.namespace = self._stack.enter_context(netns.Namespace("libvirt"))
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill all programs of the host, including its guests. Idempotent."""
        self._stack.close()

    def _start(self) -> None:
        (self.tree / "etc/libvirt/qemu.conf").write_text(_QEMU_CONF)
        (self.tree / "etc/libvirt/libvirtd.conf").write_text(_LIBVIRTD_CONF)
        (self.tree / _LOGS[1:]).mkdir(parents=True, exist_ok=True)
        script = ["sh", "-euc", _ENTER, "sh", str(self.tree), str(self._guest.image.parent)]
        self._keeper = self.namespace.spawn(["unshare", "--mount", *script])
        self._stack.callback(netns.end, self._keeper)
        inside = Path("/proc", str(self._keeper.pid), "root/run/entered")
        wait_for(lambda: inside.exists() or self._keeper.poll(), "the chroot", deadline=START)
        self.shell(_SWITCH)
        self.shell(_LIBVIRT)
        wait_for(self._libvirt_answers, "libvirtd", deadline=START, interval=0.5)

    # Programs of the host

    def command(self, *command: str) -> list[str]:
        """Return the command that runs *command* on this host."""
        enter = ["nsenter", f"--target={self._keeper.pid}", "--mount", "--net", "--root", "--wd"]
        return [*enter, "/usr/bin/env", "-i", *_ENVIRONMENT, *command]

    def run(
        self, *command: str, check: bool = True, stdin: str | None = None, timeout: float = LIMIT
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this host.

        :raises netns.CommandError: the command failed, unless ``check`` is false.
        """
        return netns.run(self.command(*command), check=check, stdin=stdin, timeout=timeout)

    def shell(self, script: str) -> str:
        """Run lines of shell up to the first failure, and return their output."""
        # The output goes to a file, because daemons that the script starts keep it open.
        output = self.tree / "var/log/shell"
        try:
            self.run("sh", "-euc", f"exec > /var/log/shell 2>&1\n{script}")
        except netns.CommandError as error:
            raise RuntimeError(f"{error}\n{output.read_text()}") from None
        return output.read_text()

    def virsh(self, *arguments: str, check: bool = True) -> str:
        """Run ``virsh``, and return its output."""
        return self.run("virsh", "--quiet", *arguments, check=check).stdout

    def dfmeta(self, *arguments: str, check: bool = True) -> str:
        """Run ``dfmeta``, and return its output."""
        return self.run("dfmeta", *arguments, check=check).stdout

    def configure(self, text: str) -> None:
        """Write /etc/dfmeta/dfmeta.conf."""
        folder = self.tree / "etc/dfmeta"
        folder.mkdir(exist_ok=True)
        (folder / "dfmeta.conf").write_text(text)

    def start_agent(self) -> None:
        """Start dfmeta-agent with /etc/dfmeta/dfmeta.conf, and wait until it is ready."""
        with (self.tree / "var/log/dfmeta-agent.log").open("ab") as log:
            agent = netns.spawn(self.command("dfmeta-agent"), stdout=log, stderr=log)
        self._stack.callback(netns.end, agent)

        def ready() -> bool:
            if agent.poll() is not None:
                raise RuntimeError(f"dfmeta-agent ended:\n{self.agent_log()}")
            request = self.run("curl", "-sf", f"{ADMIN}/healthz/readiness", check=False)
            return request.returncode == 0

        wait_for(ready, "dfmeta-agent to be ready", deadline=START, interval=0.5)

    def agent_log(self) -> str:
        """Return dfmeta-agent's log."""
        return (self.tree / "var/log/dfmeta-agent.log").read_text()

    def ports(self) -> dict[str, dict[str, Any]]:
        """Return the daemon's ports, by device."""
        rows = json.loads(self.run("curl", "-sf", f"{ADMIN}/ports").stdout)
        return {row["port"]: row for row in rows}

    # Guests

    def define(self, xml: str) -> str:
        """Define a domain with a disk of its own; return its name.

        :param xml: the result of :func:`emulated`.
        """
        domain = ElementTree.fromstring(xml)
        name = domain.findtext("name", "")
        disk = domain.find("devices/disk/source")
        assert disk is not None
        overlay = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw"]
        self.run(*overlay, "-b", f"{_BOOT}/{self._guest.image.name}", disk.attrib["file"])
        self.virsh("define", self.write(f"{name}.xml", xml))
        return name

    def write(self, name: str, text: str) -> str:
        """Write a file in root's home, and return its path on the host."""
        (self.tree / "root" / name).write_text(text)
        return f"/root/{name}"

    def emulated(self, xml: str, *, offload: bool = False) -> str:
        """Change a domain for KVM to an emulated CPU, and add the element that doctor recommends.

        :param offload: leave checksum offload on, which is libvirt's default.
        """
        domain = ElementTree.fromstring(xml)
        domain.set("type", "qemu")
        ElementTree.SubElement(domain, "cpu", mode="maximum")
        system = _element(domain, "os")
        for tag, text in (
            ("kernel", f"{_BOOT}/{self._guest.kernel.name}"),
            ("initrd", f"{_BOOT}/{self._guest.initrd.name}"),
            ("cmdline", _CMDLINE),
        ):
            ElementTree.SubElement(system, tag).text = text
        # By default QEMU keeps 1 GiB of translated code.
        cache = ElementTree.SubElement(_element(domain, "features"), "tcg")
        ElementTree.SubElement(cache, "tb-cache", unit="MiB").text = "256"
        devices = _element(domain, "devices")
        devices.remove(_element(devices, "console"))
        name = domain.findtext("name", "")
        serial = ElementTree.SubElement(devices, "serial", type="unix")
        ElementTree.SubElement(serial, "source", mode="bind", path=f"/run/{name}.console")
        ElementTree.SubElement(serial, "log", file=f"{_LOGS}/{name}", append="on")
        for interface in () if offload else devices.findall("interface"):
            interface.append(ElementTree.fromstring(DRIVER))
        return ElementTree.tostring(domain, encoding="unicode")

    def console(self, name: str) -> str:
        """Return the output of a domain on its serial line."""
        with contextlib.suppress(FileNotFoundError):
            return (self.tree / _LOGS[1:] / name).read_text(errors="replace")
        return ""

    def device(self, name: str) -> str:
        """Return the name of a running domain's port."""
        described = self.virsh("dumpxml", name)
        target = ElementTree.fromstring(described).find("devices/interface/target")
        assert target is not None
        return target.attrib["dev"]

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Suspend the running guests during the block, to leave the CPUs to another guest."""
        names = self.virsh("list", "--name").split()
        for name in names:
            self.virsh("suspend", name)
        try:
            yield
        finally:
            for name in names:
                self.virsh("resume", name)

    def consoles(self) -> list[str]:
        """Return the domains that have written to their serial lines."""
        return sorted(path.name for path in (self.tree / _LOGS[1:]).iterdir())

    def remove(self, name: str) -> None:
        """Cut the power of a domain, and remove the domain and its disk."""
        self.virsh("destroy", name, check=False)
        self.virsh("undefine", name, check=False)
        for path in (self.tree / "var/lib/libvirt/images").glob(f"{name}.*"):
            path.unlink()

    def _libvirt_answers(self) -> bool:
        return self.run("virsh", "version", check=False).returncode == 0


def _element(parent: ElementTree.Element, tag: str) -> ElementTree.Element:
    result = parent.find(tag)
    assert result is not None
    return result
