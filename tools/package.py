"""Build the Debian package of dfmeta, with all that it imports, in dist/.

  tools/package              for each release of Debian
  tools/package debian-13    for one of them
  tools/package --lintian    also judge them, which takes minutes; a warning is an error

The package has a virtual environment, /usr/lib/dfmeta, because Debian's own os-ken and eventlet are
too old. It is built in a chroot of its release, with the Python of that release; tools/debian has
the rules. DEBFULLNAME and DEBEMAIL name its maintainer (dch(1)).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path

from tests.harness.netns import run
from tests.soak.real import images

ROOT = Path(__file__).resolve().parents[1]
HOME = "/usr/lib/dfmeta"
"""The environment, in the chroot and on hosts."""
PACKAGES = "ca-certificates debhelper dh-apparmor lintian python3-venv"
"""Of the chroot, besides the essential ones."""
BUILD = "cd /build/dfmeta; debian/rules binary"
LINTIAN = "lintian --fail-on error,warning --allow-root /build/*.deb"
CHANGELOG = """dfmeta ({version}) unstable; urgency=medium

  * The wheel {wheel}, for {release}.

 -- {maintainer}  {date}
"""


def debian_version(version: str, release: str) -> str:
    """Return the version of the package for a release, which sorts as PEP 440 has it.

    :param version: of the wheel; ``1.0rc1`` and ``1.0.dev3`` come before ``1.0``.
    :param release: such as ``debian-12``.
    """
    public, plus, local = version.partition("+")
    public = re.sub(r"\.?(a|b|rc|dev)(?=\d)", r"~\1", public)
    return f"{public}{plus}{local}-1~{release.replace('ian-', '')}"


def maintainer() -> str:
    """Return the maintainer of the package: the user of this host, as dch(1) has it."""
    address = os.environ.get("DEBEMAIL", f"dfmeta@{socket.getfqdn()}")
    return f"{os.environ.get('DEBFULLNAME', 'dfmeta developers')} <{address}>"


def build(release: str, wheel: Path, target: Path, *, lintian: bool = False) -> Path:
    """Build the package of *wheel* for a release, and return its path in *target*.

    :raises netns.CommandError: a step has failed, or lintian has an error or a warning.
    """
    distribution = images.DISTRIBUTIONS[release]
    base = images.kept(
        f"package-{release}",
        (distribution.suite, PACKAGES),
        lambda home: images.bootstrap(distribution, PACKAGES, home / "tree"),
    )
    with tempfile.TemporaryDirectory(prefix="dfmeta-package-") as folder:
        tree = Path(folder, "tree")
        run(["cp", "-a", str(base / "tree"), str(tree)], timeout=images.BUILD_TIMEOUT)
        shutil.copy(wheel, tree / "srv")
        images.environment(tree, HOME)
        images.install(tree, HOME, f"/srv/{wheel.name}[neutron,postgresql]")
        rules = tree / "build/dfmeta/debian"
        shutil.copytree(ROOT / "tools/debian", rules)
        text = CHANGELOG.format(
            version=debian_version(wheel.name.split("-")[1], release),
            wheel=wheel.name,
            release=release,
            maintainer=maintainer(),
            date=formatdate(time.time()),
        )
        (rules / "changelog").write_text(text, encoding="utf-8")
        images.in_chroot(tree, "sh", "-euc", BUILD, bare=True)
        if lintian:
            images.in_chroot(tree, "sh", "-euc", LINTIAN, bare=True)
        (package,) = (tree / "build").glob("*.deb")
        return Path(shutil.copy(package, target))


def main(arguments: Sequence[str]) -> int:
    """Build the packages, and print their paths."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("release", nargs="*", choices=[*images.DISTRIBUTIONS, []])
    parser.add_argument("--lintian", action="store_true")
    options = parser.parse_args(arguments)
    releases = options.release or list(images.DISTRIBUTIONS)
    target = ROOT / "dist"
    target.mkdir(exist_ok=True)
    # The wheel's source is a copy without git.
    version = run([sys.executable, "-m", "setuptools_scm"]).stdout.strip()
    os.environ["SETUPTOOLS_SCM_PRETEND_VERSION_FOR_DFMETA"] = version
    with tempfile.TemporaryDirectory(prefix="dfmeta-wheel-") as folder:
        wheel = images.wheel_of_checkout(Path(folder))
        for release in releases:
            print(build(release, wheel, target, lintian=options.lintian).relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
