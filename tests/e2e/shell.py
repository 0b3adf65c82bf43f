"""Somebody at a host's shell who types what a page shows.

What a page names is elsewhere in a test: :meth:`Shell.places` says where, in both directions. A
command that names anything else of this machine is not run.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.harness import netns
from tests.harness.agent import Agent, program
from tests.harness.console import Block, Step, difference, steps
from tests.harness.netns import ROOT
from tests.harness.ovs import UNPACKED, OpenvSwitch

_PATH = re.compile(r"(?<![\w:/.])/[\w/.-]*")


class Shell:
    """root on a host whose daemon has its configuration and its state where they are by default.

    :ivar folder: all that the page names and is not the daemon's; ``source`` in it is where the
        commands are typed, a checkout of dfmeta.
    """

    def __init__(self, stack: ExitStack, switch: OpenvSwitch) -> None:
        self.switch = switch
        self.agent = stack.enter_context(Agent(switch))
        self.folder = netns.temporary_folder("shell")
        stack.callback(shutil.rmtree, self.folder)
        for place in ("bin", "source", "etc/dfmeta", "opt/dfmeta", "usr/local/bin", "root/.ssh"):
            (self.folder / place).mkdir(parents=True)
        (self.folder / "source/etc").symlink_to(ROOT / "etc")
        self._programs(self.folder / "bin")

    def places(self) -> dict[str, str]:
        """What a page names, and where that is; what is below others comes first."""
        elsewhere = ("/etc/", "/opt/dfmeta", "/usr/local/bin", "/root/.ssh")
        return {
            "/etc/dfmeta/dfmeta.conf": str(self.agent.config_file),
            "/var/lib/dfmeta": str(self.agent.state_path),
            "/var/run/openvswitch": str(self.switch.rundir),
            **{place: f"{self.folder}{place}" for place in elsewhere},
        }

    def read(self, block: Block) -> None:
        """Do what a block of a page says, and compare what is printed with what is shown.

        A configuration is the daemon's; any other text becomes the file of its caption.
        """
        if block.kind == "console":
            for step in steps(block.text):
                found = difference(step.shown, self.type(step))
                assert not found, f"{step.command}: {found}"
        elif block.kind == "ini" and block.caption == "/etc/dfmeta/dfmeta.conf":
            self.agent.configure(options(block.text))
        elif block.caption:
            (self.folder / "source" / block.caption).write_text(block.text + "\n")

    def type(self, step: Step) -> str:
        """What a command prints; it has to succeed."""
        assert not step.guest
        return self.run(step.command)

    def run(self, command: str) -> str:
        """What a command on the host prints, with the page's names for what it speaks of."""
        known = self.places()
        for named in _PATH.findall(command):
            assert named.startswith(tuple(known)), f"{named} is this machine's"
        for place, real in known.items():
            command = re.sub(rf"(?<![\w/.]){re.escape(place)}", real, command)
        inside = ["nsenter", f"--net=/run/netns/{self.switch.namespace.name}"]
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        done = netns.run(
            [*inside, "sh", "-euc", f"cd {self.folder}/source; {{ {command}; }} 2>&1"],
            env={**self.switch.environment(), "PATH": path},
        )
        printed = done.stdout
        for place, real in known.items():
            printed = printed.replace(real, place)
        return printed

    def _programs(self, folder: Path) -> None:
        code = (
            "import sys\nfrom dfmeta import conf\nfrom dfmeta.cmd.ctl import main\n"
            f"conf.DEFAULT_FILES = ({str(self.agent.config_file)!r},)\nmain()"
        )
        _script(folder / "dfmeta", sys.executable, "-c", code)
        _script(folder / "dfmeta-agent", *program("dfmeta-agent"))
        usual = UNPACKED / "usr/bin"
        _script(folder / "ovs-ofctl", str(usual / "ovs-ofctl"))
        _script(
            folder / "ovs-vsctl", str(usual / "ovs-vsctl"), f"--db={self.switch.ovsdb_connection}"
        )


def options(text: str) -> dict[str, dict[str, object]]:
    """A configuration file's groups."""
    reader = configparser.ConfigParser(interpolation=None, default_section="none")
    reader.read_string(text)
    return {group: dict(reader[group]) for group in reader.sections()}


def _script(path: Path, *command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
