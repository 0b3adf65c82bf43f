"""Virtual machines, and ssh into them.

:mod:`tests.soak.real.emulators` runs them. A machine is in a namespace of its own and reaches
nothing
outside of it; everything is removed when the creating process ends.
"""

import contextlib
import shlex
import shutil
import subprocess
from typing import Self

from tests.harness import netns
from tests.harness.closing import Closing
from tests.harness.netns import CommandError
from tests.harness.poll import wait_for
from tests.soak.real.emulators import Boot
from tests.soak.real.images import Disk

BOOT_TIMEOUT = 900
"""Maximum seconds from the start of the emulator to the first command, on a busy machine."""
LIMIT = 900
"""Maximum seconds of a command, on a busy machine."""
_SSH = "-q -F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes"
_KEPT = "-o ControlMaster=auto -o ControlPersist=yes -o ServerAliveInterval=30"


class Machine(Closing):
    """A virtual machine with one CPU; a context manager that ends it and removes its changes.

    Its disk is an overlay: several machines can boot from one :class:`Disk`.
    """

    def __init__(self, disk: Disk, *, memory: int = 1024, arguments: str = "") -> None:
        """Make the overlay; :meth:`start` boots the machine.

        :param memory: memory in MiB.
        :param arguments: more words for the kernel's command line.
        """
        self._disk = disk
        self._emulator = disk.emulator
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()
        self.namespace = self._stack.enter_context(netns.Namespace("machine"))
        self.folder = netns.temporary_folder("machine")
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._stack.callback(self.cut)
        self._boot = Boot(self.folder, disk.image, memory, arguments)
        try:
            self._emulator.prepare(self._boot, self.namespace)
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
        command = self._emulator.command(self._boot)
        with (self.folder / "console.log").open("wb") as console:
            self._process = self.namespace.spawn(command, stdout=console, stderr=subprocess.STDOUT)
        return self

    def start(self) -> Self:
        """Boot, and wait until the machine accepts commands."""
        self.power_on()
        try:
            wait_for(self._has_booted, "the machine to boot", deadline=BOOT_TIMEOUT, interval=0.5)
        except TimeoutError as error:
            raise RuntimeError(f"{error}:\n{self.console()}") from None
        return self

    @property
    def running(self) -> bool:
        """Return whether the emulator runs."""
        return self._process is not None and self._process.poll() is None

    def power_off(self) -> None:
        """Run ``systemctl poweroff``, as an operator does, and wait for the end."""
        self.run("systemctl poweroff", check=False)
        self._ended()

    def cut(self) -> None:
        """Cut the machine's power."""
        if self.running and self._process is not None:
            self._emulator.kill(self._process)
            self._process.wait(60)
        self._process = None

    def console(self, lines: int = 60) -> str:
        """Return the end of the output on the console, with errors of the emulator."""
        with contextlib.suppress(FileNotFoundError):
            text = (self.folder / "console.log").read_text(errors="replace")
            return "\n".join(text.splitlines()[-lines:])
        return ""

    def answers(self) -> bool:
        """Return whether the emulator, not a program in the machine, says that the machine runs."""
        return self._emulator.runs(self._boot)

    # Inside

    def run(
        self, command: str, *, check: bool = True, timeout: float = LIMIT, stdin: str | None = None
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

    def _ssh(self) -> list[str]:
        host, port = self._emulator.ssh
        control = ["-o", f"ControlPath={self.folder}/ssh", "-p", str(port)]
        where = ["-i", str(self._disk.key), f"root@{host}"]
        return ["ssh", *_SSH.split(), *_KEPT.split(), *control, *where]

    def _has_booted(self) -> bool:
        if not self.running:
            raise RuntimeError(f"the emulator ended:\n{self.console()}")
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
