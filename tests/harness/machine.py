"""Virtual machines: QEMU with an emulated CPU, and ssh into them.

Emulation (TCG) is the same everywhere, and some fifteen times slower than the underlying machine;
``kvm=True`` is for a developer's own machine. QEMU runs in a namespace of its own and reaches
nothing outside of it; everything is removed when the creating process ends.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import socket
import subprocess
from typing import Any, Self

from tests.harness import netns
from tests.harness.closing import Closing
from tests.harness.images import Disk
from tests.harness.netns import CommandError
from tests.harness.poll import wait_for

BOOT_TIMEOUT = 900
"""Maximum seconds from the start of QEMU to the first command, on a busy machine."""
LIMIT = 900
"""Maximum seconds of a command, on a busy machine."""
_SSH = "-q -F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes"
_KEPT = "-o ControlMaster=auto -o ControlPersist=yes -o ServerAliveInterval=30"
_PORT = 2222
_ARGUMENTS = "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off audit=0 quiet"
_EMULATED = "Nehalem"
"""A CPU without AVX: a system chooses AVX where it can, and QEMU emulates that slowly."""


class Machine(Closing):
    """A virtual machine with one CPU; a context manager that ends it and removes its changes.

    Its disk is an overlay: several machines can boot from one :class:`Disk`.
    """

    def __init__(
        self, disk: Disk, *, memory: int = 1024, kvm: bool = False, arguments: str = ""
    ) -> None:
        """Make the overlay; :meth:`start` boots the machine.

        :param memory: memory in MiB.
        :param kvm: use hardware virtualization instead of emulation.
        :param arguments: more words for the kernel's command line.
        """
        self._disk = disk
        self._arguments = f"{_ARGUMENTS} {arguments}".rstrip()
        self._memory = memory
        self._accelerator = "kvm" if kvm else "tcg,thread=multi,tb-size=256"
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()
        self.namespace = self._stack.enter_context(netns.Namespace("machine"))
        self.folder = netns.temporary_folder("machine")
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._stack.callback(self.cut)
        overlay = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b"]
        try:
            netns.run([*overlay, str(disk.image), str(self.folder / "overlay")])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cut the machine's power, and remove the changes of its disk. Idempotent."""
        self._stack.close()

    # Life

    def power_on(self) -> Self:
        """Start to boot, without waiting."""
        if self.running:
            raise RuntimeError("the machine runs already")
        self._process = self.namespace.spawn(self._command())
        return self

    def start(self) -> Self:
        """Boot, and wait until the machine accepts commands."""
        self.power_on()
        try:
            wait_for(self._answers, BOOT_TIMEOUT, "the machine to boot", interval=0.5)
        except TimeoutError as error:
            raise RuntimeError(f"{error}:\n{self.console()}") from None
        return self

    @property
    def running(self) -> bool:
        """Return whether QEMU runs."""
        return self._process is not None and self._process.poll() is None

    def power_off(self) -> None:
        """Run ``systemctl poweroff``, as an operator does, and wait for the end."""
        self.run("systemctl poweroff", check=False)
        self._ended()

    def cut(self) -> None:
        """Cut the machine's power."""
        if self.running and self._process is not None:
            self._process.kill()
            self._process.wait(10)
        self._process = None

    def console(self, lines: int = 60) -> str:
        """Return the end of the output on the serial line."""
        with contextlib.suppress(FileNotFoundError):
            text = (self.folder / "console.log").read_text(errors="replace")
            return "\n".join(text.splitlines()[-lines:])
        return ""

    # Inside

    def run(
        self,
        command: str,
        *,
        check: bool = True,
        timeout: float = LIMIT,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a line of shell as root.

        :raises CommandError: the command failed, unless ``check`` is false.
        """
        return netns.run(
            self.namespace.command([*self._ssh(), command]),
            check=check,
            timeout=timeout,
            stdin=stdin,
        )

    def text(self, command: str, *, timeout: float = LIMIT) -> str:
        """Run a line of shell, and return its output without the end of the last line."""
        return self.run(command, timeout=timeout).stdout.rstrip("\n")

    def spawn(self, command: str) -> subprocess.Popen[bytes]:
        """Start a line of shell; the caller can read its output."""
        return self.namespace.spawn([*self._ssh(), command], stdout=subprocess.PIPE)

    def write(self, path: str, content: str) -> None:
        """Write a file as root."""
        quoted = shlex.quote(path)
        self.run(f"mkdir -p $(dirname {quoted}) && cat > {quoted}", stdin=content)

    # QEMU

    def qmp(self, command: str, **arguments: Any) -> Any:
        """Send a command to QEMU itself (its machine protocol), and return the answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(self.folder / "qmp"))
            stream = connection.makefile("rw")
            stream.readline()
            for line in ({"execute": "qmp_capabilities"}, _request(command, arguments)):
                stream.write(json.dumps(line))
                stream.flush()
                while "event" in (answer := json.loads(stream.readline())):
                    pass
            if "error" in answer:
                raise RuntimeError(f"{command}: {answer['error']['desc']}")
            return answer["return"]

    def _command(self) -> list[str]:
        overlay = self.folder / "overlay"
        forward = f"hostfwd=tcp:127.0.0.1:{_PORT}-:22"
        return [
            # An emulated CPU that shares its core with other work is too slow for systemd's limits.
            *("nice", "-n", "-5"),
            "qemu-system-x86_64",
            *("-accel", self._accelerator, "-cpu", "host" if self._hardware else _EMULATED),
            *("-smp", "1", "-m", str(self._memory)),
            *("-nodefaults", "-no-user-config", "-nographic", "-no-reboot"),
            *("-kernel", str(self._disk.kernel), "-initrd", str(self._disk.initrd)),
            *("-append", self._arguments),
            *("-drive", f"file={overlay},if=virtio,format=qcow2,cache=unsafe"),
            *("-netdev", f"user,id=u,restrict=on,{forward}"),
            *("-device", "virtio-net-pci,netdev=u,romfile="),
            *("-device", "virtio-rng-pci"),
            *("-serial", f"file:{self.folder}/console.log"),
            *("-qmp", f"unix:{self.folder}/qmp,server=on,wait=off"),
        ]

    @property
    def _hardware(self) -> bool:
        return self._accelerator == "kvm"

    def _ssh(self) -> list[str]:
        control = ["-o", f"ControlPath={self.folder}/ssh", "-p", str(_PORT)]
        where = ["-i", str(self._disk.key), "root@127.0.0.1"]
        return ["ssh", *_SSH.split(), *_KEPT.split(), *control, *where]

    def _answers(self) -> bool:
        if not self.running:
            raise RuntimeError(f"QEMU ended:\n{self.console()}")
        with contextlib.suppress(CommandError, subprocess.TimeoutExpired):
            self.run("true", timeout=20)
            return True
        return False

    def _ended(self) -> None:
        if self._process is None:
            raise RuntimeError("the machine has not been started")
        self._process.wait(BOOT_TIMEOUT)
        self._process = None
        (self.folder / "ssh").unlink(missing_ok=True)


def _request(command: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"execute": command, "arguments": arguments} if arguments else {"execute": command}
