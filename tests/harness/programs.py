"""The programs that daemons and commands find: this machine's, but for those that decide a result.

dfmeta asks nft, iptables and systemctl where they are installed, and says less where they are not.
Whether this machine has them must not decide a test: :func:`hide` gives the process a PATH without
them, and a test that is about one of them has it with :func:`path_with`.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.harness.netns import temporary_folder

ASKED: Final = re.compile(
    r"nft|(arp|eb|ip|ip6|x)tables(-.*)?|ethtool|haproxy|systemctl|firewall-cmd|nmcli|resolvectl"
)
"""Names of programs that a test has only if it says so."""


def hide() -> None:
    """Have this process, and all that it starts, find none of :data:`ASKED`."""
    folder = temporary_folder("path")
    for name, place in _executables(os.environ["PATH"]).items():
        if not ASKED.fullmatch(name):
            (folder / name).symlink_to(place)
    os.environ["PATH"] = str(folder)


@contextlib.contextmanager
def path_with(*programs: Path) -> Iterator[str]:
    """Provide a PATH with these programs, and all that are not in :data:`ASKED`.

    :param programs: a test's own stand-ins, or unpacked programs.
    """
    folder = temporary_folder("programs")
    for program in programs:
        (folder / program.name).symlink_to(program)
    yield f"{folder}:{os.environ['PATH']}"


def _executables(path: str) -> dict[str, Path]:
    """Return the programs on a PATH by their names; the first of a name wins."""
    programs: dict[str, Path] = {}
    for folder in path.split(":"):
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                programs.setdefault(entry.name, Path(entry.path))
    return programs
