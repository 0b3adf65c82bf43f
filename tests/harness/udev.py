"""Debian's udev in namespaces of its own: rules, database, /dev, interfaces.

``udevadm`` and ``systemd-udevd`` run from .cache/root in a network namespace and a mount namespace,
where /run, /dev and /etc/udev are new and empty and the distribution's own rules are hidden. udevd
gets the events of all block devices of the real machine; its results are removed with the
namespace.
"""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.harness import netns
from tests.harness.closing import Closing
from tests.harness.ovs import UNPACKED
from tests.harness.poll import wait_for

RULES = "/etc/udev/rules.d"
_PROGRAM = next(
    (UNPACKED / path for path in ("bin/udevadm", "usr/bin/udevadm") if (UNPACKED / path).exists()),
    UNPACKED / "bin/udevadm",
)
_SCRIPT = r"""
mkdir "$folder/etc"
# To make a file on a disk may take a hundred times as long as in memory.
mount -t tmpfs tmpfs "$folder/etc"
cp -a /etc/. "$folder/etc"
rm -rf "$folder/etc/udev"
mkdir -p "$folder/etc/udev/rules.d" "$folder/bin"
mount --bind "$folder/etc" /etc
for rules in /lib/udev /usr/lib/udev /usr/local/lib/udev; do
    if [ -d "$rules" ]; then mount -t tmpfs tmpfs "$rules"; fi
done
mount -t tmpfs tmpfs /run
mkdir -p /run/udev
mkdir "$folder/dev"
for node in null zero full random urandom loop-control loop0 loop1 loop2 loop3 loop4 loop5; do
    cp -a "/dev/$node" "$folder/dev/"
done
mount --bind "$folder/dev" /dev
if [ -n "$sysfs" ]; then mount --rbind "$sysfs" /sys; fi
ln -s "$program" "$folder/bin/udevadm"
ln -s "$program" "$folder/bin/systemd-udevd"
touch "$folder/ready"
if [ -n "$sysfs" ]; then exec sleep infinity; fi
exec "$folder/bin/systemd-udevd" --children-max=2
"""


class Udev(Closing):
    """A machine with udev; a context manager that leaves nothing behind.

    ``namespace`` has the network interfaces. With *sysfs*, udev reads that directory instead of the
    kernel's, and udevd does not run, because no kernel sends it events.
    """

    def __init__(self, *, sysfs: Path | None = None) -> None:
        if not _PROGRAM.exists():
            raise FileNotFoundError(f"no udev under {UNPACKED}: run tools/setup.sh")
        self.folder = netns.temporary_folder("udev")
        self.namespace = netns.Namespace("udev")
        try:
            names = {"folder": self.folder, "sysfs": sysfs or "", "program": _PROGRAM}
            with (self.folder / "log").open("wb") as log:
                self._process = self.namespace.spawn(
                    ["unshare", "--mount", "sh", "-euc", _SCRIPT],
                    env={name: str(value) for name, value in names.items()},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            present = "ready" if sysfs else "udevd"
            wait_for(lambda: self._is_up(daemon=not sysfs), f"{present} of {self.folder}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all processes, and remove the namespace and the directory. Idempotent."""
        if (process := getattr(self, "_process", None)) is not None:
            netns.end(process)
        self.namespace.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(
        self, command: Iterable[str], *, check: bool = True, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the namespaces; ``udevadm`` is in its PATH."""
        enter = ["nsenter", "--mount", "--net", "--target", str(self._process.pid)]
        path = f"PATH={self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        # Without this variable, a directory that is not a sysfs is refused (systemd's
        # docs/ENVIRONMENT.md).
        inside = ["env", path, "SYSTEMD_DEVICE_VERIFY_SYSFS=0", *command]
        return netns.run([*enter, "--", *inside], check=check, stdin=stdin)

    def read(self, path: str) -> str:
        """Return the content of a file; empty if the file does not exist."""
        return self.run(["cat", path], check=False).stdout

    def test(self, syspath: str) -> tuple[dict[str, str], list[str]]:
        """Run ``udevadm test``: return the properties of a device after all rules, and udev's
        complaints about rules."""
        done = self.run(["udevadm", "test", "--action=add", syspath])
        stderr = done.stderr.splitlines()
        lines = [line for line in stderr if ".rules:" in line and " LINK '" not in line]
        return self.properties(syspath), lines

    def properties(self, syspath: str) -> dict[str, str]:
        """Return the properties of a device in udev's database."""
        text = self.run(["udevadm", "info", "--query=property", syspath]).stdout
        return dict(line.split("=", 1) for line in text.splitlines())

    def log(self) -> str:
        """Return the output of udevd."""
        return (self.folder / "log").read_text(errors="replace")

    def _is_up(self, *, daemon: bool) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"udev's machine ended: {self.log()}")
        if not (self.folder / "ready").exists():
            return False
        return (
            not daemon or self.run(["test", "-S", "/run/udev/control"], check=False).returncode == 0
        )
