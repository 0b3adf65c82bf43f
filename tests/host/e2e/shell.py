"""The shell of a host, in which the commands of a page are typed.

What a page names is elsewhere in a test: :meth:`Shell.places` says where, in both directions. A
command that names anything else of this machine is not run. Words in capitals are the reader's to
fill in: :attr:`Shell.names` has what stands for them. :data:`tests.core.docs.typed.NOT_TYPED` has
what cannot run here, and :meth:`Shell.stand_in` does what systemd and venv would do to the host.
"""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.core.docs.typed import explained, located
from tests.harness import netns
from tests.harness.agent import Agent, Daemon, program
from tests.harness.console import Block, Step, difference, steps
from tests.harness.guest import Guest
from tests.harness.netns import ROOT
from tests.harness.ovs import UNPACKED, OpenvSwitch

PLACES = (
    *("etc/dfmeta", "etc/systemd/system", "opt", "usr/local/bin", "usr/local/share"),
    *("root/.ssh", "var/backups"),
)
"""Folders that the pages write to."""
ELSEWHERE = (
    *("/etc/", "/opt/dfmeta", "/usr/local/bin", "/usr/local/share", "/root/.ssh", "/srv/"),
    *("/var/backups", "/var/lib/cloud"),
)
"""What the pages name and is not the daemon's: below the folder of the test."""
COMPLETION = {
    "dfmeta": "bash-completion/completions",
    "_dfmeta": "zsh/site-functions",
    "dfmeta.fish": "fish/vendor_completions.d",
}
"""File of ``etc/completion`` → where a wheel has it, below ``share``."""
LEFT_OUT = "what the page leaves out\n"
_PATH = re.compile(r"(?<![\w:/.])/[\w/.-]*")


