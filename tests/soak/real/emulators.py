"""What runs the kernel of a virtual machine: QEMU, or user-mode Linux.

QEMU emulates a CPU (TCG) or uses hardware virtualization, and runs a distribution's own kernel.
User-mode Linux is a kernel that is a process of this machine. Its programs run on the real CPU;
their system calls are slow, some 20 µs each.
"""

import abc
import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.netns import ROOT, Namespace, run

_QUIET = "root={root} rw net.ifnames=0 mitigations=off audit=0 quiet"


@dataclass(frozen=True)
class Boot:
    """How a machine boots."""

    folder: Path
    """Of the machine: its overlay and sockets."""
    image: Path
    """The disk, which the machine does not change. The kernel is beside it."""
    memory: int
    """In MiB."""
    arguments: str
    """More words for the kernel's command line."""


class Emulator(abc.ABC):
    """A way to run a machine."""

    name: str
    """As in ``DFMETA_TEST_MACHINE``."""
    packages = ""
    """What the disk needs for it, with the kernel."""
    ssh: tuple[str, int]
    """Where the machine's ssh is, in the machine's namespace."""

    @property
    def suffix(self) -> str:
        """End of the name of a base that only this emulator can boot."""
        return ""

    def definition(self) -> tuple[str, ...]:
        """What the content of a base depends on, besides the packages."""
        return ()

    @abc.abstractmethod
    def complete(self, tree: Path) -> None:
        """Add to the root file system *tree* what is not in packages of its distribution."""

    @abc.abstractmethod
    def take_kernel(self, tree: Path, folder: Path) -> None:
        """Copy the kernel of *tree* to *folder*, where the image will be."""

    @abc.abstractmethod
    def prepare(self, boot: Boot, namespace: Namespace) -> None:
        """Make what the machine needs before its first start."""

    @abc.abstractmethod
    def command(self, boot: Boot) -> list[str]:
        """Return the command that runs the machine. Its output is the console."""

    @abc.abstractmethod
    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End all processes of the machine; *process* is that of :meth:`command`."""

    @abc.abstractmethod
    def runs(self, boot: Boot) -> bool:
        """Return whether the emulator itself, not a program in the machine, says that it runs."""


class Qemu(Emulator):
    """QEMU's machine, with its user-mode network."""

    packages = "initramfs-tools linux-image-cloud-amd64"
    ssh = ("127.0.0.1", 2222)
    _CPU = "Nehalem"
    """A CPU without AVX: a system chooses AVX where it can, and QEMU emulates that slowly."""

    def __init__(self, *, kvm: bool = False) -> None:
        """:param kvm: use hardware virtualization instead of emulation."""
        self.name = "kvm" if kvm else "qemu"
        self._accelerator = "kvm" if kvm else "tcg,thread=multi,tb-size=256"
        self._cpu = "host" if kvm else self._CPU

    def complete(self, tree: Path) -> None:
        """Nothing: the packages have all."""

    def take_kernel(self, tree: Path, folder: Path) -> None:
        """Take the distribution's."""
        kernel_of(tree, folder)

    def prepare(self, boot: Boot, namespace: Namespace) -> None:
        """Make the overlay."""
        overlay = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b"]
        run([*overlay, str(boot.image), str(boot.folder / "overlay")])

    def command(self, boot: Boot) -> list[str]:
        """The serial line is the standard output."""
        host, port = self.ssh
        arguments = f"{_QUIET.format(root='/dev/vda')} console=ttyS0 {boot.arguments}"
        return [
            # An emulated CPU that shares its core with other work is too slow for systemd's limits.
            *("nice", "-n", "-5"),
            "qemu-system-x86_64",
            *("-accel", self._accelerator, "-cpu", self._cpu),
            *("-smp", "1", "-m", str(boot.memory)),
            *("-nodefaults", "-no-user-config", "-nographic", "-no-reboot"),
            *("-kernel", str(boot.image.parent / "vmlinuz")),
            *("-initrd", str(boot.image.parent / "initrd.img")),
            *("-append", arguments.rstrip()),
            *("-drive", f"file={boot.folder}/overlay,if=virtio,format=qcow2,cache=unsafe"),
            *("-netdev", f"user,id=u,restrict=on,hostfwd=tcp:{host}:{port}-:22"),
            *("-device", "virtio-net-pci,netdev=u,romfile="),
            *("-device", "virtio-rng-pci"),
            *("-serial", "stdio"),
            *("-qmp", f"unix:{boot.folder}/qmp,server=on,wait=off"),
        ]

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """QEMU is one process."""
        process.kill()

    def runs(self, boot: Boot) -> bool:
        """Ask by QEMU's machine protocol."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            try:
                connection.connect(str(boot.folder / "qmp"))
            except FileNotFoundError:
                return False
            stream = connection.makefile("rw")
            stream.readline()
            for command in ("qmp_capabilities", "query-status"):
                stream.write(json.dumps({"execute": command}))
                stream.flush()
                answer: Any = {"event": ""}
                while "event" in answer:
                    answer = json.loads(stream.readline())
            return bool(answer["return"]["running"])


class UserMode(Emulator):
    """User-mode Linux (Debian's package), with a tap device in the machine's namespace."""

    name = "uml"
    ssh = ("10.0.2.15", 22)
    _PACKAGE = ROOT / ".cache/uml"
    """``tools/setup.sh --real`` unpacks it, where the release has it."""
    _PROGRAM = _PACKAGE / "usr/bin/linux.uml"
    _MODULES = _PACKAGE / "usr/lib/uml/modules"
    _TAP = "machine"
    _ASKED = struct.Struct("=III512s")
    """A request of mconsole: magic number, version, length of the command, the command."""

    @property
    def suffix(self) -> str:
        """Its base has no kernel of the distribution."""
        return f"-{self.name}"

    def definition(self) -> tuple[str, ...]:
        """The versions of the kernel's modules."""
        return tuple(sorted(path.name for path in self._MODULES.iterdir()))

    def complete(self, tree: Path) -> None:
        """Add the kernel's modules."""
        shutil.copytree(self._MODULES, tree / "lib/modules", symlinks=True)

    def take_kernel(self, tree: Path, folder: Path) -> None:
        """The kernel is the program that runs."""

    def prepare(self, boot: Boot, namespace: Namespace) -> None:
        """Make the tap device. The overlay is made at the first start."""
        namespace.ip(
            f"tuntap add dev {self._TAP} mode tap",
            f"address add 10.0.2.2/24 dev {self._TAP}",
            f"link set {self._TAP} up",
        )

    def command(self, boot: Boot) -> list[str]:
        """All processes of the machine end with the first one, whatever ends it."""
        return [
            # The machine's memory is a file without a name in this directory.
            *("env", "TMPDIR=/dev/shm"),
            *("unshare", "--pid", "--fork", "--kill-child"),
            *(str(self._PROGRAM), f"mem={boot.memory}M"),
            f"ubd0={boot.folder}/overlay,{boot.image}",
            # Programs in the machine can mount no other directory of the host.
            f"hostfs={boot.folder}",
            *(f"uml_dir={boot.folder}", f"umid={self.name}"),
            f"vec0:transport=tap,ifname={self._TAP}",
            *("con=null", "con0=null,fd:1"),
            *_QUIET.format(root="/dev/ubda").split(),
            # 512 devices that udev would have to handle.
            "pty.legacy_count=0",
            *boot.arguments.split(),
        ]

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the first process inside; unshare(1) ends when all have ended with it."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in map(int, children or [str(process.pid)]):
            os.kill(pid, signal.SIGKILL)

    def runs(self, boot: Boot) -> bool:
        """Ask by mconsole, which answers from the kernel."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.settimeout(60)
            answers = boot.folder / "answers"
            answers.unlink(missing_ok=True)
            connection.bind(str(answers))
            command = b"version"
            request = self._ASKED.pack(0xCAFEBABE, 2, len(command), command)
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                connection.sendto(request, str(boot.folder / self.name / "mconsole"))
                failed, _more, _length = struct.unpack_from("=III", connection.recv(4096))
                return not failed
        return False


EMULATORS: dict[str, Emulator] = {
    emulator.name: emulator for emulator in (Qemu(), Qemu(kvm=True), UserMode())
}
USUAL = EMULATORS["qemu"]


def kernel_of(tree: Path, folder: Path) -> None:
    """Copy the newest kernel in *tree* and its initrd to *folder*, as vmlinuz and initrd.img."""
    for name in ("vmlinuz", "initrd.img"):
        shutil.copy(max((tree / "boot").glob(f"{name}-*")), folder / name)
