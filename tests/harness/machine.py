"""Virtual machines: QEMU with an emulated CPU, and ssh into them.

Emulation (TCG) is the same everywhere and some fifteen times slower than the machine below it;
``kvm=True`` is for a machine of one's own. QEMU runs in a namespace of its own and reaches nothing
outside of it; all goes with the process that made it.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import socket
import subprocess
from types import TracebackType
from typing import Any, Self

from tests.harness import netns
from tests.harness.images import Disk
from tests.harness.netns import CommandError
from tests.harness.poll import wait_for

BOOT_TIMEOUT = 300
"""Seconds from the start of QEMU to a first command, on a busy machine."""
LIMIT = 300
"""Seconds that a command may take, on a busy machine."""
_SSH = "-q -F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes"
_KEPT = "-o ControlMaster=auto -o ControlPersist=yes -o ServerAliveInterval=30"
_PORT = 2222


class Machine:
    """A virtual machine with one CPU; a context manager that ends it and removes its changes.

    Its disk is an overlay: several machines can boot from one :class:`Disk`.
    """

    def __init__(self, disk: Disk, *, memory: int = 1024, kvm: bool = False) -> None:
        """Make the overlay; :meth:`start` boots.

        :param memory: MiB.
        :param kvm: hardware virtualization instead of emulation.
        """
        self._disk = disk
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cut its power; remove its disk's changes. Idempotent."""
        self._stack.close()

    # Life

    def power_on(self) -> Self:
        """Begin to boot."""
        if self.running:
            raise RuntimeError("the machine runs already")
        self._process = self.namespace.spawn(self._command())
        return self

    def start(self) -> Self:
        """Boot, and wait until it takes commands."""
        self.power_on()
        try:
            wait_for(self._answers, BOOT_TIMEOUT, "the machine to boot", interval=0.5)
        except TimeoutError as error:
            raise RuntimeError(f"{error}:\n{self.console()}") from None
        return self

    @property
    def running(self) -> bool:
        """Whether QEMU runs."""
        return self._process is not None and self._process.poll() is None

    def power_off(self) -> None:
        """``systemctl poweroff``, as an operator does it; waits for the end."""
        self.run("systemctl poweroff", check=False)
        self._ended()

    def cut(self) -> None:
        """Take its power away."""
        if self.running and self._process is not None:
            self._process.kill()
            self._process.wait(10)
        self._process = None

    def console(self, lines: int = 60) -> str:
        """The end of what it wrote on its serial line."""
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
        """A line of shell as root.

        :raises CommandError: it failed, unless ``check`` is false.
        """
        return netns.run(
            self.namespace.command([*self._ssh(), command]),
            check=check,
            timeout=timeout,
            stdin=stdin,
        )

    def text(self, command: str, *, timeout: float = LIMIT) -> str:
        """What a line of shell prints, without the end of the last line."""
        return self.run(command, timeout=timeout).stdout.rstrip("\n")

    def spawn(self, command: str) -> subprocess.Popen[bytes]:
        """Start a line of shell; its output can be read."""
        return self.namespace.spawn([*self._ssh(), command], stdout=subprocess.PIPE)

    def write(self, path: str, content: str) -> None:
        """A file of root's."""
        quoted = shlex.quote(path)
        self.run(f"mkdir -p $(dirname {quoted}) && cat > {quoted}", stdin=content)

    # Below

    def qmp(self, command: str, **arguments: Any) -> Any:
        """A command to QEMU itself (its machine protocol)."""
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
        arguments = "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off audit=0 quiet"
        overlay = self.folder / "overlay"
        forward = f"hostfwd=tcp:127.0.0.1:{_PORT}-:22"
        return [
            "qemu-system-x86_64",
            *("-accel", self._accelerator, "-cpu", "host" if self._hardware else "max"),
            *("-smp", "1", "-m", str(self._memory)),
            *("-nodefaults", "-no-user-config", "-nographic", "-no-reboot"),
            *("-kernel", str(self._disk.kernel), "-initrd", str(self._disk.initrd)),
            *("-append", arguments),
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
