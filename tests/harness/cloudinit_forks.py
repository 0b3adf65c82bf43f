"""cloud-init as a program of ``nursery.py``: a process for each release, which has imported it.

The imports take most of the CPU time of a boot. The process has its modules where a guest has them,
and imports what the stages import as well. For a boot, a fork enters the guest's network namespace
and does in new namespaces what :mod:`tests.harness.cloudinit_runner` does as an interpreter.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.harness import cloudinit_runner, kernel
from tests.harness.cloudinit import RELEASES

LATER: Final = (
    "cloudinit.config.cc_final_message",
    "cloudinit.config.cc_runcmd",
    "cloudinit.config.cc_scripts_per_boot",
    "cloudinit.config.cc_scripts_per_instance",
    "cloudinit.config.cc_scripts_per_once",
    "cloudinit.config.cc_scripts_user",
    "cloudinit.config.cc_scripts_vendor",
    "cloudinit.config.cc_set_hostname",
    "cloudinit.config.cc_ssh",
    "cloudinit.config.cc_update_hostname",
    "cloudinit.config.cc_users_groups",
    "cloudinit.config.cc_write_files",
    "cloudinit.distros.debian",
    "cloudinit.mergers.m_dict",
    "cloudinit.mergers.m_list",
    "cloudinit.mergers.m_str",
    "cloudinit.net.networkd",
    "cloudinit.sources.DataSourceEc2",
    "cloudinit.sources.DataSourceNoCloud",
    "cloudinit.sources.DataSourceOpenStack",
    "netrc",
)
"""What the stages import, of which a release may lack some."""


def prepare(program: str) -> None:
    """Import a release in namespaces of this process, from the paths of a guest."""
    release = RELEASES[program]
    kernel.call("unshare", kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS)
    # The module platform keeps it.
    socket.sethostname(cloudinit_runner.UNNAMED)
    kernel.call("mount", b"", b"/", b"none", kernel.MS_SLAVE | kernel.MS_REC, None)
    with tempfile.TemporaryDirectory() as folder:
        # The checkout may be in /opt.
        place = Path(folder)
        cloudinit_runner.mount("tmpfs", place)
        cloudinit_runner.bind_modules(
            place, release.unpacked.resolve(), str(release.requests or "")
        )
        cloudinit_runner.bind(place / "opt", Path("/opt"), kernel.MS_REC)
        kernel.call("umount2", os.fsencode(place), kernel.MNT_DETACH)
    sys.path[:0] = cloudinit_runner.MODULES.split(":")
    importlib.import_module(cloudinit_runner.PROGRAM)
    for name in LATER:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)


def main() -> None:
    """Boot as PID 1 of new namespaces; end as that does."""
    # As unshare(1) does with --fork and --kill-child.
    kernel.call("unshare", kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWPID)
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    kernel.end_with_parent()
    cloudinit_runner.main()
