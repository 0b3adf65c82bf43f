"""The Debian package should install in fresh releases, serve guests there, and leave nothing."""

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.harness import netns
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.ovs import OpenvSwitch
from tests.host.docs.test_units_doc import EXPOSURE
from tests.host.e2e.support import asks_own
from tests.soak.real import images
from tools import package

DEFAULTS = dict.fromkeys(("ovsdb_connection", "state_path", "libvirt_xml_path"))
INSTALL = """
apt-get -qq update
apt-get -qq -y --no-install-recommends install apparmor man-db /srv/*.deb
"""
CONFINED = "apparmor_parser --skip-kernel-load --skip-cache /etc/apparmor.d/dfmeta"
ANALYZE = "systemd-analyze --no-pager"
LEFT = "find / -xdev \\( -path /srv -o -path /var/cache/man \\) -prune -o -name '*dfmeta*' -print"
WITH_SWITCH = """
tree=$1; mkdir -p "$tree/run/openvswitch"
mount --bind "$2" "$tree/run/openvswitch"
mount -t proc proc "$tree/proc"
mount -t sysfs sys "$tree/sys"
mount --bind /dev "$tree/dev"
shift 2
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$tree" "$@"
"""


class Packaged(Agent):
    """The daemon of the package in a chroot, as its unit starts it."""

    def __init__(self, host: OpenvSwitch, tree: Path) -> None:
        super().__init__(host, {"df_metadata": DEFAULTS})
        self.tree = tree

    def command(self, *words: str) -> list[str]:
        """Return the command that runs *words* in the chroot, with the sockets of the switch."""
        outer = ("unshare", "--mount", "sh", "-euc", WITH_SWITCH, "sh")
        return [*outer, str(self.tree), str(self.host.rundir), *words]

    def type(self, *words: str) -> str:
        """Run a command there, in the namespace of the host; return its output."""
        return self.host.namespace.run(self.command(*words)).stdout

    def start(self, *, wait: bool = True) -> Self:
        """See :class:`Agent`."""
        shutil.copy(self.config_file, self.tree / "etc/dfmeta")
        (words,) = re.findall(r"^ExecStart=(.*)$", unit(self.tree).read_text(), re.MULTILINE)
        self._spawn(self.command(*words.split()))
        self.wait_ready()
        return self


def unit(tree: Path) -> Path:
    (path,) = {path.resolve() for path in tree.glob("**/lib/systemd/system/dfmeta-agent.service")}
    return path


@pytest.fixture(params=images.DISTRIBUTIONS)
def tree(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A fresh release with the package, which lintian has nothing against."""
    folder = netns.temporary_folder("debian")
    target = package.build(request.param, images.wheel_of_checkout(folder), folder, lintian=True)
    tree = folder / "tree"
    images.bootstrap(images.DISTRIBUTIONS[request.param], "ca-certificates", tree)
    shutil.copy(target, tree / "srv")
    images.in_chroot(tree, "sh", "-euc", INSTALL)
    yield tree
    shutil.rmtree(folder)


def test_package_serves_and_leaves_nothing(
    tree: Path, host: OpenvSwitch, make_guest: MakeGuest
) -> None:
    images.in_chroot(tree, "sh", "-euc", CONFINED)
    units = str(unit(tree).parent.relative_to(tree))
    images.in_chroot(tree, "sh", "-euc", f"cd /{units}; {ANALYZE} verify ./dfmeta-*")
    for service, most in EXPOSURE.items():
        text = images.in_chroot(
            tree, "sh", "-euc", f"{ANALYZE} security --offline=true /{units}/{service}.service"
        )
        (exposure,) = re.findall(r"exposure level for \S+: ([\d.]+) OK", text)
        assert float(exposure) < most
    share = tree / "usr/share"
    pages = {path.name for path in share.glob("man/man?/dfmeta*")}
    programs = {path.name for path in (tree / "usr/bin").glob("dfmeta*")}
    assert {page.partition(".")[0] for page in pages} == programs
    shells = ("bash-completion/completions/", "zsh/site-functions/_", "fish/vendor_completions.d/")
    assert Counter(len(list(share.glob(f"{folder}dfmeta*"))) for folder in shells) == {1: 3}

    agent = Packaged(host, tree).start()
    guest = make_guest("web", address="10.0.0.5/24")
    agent.type("dfmeta", "store", "put", guest.instance_id, "--hostname", guest.name)
    asks_own(guest)
    agent.type("dfmeta", "doctor")
    agent.stop()
    agent.type("dpkg", "--purge", "dfmeta")
    assert "tap-metadata" not in host.ports()
    assert not host.flows(match="cookie=0x64666d6500000000/0xffffffff00000000")
    assert images.in_chroot(tree, "sh", "-euc", LEFT, bare=True) == ""
