"""Disks of virtual machines, made from a distribution's own packages.

A base is a directory with the root file system of a compute node, without dfmeta. It is made once
and kept under ``.cache/real`` until its definition or the requirements of dfmeta change. A disk is
made for each run: a copy of the base with the wheel of this checkout below /opt, the checkout in
/srv/dfmeta, and a key for ssh. The build runs at the speed of this machine, in a chroot. uv
installs there the wheels that ``tools/setup.sh`` has left in its cache.
"""

import configparser
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.harness.netns import ROOT, CommandError, run
from tests.soak.real.emulators import Emulator

CACHE = ROOT / ".cache" / "real"
SIZE = "6G"
"""Size of the file system; the image is a sparse file."""
BUILD_TIMEOUT = 1200
"""Maximum seconds of a step of a build, including downloads."""
_UNFINISHED = ".unfinished"
"""End of the name of a directory that is being made."""
_OCTAL = re.compile(r"\\([0-7]{3})")
"""A white space or a backslash in a path of mountinfo."""
_PACKAGES = (
    "apparmor ca-certificates conntrack curl dbus ethtool haproxy iproute2 iputils-ping kmod "
    "man-db nftables openssh-server openvswitch-switch procps python3-venv strace systemd "
    "systemd-sysv tcpdump udev"
)
"""Of a compute node, without a kernel."""
RELEASES = ("dfmeta-1", "dfmeta-2")
"""Environments below /opt, each with the dfmeta of this checkout, so that tests can upgrade.

The link /opt/dfmeta points to the first one.
"""
_TESTS = ("h11", "hypothesis", "keystoneauth1", "pytest", "pytest-timeout")
"""Requirements, from the extra ``test``, of the test modules that run in a machine."""

_UV = "/mnt/uv"
"""uv and its cache in a chroot, while a command runs there."""

_IN_CHROOT = """
tree=$1 uv=$2 cache=$3; shift 3
# Programs in the chroot reach the package index with the settings of this machine.
for file in resolv.conf hosts pip.conf; do
    [ -e "/etc/$file" ] || continue
    touch "$tree/etc/$file"
    mount --bind "/etc/$file" "$tree/etc/$file"
done
mkdir -p "$tree/etc/ssl/certs"
mount --bind /etc/ssl/certs "$tree/etc/ssl/certs"
mount -t proc proc "$tree/proc"
mount --bind /dev "$tree/dev"
if [ -n "$uv" ]; then
    mount -t tmpfs uv "$tree/mnt"
    mkdir -p "$cache" "$tree/mnt/uv.cache"
    mount --bind "$cache" "$tree/mnt/uv.cache"
    touch "$tree/mnt/uv"
    mount --bind "$uv" "$tree/mnt/uv"
fi
exec chroot "$tree" "$@"
"""

_IMPORT = """
import importlib, pkgutil, dfmeta
for module in pkgutil.walk_packages(dfmeta.__path__, "dfmeta."):
    # Alembic alone can import its script.
    if module.name != "dfmeta.store.db.migrations.env":
        importlib.import_module(module.name)
"""

_NETWORK = """\
[Match]
Driver=virtio_net uml-vector
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
"""
# As doctor requires: networkd leaves dfmeta's rules and routes unchanged.
_NETWORKD = """\
[Network]
ManageForeignRoutes=no
ManageForeignRoutingPolicyRules=no
"""
_SETTLE = """
echo compute > /etc/hostname
printf '127.0.0.1 localhost\\n127.0.1.1 compute\\n' > /etc/hosts
: > /etc/machine-id
: > /etc/fstab
systemctl -q enable systemd-networkd ssh
# dfmeta-agent starts haproxy itself.
systemctl -q disable haproxy
systemctl -q mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \\
    e2scrub_reap.service fstrim.timer getty.target systemd-networkd-wait-online.service
passwd -q -d root
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
"""


@dataclass(frozen=True)
class Distribution:
    """A release of a distribution for hosts."""

    name: str
    suite: str


DISTRIBUTIONS = {
    distribution.name: distribution
    for distribution in (Distribution("debian-12", "bookworm"), Distribution("debian-13", "trixie"))
}
USUAL = DISTRIBUTIONS["debian-12"]


@dataclass(frozen=True)
class Disk:
    """What a machine boots from, and the ssh key of its user root."""

    emulator: Emulator
    image: Path
    """The kernel is beside it, if the emulator needs one."""
    key: Path


