"""A program that boots cloud-init in a root of its own; :mod:`tests.harness.cloudinit` starts it.

It runs in new mount, UTS, IPC and PID namespaces inside a guest's network namespace, on the
interpreter that has cloud-init's modules, and uses only the standard library. The new root is a
tmpfs with the host's /usr read-only and a copy of /etc: all files that cloud-init writes disappear
with the mount namespace. The results are one JSON document on stdout; errors are on stderr.
"""

import base64
import importlib
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness import kernel

STAGES = (["init"], ["modules", "--mode=config"], ["modules", "--mode=final"])
MODULES = "/opt/requests:/opt/cloud-init/usr/lib/python3/dist-packages"
PROGRAM = "cloudinit.cmd.main"
OWN = ("root", "home", "run", "tmp", "var/tmp", "var/log", "var/lib/cloud", "etc", "dev", "proc")
DEVICES = ("null", "zero", "full", "random", "urandom")
UNNAMED = "unnamed"
"""The hostname before a boot."""
LARGE = ("alternatives", "ssl/certs")
"""Directories of /etc with more than half of its files, which no guest changes."""
_KERNELS = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
"""Flags of the kernel's own file systems."""
_LARGE = tuple(Path("/etc", name) for name in LARGE)


def mount(kind: str, target: Path, flags: int = 0, data: str = "") -> None:
    """Mount a new file system (mount(2)): mount(8) is a program for each of two dozen mounts."""
    kernel.call("mount", b"none", os.fsencode(target), kind.encode(), flags, data.encode())


def bind(source: Path, target: Path, flags: int = 0) -> None:
    """Have a file or a directory in another place as well."""
    flags |= kernel.MS_BIND
    kernel.call("mount", os.fsencode(source), os.fsencode(target), None, flags, None)


def bind_read_only(source: Path, target: Path) -> None:
    """Mount a read-only view of a directory of the host."""
    target.mkdir(parents=True, exist_ok=True)
    bind(source, target, kernel.MS_REC)
    bind(target, target, kernel.MS_REMOUNT | kernel.MS_RDONLY)


def unwanted(folder: str, names: list[str]) -> set[str]:
    """Return names of /etc to omit: secrets, the host's cloud-init, special files, LARGE."""
    # requests from 2.32 on needs certificates, /etc/ssl/certs, as soon as it is imported.
    secret = {name for name in names if name in ("ssh", "private", "cloud") or "shadow" in name}
    paths = {name: Path(folder, name) for name in names}
    odd = {n for n, p in paths.items() if not (p.is_symlink() or p.is_file() or p.is_dir())}
    large = {name for name, path in paths.items() if path in _LARGE}
    return secret | odd | large


