"""The root file system of a libvirt host, and the disk of its guests.

The host is not a virtual machine: its programs run in a chroot (:mod:`tests.soak.real.libvirt`). A
guest is a virtual machine, with the distribution's cloud-init.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.harness.netns import run
from tests.soak.real.emulators import kernel_of
from tests.soak.real.images import (
    BUILD_TIMEOUT,
    Distribution,
    bootstrap,
    compile_dfmeta,
    environment,
    file_system,
    in_chroot,
    install,
    kept,
    requirements,
    wheel_of_checkout,
)

_RELEASE = "dfmeta"
"""Name of the virtual environment below /opt."""
_HOST = (
    "ca-certificates curl dnsmasq-base iproute2 libvirt-clients "
    "libvirt-daemon-driver-qemu libvirt-daemon-system libvirt-daemon-system-sysv "
    "openvswitch-switch procps python3-venv qemu-system-x86 qemu-utils"
)
_GUEST = (
    "cloud-init curl dbus initramfs-tools iproute2 linux-image-cloud-amd64 netplan.io "
    "python3-venv sudo systemd systemd-resolved systemd-sysv udev"
)
_GUEST_SIZE = "3G"
_SETTLE_GUEST = """
: > /etc/machine-id
rm -f /etc/hostname
echo '/dev/vda / ext4 defaults 0 1' > /etc/fstab
systemctl -q enable systemd-networkd systemd-resolved
systemctl -q mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \\
    fstrim.timer
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
"""


@dataclass(frozen=True)
class GuestDisk:
    """The disk that guests boot from, each with an overlay of its own; kernel and initrd."""

    kernel: Path
    initrd: Path
    image: Path


def guest(distribution: Distribution) -> GuestDisk:
    """Return a disk with an unmodified cloud-init, and make it first if its definition has changed.

    :raises netns.CommandError: a package is not available.
    """

    def make(home: Path) -> None:
        tree = home / "tree"
        bootstrap(distribution, _GUEST, tree)
        in_chroot(tree, "sh", "-euc", _SETTLE_GUEST, bare=True)
        file_system(tree, home / "guest.img", _GUEST_SIZE)
        kernel_of(tree, home)
        shutil.rmtree(tree)

    parts = (distribution.suite, _GUEST, _SETTLE_GUEST, _GUEST_SIZE)
    home = kept(f"guest-{distribution.name}", parts, make)
    return GuestDisk(home / "vmlinuz", home / "initrd.img", home / "guest.img")


def host(distribution: Distribution, folder: Path) -> Path:
    """Make the root file system of a host with this checkout in *folder*; the caller removes it.

    :raises netns.CommandError: a package is not available.
    """
    wanted = requirements()

    def make(home: Path) -> None:
        tree = home / "tree"
        bootstrap(distribution, _HOST, tree)
        environment(tree, _RELEASE)
        install(tree, _RELEASE, *wanted)

    parts = (distribution.suite, _HOST, _RELEASE, *wanted)
    base = kept(f"libvirt-{distribution.name}", parts, make) / "tree"
    tree = folder / "tree"
    run(["cp", "-a", str(base), str(tree)], timeout=BUILD_TIMEOUT)
    wheel = wheel_of_checkout(folder)
    shutil.move(wheel, tree / "root")
    install(tree, _RELEASE, "--no-deps", "--no-index", f"/root/{wheel.name}")
    compile_dfmeta(tree, _RELEASE)
    return tree
