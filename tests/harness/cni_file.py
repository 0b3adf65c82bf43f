"""The single file of the CNI plugin, as an operator makes it."""

import functools
import subprocess
import sys
from pathlib import Path

from tests.harness import netns


def pack(target: Path) -> Path:
    """Make the file with the tool of the distribution, and return its path."""
    tool = netns.ROOT / "tools/dfmeta-cni-zip"
    subprocess.run([sys.executable, str(tool), str(target)], check=True)
    return target


@functools.cache
def packed() -> Path:
    """Return the file, which is made once."""
    return pack(netns.temporary_folder("cni") / "dfmeta-cni")