def build(root: Path, unpacked: Path, requests: str) -> None:
    """Create the directories and mounts of the new root.

    :param requests: the directory of another version of the package requests, or empty.
    """
    mount("tmpfs", root, data="mode=755")
    for name in OWN:
        (root / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    bind_read_only(Path("/usr"), root / "usr")
    for path in Path("/").iterdir():
        # With a merged /usr these are links into /usr.
        if path.name in ("bin", "sbin") or path.name.startswith("lib"):
            if path.is_symlink():
                (root / path.name).symlink_to(path.readlink())
            else:
                bind_read_only(path, root / path.name)
    hide_the_container(root)
    bind_modules(root, unpacked, requests)
    shutil.copytree("/etc", root / "etc", symlinks=True, ignore=unwanted, dirs_exist_ok=True)
    for path in _LARGE:
        if path.is_dir():
            bind_read_only(path, root / path.relative_to("/"))
    (root / "etc" / "shadow").touch(0o600)
    shutil.copytree(unpacked / "etc" / "cloud", root / "etc" / "cloud", symlinks=True)
    # cloud-init does not generate a key that exists; generating needs ssh-keygen.
    (root / "etc" / "ssh").mkdir()
    (root / "etc" / "ssh" / "ssh_host_ed25519_key").touch(0o600)
    for name in DEVICES:
        (root / "dev" / name).touch()
        bind(Path("/dev", name), root / "dev" / name)
    mount("proc", root / "proc", _KERNELS)
    (root / "sys").mkdir()
    mount("sysfs", root / "sys", _KERNELS)
    # Hide the hypervisor of this machine, so that cloud-init finds only the cloud under test.
    if (root / "sys" / "hypervisor").exists():
        mount("tmpfs", (root / "sys" / "hypervisor").resolve(), kernel.MS_RDONLY)


def bind_modules(root: Path, unpacked: Path, requests: str) -> None:
    """Have :data:`MODULES` below a root."""
    bind_read_only(unpacked, root / "opt" / "cloud-init")
    if requests:
        bind_read_only(Path(requests), root / "opt" / "requests")


def hide_the_container(root: Path) -> None:
    """Make systemd-detect-virt find no container, if it is installed.

    systemd 257, as in Debian 13, takes a PID namespace for one, and cloud-init reads no DMI in one.
    """
    program = root / "usr" / "bin" / "systemd-detect-virt"
    if program.exists():
        bind(Path("/usr/bin/false"), program)


def build_firmware(root: Path, serial: str) -> None:
    """Mount the guest's DMI: empty, or with a serial number only.

    Not every machine has DMI, and directories cannot be added to sysfs. So /sys/class is mounted
    new, with the network devices of the old one.
    """
    classes = root / "sys" / "class"
    below = root / "run" / "sys-class"
    below.mkdir()
    bind(classes, below)
    mount("tmpfs", classes)
    (classes / "net").mkdir()
    bind(below / "net", classes / "net")
    (classes / "dmi" / "id").mkdir(parents=True)
    if serial:
        (classes / "dmi" / "id" / "product_serial").write_text(f"{serial}\n")
    mount("tmpfs", classes, kernel.MS_REMOUNT | kernel.MS_RDONLY)
    kernel.call("umount2", os.fsencode(below), 0)
    below.rmdir()


def boot() -> list[dict[str, Any]]:
    """Run the stages, each in a process of its own, and return the results of each.

    cloud-init is imported before, because its import takes most of the time of a stage.
    """
    os.environ.clear()
    os.environ |= {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": MODULES,
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
        "HOME": "/root",
        "TZ": ":/etc/localtime",
    }
    if MODULES.split(":")[0] not in sys.path:
        sys.path[:0] = MODULES.split(":")
    program = importlib.import_module(PROGRAM)
    stages = []
    for arguments in STAGES:
        start = time.monotonic()
        output = run(program.main, ["cloud-init", *arguments]).decode(errors="replace")
        stages.append({"seconds": time.monotonic() - start, "output": output})
    return stages


def run(main: Callable[[list[str]], int | None], arguments: list[str]) -> bytes:
    """Call *main* in a child; return its output."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        sys.argv = arguments
        sys.exit(main(arguments))
    os.close(writing)
    with open(reading, "rb") as output:
        message = output.read()
    os.waitpid(child, 0)
    return message


def read(path: str) -> str | None:
    """Return a file of the new root in base64, or None if it does not exist."""
    try:
        return base64.b64encode(Path(path).read_bytes()).decode()
    except OSError:
        return None


def main() -> None:
    """Read the order (JSON on stdin), boot, and write the results."""
    order = json.load(sys.stdin)
    root = Path(order["folder"])
    build(root, Path(order["unpacked"]), order["requests"])
    build_firmware(root, order["serial"])
    (root / "etc" / "cloud" / "cloud.cfg").write_text(json.dumps(order["config"], indent=1))
    os.chroot(root)
    os.chdir("/")
    socket.sethostname(UNNAMED)
    Path("/etc/hostname").write_text(f"{UNNAMED}\n")
    stages = boot()
    outcome = {
        "stages": stages,
        "hostname": socket.gethostname(),
        "files": {path: read(path) for path in order["files"]},
    }
    json.dump(outcome, sys.stdout)


if __name__ == "__main__":
    main()