class Shell:
    """root on a host whose daemon has its configuration and its state where they are by default.

    :ivar folder: all that the page names and is not the daemon's; ``source`` in it is where the
        commands are typed, a checkout of dfmeta.
    :ivar guests: those that the page types in, by the names of their prompts.
    :ivar inside: words before a command, after which it runs in the host's namespaces.
    :ivar services: unit → the program that systemd would start and stop.
    :ivar names: placeholder → what is typed in its place.
    :ivar variables: of the shell: those of the page, and those that its reader has set.
    :ivar typed: each command that was run, as the page has it.
    """

    def __init__(self, stack: ExitStack, switch: OpenvSwitch) -> None:
        self.switch = switch
        self.agent = stack.enter_context(Agent(switch))
        self.guests: dict[str, Guest] = {}
        self.inside = ["nsenter", f"--net=/run/netns/{switch.namespace.name}"]
        self.services: dict[str, Daemon] = {"dfmeta-agent": self.agent}
        self.names: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        self.typed: list[str] = []
        self.folder = netns.temporary_folder("shell")
        stack.callback(shutil.rmtree, self.folder)
        for place in ("bin", "source", *PLACES):
            (self.folder / place).mkdir(parents=True)
        (self.folder / "source/etc").symlink_to(ROOT / "etc")
        self._programs(self.folder / "bin")

    def places(self) -> dict[str, str]:
        """What a page names, and where that is; what is below others comes first."""
        return {
            "/etc/dfmeta/dfmeta.conf": str(self.agent.config_file),
            "/var/lib/dfmeta": str(self.agent.state_path),
            "/var/run/openvswitch": str(self.switch.rundir),
            **{place: f"{self.folder}{place}" for place in ELSEWHERE},
        }

    def read(self, block: Block) -> None:
        """Do what a block of a page says, and compare what is printed with what is shown.

        A configuration is the daemon's; any other text becomes the file of its caption.
        """
        if block.kind == "console":
            for step in steps(block.text):
                result = difference(step.shown, self.type(step))
                assert not result, f"{step.command}: {result}"
        elif block.kind == "ini" and block.caption == "/etc/dfmeta/dfmeta.conf":
            self.agent.configure(options(block.text))
        elif block.caption:
            (self.folder / "source" / block.caption).write_text(block.text + "\n")

    def type(self, step: Step) -> str:
        """What a command prints; it has to succeed."""
        if step.guest:
            self.typed.append(step.command)
            return self.within(step.guest, step.command)
        if self.stand_in(step.command):
            return LEFT_OUT if step.shown else ""
        return self.run(step.command)

    def type_all(self, text: str) -> str:
        """What the commands of a page, or of a part of one, print together."""
        return "".join(
            self.type(Step(guest=guest, command=command, shown=()))
            for guest, command in located(text)
        )

    def within(self, name: str, command: str) -> str:
        """What a command prints in a guest."""
        return self.guests[name].namespace.run(["sh", "-euc", command]).stdout

    def stand_in(self, command: str) -> bool:
        """Do what systemd or venv would do; whether a command is not to be typed here."""
        words = self.filled(command).split()
        if words[0] == "systemctl":
            for unit, service in self.services.items():
                if {unit, f"{unit}.service"} & set(words):
                    self._systemctl(words[1], service)
            return True
        if words[:3] == ["python3", "-m", "venv"]:
            self._install(words[3])
            return True
        return explained(command) is not None

    def filled(self, command: str) -> str:
        """A command with what stands for its placeholders."""
        for name, value in self.names.items():
            command = re.sub(rf"\b{name}\b", value, command)
        return command

    def run(self, command: str) -> str:
        """What a command on the host prints, with the page's names for what it speaks of."""
        if assigned := re.fullmatch(r"(\w+)=(\S+)", command):
            self.typed.append(command)
            self.variables[assigned[1]] = assigned[2]
            return ""
        printed = netns.run(self._typed(command), env=self._environment()).stdout
        for place, real in self.places().items():
            printed = printed.replace(real, place)
        return printed

    def background(self, command: str) -> subprocess.Popen[bytes]:
        """A command on the host that does not end by itself."""
        return netns.spawn(self._typed(command), env=self._environment())

    def _typed(self, command: str) -> list[str]:
        self.typed.append(command)
        command, known = self.filled(command), self.places()
        for named in _PATH.findall(command):
            assert named.startswith(tuple(known)), f"{named} is this machine's"
        for place, real in known.items():
            command = re.sub(rf"(?<![\w/.]){re.escape(place)}", real, command)
        return [*self.inside, "sh", "-euc", f"cd {self.folder}/source; {{ {command}\n}} 2>&1"]

    def _environment(self) -> dict[str, str]:
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return {**self.switch.environment(), **self.variables, "PATH": path}

    def _systemctl(self, action: str, service: Daemon) -> None:
        if action not in ("start", "enable") and service.running:
            service.stop()
        if action in ("start", "enable", "restart"):
            # The sample may stand there as it is, which knows nothing of the test's places.
            service.configure({})
            service.start()

    def _install(self, home: str) -> None:
        assert home.startswith("/opt/dfmeta-")
        place = Path(f"{self.folder}{home}")
        shutil.copytree(self.folder / "bin", place / "bin")
        share = place / "share/dfmeta"
        share.mkdir(parents=True)
        for folder in ("container", "systemd", "sysusers.d"):
            (share / folder).symlink_to(ROOT / "etc" / folder)
        (share / "dfmeta.conf.sample").symlink_to(ROOT / "etc/dfmeta/dfmeta.conf.sample")
        shutil.copytree(ROOT / "etc/man", place / "share/man")
        for shell in COMPLETION:
            target = place / "share" / COMPLETION[shell]
            target.mkdir(parents=True)
            shutil.copy(ROOT / "etc/completion" / shell, target)

    def _programs(self, folder: Path) -> None:
        script(folder / "dfmeta", *command_with(self.agent.config_file))
        for name in ("dfmeta-agent", "dfmeta-store"):
            script(folder / name, *program(name))
        usual = UNPACKED / "usr/bin"
        script(folder / "ovs-ofctl", str(usual / "ovs-ofctl"))
        script(folder / "nft", str(UNPACKED / "usr/sbin/nft"))
        script(folder / "ethtool", "/usr/sbin/ethtool")
        script(
            folder / "ovs-vsctl", str(usual / "ovs-vsctl"), f"--db={self.switch.ovsdb_connection}"
        )


def options(text: str) -> dict[str, dict[str, object]]:
    """A configuration file's groups."""
    reader = configparser.ConfigParser(interpolation=None, default_section="none")
    reader.read_string(text)
    return {group: dict(reader[group]) for group in reader.sections()}


def command_with(file: Path) -> list[str]:
    """The command ``dfmeta`` on a host whose configuration is in *file* by default."""
    code = (
        "from dfmeta import conf\nfrom dfmeta.cli.ctl import main\n"
        f"conf.DEFAULT_FILES = ({str(file)!r},)\nmain()"
    )
    return [sys.executable, "-c", code]


def script(path: Path, *command: str) -> None:
    """Write a program that is this command, with the arguments that it gets."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