def requirements() -> list[str]:
    """Return the requirements of dfmeta at run time, from setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser["options"]["install_requires"].split()


def base(distribution: Distribution, emulator: Emulator) -> Path:
    """Return the root file system of a host, and make it first if its definition has changed.

    :raises netns.CommandError: a package is not available.
    """
    wanted = [*requirements(), *_TESTS]
    packages = f"{_PACKAGES} {emulator.packages}"
    parts = (distribution.suite, packages, _SETTLE, _NETWORK, _NETWORKD, *RELEASES, *wanted)

    def make(home: Path) -> None:
        tree = home / "tree"
        bootstrap(distribution, packages, tree)
        emulator.complete(tree)
        for release in RELEASES:
            environment(tree, release)
        (tree / "opt/dfmeta").symlink_to(RELEASES[0])
        install(tree, RELEASES[0], *wanted)
        _lend(tree)
        networks = tree / "etc/systemd/network"
        (networks / "user.network").write_text(_NETWORK)
        (tree / "etc/systemd/networkd.conf.d").mkdir()
        (tree / "etc/systemd/networkd.conf.d/50-dfmeta.conf").write_text(_NETWORKD)
        in_chroot(tree, "sh", "-euc", _SETTLE, bare=True)

    name = f"{distribution.name}{emulator.suffix}"
    return kept(name, (*parts, *emulator.definition()), make) / "tree"


def kept(name: str, definition: Iterable[str], make: Callable[[Path], None]) -> Path:
    """Return the directory *name* under ``.cache/real``, which *make* fills.

    The directory is made again if a part of *definition* has changed. It has another name until it
    is complete: a build may be interrupted at any time, even by SIGKILL.
    """
    home, unfinished = CACHE / name, CACHE / f"{name}{_UNFINISHED}"
    stamp = hashlib.sha256("\0".join(definition).encode()).hexdigest()
    with _lock(name):
        if _read(home / "stamp") != stamp:
            for left in (unfinished, home):
                _remove(left)
            unfinished.mkdir()
            _say(f"Making {name} under .cache/real")
            make(unfinished)
            (unfinished / "stamp").write_text(stamp)
            unfinished.rename(home)
    return home


def _remove(folder: Path) -> None:
    """Remove *folder*, if it exists, but nothing of the file systems that are mounted in it.

    An interrupted build leaves mounts of this machine's /dev and /proc.

    :raises netns.CommandError: a file system cannot be unmounted. Nothing is removed then.
    """
    for place in reversed(_mounts_in(folder)):
        # A program of the interrupted build may still run, and use the file system.
        run(["umount", "--lazy", str(place)])
    if folder.exists():
        shutil.rmtree(folder)


def _mounts_in(folder: Path) -> list[Path]:
    """Return the mount points in *folder*, in the order of the mounts (proc(5), mountinfo)."""
    lines = Path("/proc/thread-self/mountinfo").read_text().splitlines()
    texts = [_OCTAL.sub(lambda code: chr(int(code[1], 8)), line.split()[4]) for line in lines]
    places = map(Path, texts)
    return [place for place in places if place.is_relative_to(folder.resolve())]


def bootstrap(distribution: Distribution, packages: str, tree: Path) -> None:
    """Make a root file system with these packages and their dependencies."""
    run(
        [
            *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase"),
            *("--format=directory", f"--include={','.join(packages.split())}"),
            *("--aptopt=APT::Install-Recommends false", "--aptopt=Acquire::Retries 3"),
            *(distribution.suite, str(tree)),
        ],
        timeout=BUILD_TIMEOUT,
    )


def disk(distribution: Distribution, folder: Path, emulator: Emulator) -> Disk:
    """Make a disk with this checkout in *folder*, which the caller removes."""
    tree = _host(distribution, folder, emulator)
    wheel = wheel_of_checkout(folder)
    shutil.copy(wheel, tree / "srv")
    for release in RELEASES:
        install(tree, release, "--no-deps", "--no-index", f"/srv/{wheel.name}")
    compile_dfmeta(tree, RELEASES[0])
    first, second = (packages / "dfmeta" for packages in _site_packages(tree))
    # With the time of each module, which its bytecode names.
    shutil.copytree(first, second, dirs_exist_ok=True)
    return _disk(tree, folder, emulator)


def disk_without_dfmeta(
    distribution: Distribution, folder: Path, emulator: Emulator, *packages: Path
) -> Disk:
    """Make a disk in *folder* with packages in /srv, which are not installed."""
    tree = _host(distribution, folder, emulator)
    for release in (*RELEASES, "dfmeta"):
        run(["rm", "-r", str(tree / "opt" / release)])
    for package in packages:
        shutil.copy(package, tree / "srv")
    return _disk(tree, folder, emulator)


def next_version(package: Path) -> Path:
    """Make the same package of a later version, beside *package*."""
    tree, target = package.with_suffix(".tree"), package.with_name(f"next-{package.name}")
    run(["dpkg-deb", "--raw-extract", str(package), str(tree)], timeout=BUILD_TIMEOUT)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^(Version: .*)$", r"\1.1", control.read_text()))
    run(["dpkg-deb", "-Zgzip", "--build", str(tree), str(target)], timeout=BUILD_TIMEOUT)
    shutil.rmtree(tree)
    return target


def _host(distribution: Distribution, folder: Path, emulator: Emulator) -> Path:
    # The base, with the checkout, and a key for ssh in *folder*.
    tree = folder / "tree"
    run(["cp", "-a", str(base(distribution, emulator)), str(tree)], timeout=BUILD_TIMEOUT)
    key = folder / "key"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)])
    authorized = tree / "root/.ssh/authorized_keys"
    authorized.parent.mkdir(mode=0o700, exist_ok=True)
    authorized.write_text(key.with_suffix(".pub").read_text())
    _checkout(tree / "srv/dfmeta")
    return tree


def _disk(tree: Path, folder: Path, emulator: Emulator) -> Disk:
    image = folder / "host.img"
    file_system(tree, image, SIZE)
    emulator.take_kernel(tree, folder)
    shutil.rmtree(tree)
    return Disk(emulator, image, folder / "key")


def in_chroot(tree: Path, *command: str, bare: bool = False) -> str:
    """Run a command in *tree*, with this machine's package index settings and uv unless *bare*."""
    # The PATH of tests is a folder that the chroot has not.
    env = ["env", "-u", "HTTPLIB2_CA_CERTS", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    env.append("DEBIAN_FRONTEND=noninteractive")
    script, words = 'tree=$1; shift; exec chroot "$tree" "$@"', [str(tree)]
    if not bare:
        script, words = _IN_CHROOT, [str(tree), _uv() or "", str(ROOT / ".cache/uv")]
    return run(
        [*env, "unshare", "--mount", "sh", "-euc", script, "sh", *words, *command],
        timeout=BUILD_TIMEOUT,
    ).stdout


def _uv() -> str | None:
    """Return the uv beside this Python, where ``tools/setup.sh`` installs it if it can."""
    return shutil.which("uv", path=Path(sys.executable).parent)


def environment(tree: Path, release: str) -> None:
    """Make a virtual environment below /opt in *tree*, without pip; see :func:`install`."""
    in_chroot(tree, "python3", "-m", "venv", "--without-pip", str(Path("/opt", release)))


def install(tree: Path, release: str, *what: str) -> None:
    """Install packages in the environment of a release in *tree*, as ``pip install`` does.

    uv takes a tenth of pip's time. It does not read an index of pip's configuration: pip is the
    second choice, as in ``tools/setup.sh``. No module is compiled; see :func:`compile_dfmeta`.
    """
    python = str(Path("/opt", release, "bin/python"))
    if _uv():
        cached = ("env", f"UV_CACHE_DIR={_UV}.cache", "UV_LINK_MODE=copy", _UV, "pip", "install")
        with contextlib.suppress(CommandError):
            in_chroot(tree, *cached, "--quiet", "--python", python, *what)
            return
    options = ("--quiet", "--no-compile", "--disable-pip-version-check")
    in_chroot(tree, python, "-m", "ensurepip")
    # --ignore-installed: the second environment sees the packages of the first one.
    more = ("--root-user-action=ignore", "--ignore-installed")
    in_chroot(tree, python, "-m", "pip", "install", *options, *more, *what)


def compile_dfmeta(tree: Path, release: str) -> None:
    """Compile the modules that the programs of a release import, of dfmeta and of other packages.

    The unit's file system is read-only: each start of the daemon would compile them again. These
    are a part of what is installed.
    """
    in_chroot(tree, f"/opt/{release}/bin/python", "-c", _IMPORT)


def _site_packages(tree: Path) -> list[Path]:
    """Return the directories of packages of the two releases in *tree*."""
    libraries = (tree / "opt" / release / "lib" for release in RELEASES)
    return [next(library.glob("python3*/site-packages")) for library in libraries]


def _lend(tree: Path) -> None:
    # The second environment uses all packages of the first one except dfmeta.
    first, second = _site_packages(tree)
    inside = Path("/", first.relative_to(tree))
    (second / "lent.pth").write_text(f"{inside}\n")


def _checkout(target: Path) -> None:
    ignored = shutil.ignore_patterns(
        ".git", ".cache", ".venv", ".*_cache", "__pycache__", "*.egg-info", ".hypothesis", "build"
    )
    shutil.copytree(ROOT, target, ignore=ignored, symlinks=True)
    # The harness expects Open vSwitch in .cache/root; in the machine it is installed.
    (target / ".cache").mkdir()
    (target / ".cache/root").symlink_to("/")


def wheel_of_checkout(folder: Path) -> Path:
    """Build the wheel of this checkout in *folder*, and return its path."""
    # Build from a copy, because a build leaves a directory in the source.
    source = folder / "source"
    _checkout(source)
    # What pip calls, without pip.
    build = f"import setuptools.build_meta as backend; backend.build_wheel({str(folder)!r})"
    run(["env", "-C", str(source), sys.executable, "-c", build], timeout=BUILD_TIMEOUT)
    shutil.rmtree(source)
    return next(folder.glob("*.whl"))


def file_system(tree: Path, image: Path, size: str) -> None:
    """Make an image with the content of *tree*, as a sparse file."""
    run(["mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(image), size], timeout=BUILD_TIMEOUT)


def _read(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    return ""


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


@contextlib.contextmanager
def _lock(name: str) -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(CACHE / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
