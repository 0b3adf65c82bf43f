"""Which commands the pages have, and which of them no test types.

A command stands in a ``console`` or ``sh`` block: after a prompt, or on a line of its own. A block
with a caption is a file. A test types a command as it stands, and so it does what the page says.
A module that types a page calls :func:`untyped` with what it has typed; :data:`TYPED` names it.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.harness.netns import ROOT

SOURCE = ROOT / "doc/source"
TYPED: Mapping[str, str] = {
    "README": "tests/soak/e2e/test_pages.py",
    "containers": "tests/soak/e2e/test_containers_page.py",
    "devices": "tests/soak/e2e/test_pages.py",
    "doctor": "tests/soak/e2e/test_pages.py",
    "first-hour-libvirt": "tests/soak/e2e/test_first_hour.py",
    "first-hour-openstack": "tests/soak/e2e/test_first_hour_openstack.py",
    "install": "tests/soak/e2e/test_upgrade_page.py",
    "ipv6-only": "tests/soak/e2e/test_pages.py",
    "migrate": "tests/soak/e2e/test_pages.py",
    "meta-ip": "tests/soak/e2e/test_pages.py",
    "owns": "tests/host/e2e/test_owns.py",
    "pipeline": "tests/soak/e2e/test_pages.py",
    "runbook": "tests/soak/e2e/test_runbook.py",
    "store-api": "tests/soak/e2e/test_pages.py",
    "store-central": "tests/soak/e2e/test_pages.py",
    "store-kvm": "tests/soak/e2e/test_pages.py",
    "trunks": "tests/soak/e2e/test_pages.py",
    "upgrade": "tests/soak/e2e/test_upgrade_page.py",
}
"""Each page with commands, and the module that types them."""
NOT_TYPED: Mapping[str, str] = {
    r"systemctl .*": "no systemd runs there: the test starts and stops the daemon itself",
    r"journalctl .*": "no systemd runs there: the runbook's tests read the daemon's log",
    r"systemd-analyze .*": "tests/host/docs/test_units_doc.py runs it on the units in the source",
    r"apt-get install .*": "it would change the machine of the tests",
    r"apt install \S+dfmeta_\S+": "tests/soak/real/test_package.py installs it in a machine",
    r"systemd-sysusers": "tests/host/docs/test_units_doc.py runs it in a folder of its own",
    r"ovs-vsctl --may-exist add-br br-int": "the test makes the bridge, with a userspace datapath",
    r"dnsmasq .*": "guests of the tests have their addresses already",
    r"virsh .*": "no libvirt runs there: the test writes its files and rows of Open vSwitch",
    r"openstack .*": "no OpenStack runs in a test",
    r"pip install -e \.\[test\]|pytest tests/core.*": "CI runs tools/test",
    r"sudo tools/(demo|test)": "they set up the machine of the tests; CI runs tools/test",
    r"python3 -m build": "tests/soak/e2e/test_packages.py builds, without a network",
    r"python3 -m venv \S+": "tests/soak/e2e/test_packages.py makes one, without a network",
    r"\S+/bin/pip install \S+": "tests/soak/e2e/test_packages.py installs, without a network",
    r"(mmdebstrap|podman) .*": "tests/soak/e2e/test_image.py runs it, on the image",
    r"psql .*": "tests/host/docs/test_migrate_hollow.py sends its statements to PostgreSQL",
    r"curl .* https://OLD/.*": "hollow-metadataservice does not run in a test",
    r"udevadm .*|ls -l /dev/disk/by-role": "test_tag_devices.py has udev and devices",
    r"ssh .*": "it needs another host",
    r"kill .*/host_metadata_proxy.*": "Neutron's metadata_path does not run in a test",
}
"""A command that no test types as it stands: why, and what stands in."""
NOT_TYPED_PAGES: Mapping[str, str] = {
    "dfmeta-cni": "test_cni_doc.py calls it; test_swarm.py types a section",
    "status": "it needs another host",
    "testing": "CI runs tools/test",
}
"""Pages of which no command is typed."""
PROGRAMS = re.compile(
    r"(sudo |\$ |# |\w+# )?(\S*/)?(apt-get|curl|dfmeta(-agent|-store)?|ethtool|install|ip|"
    r"journalctl|kill|ln|nft|nsenter|nstat|openstack|ovs-\w+|pip|podman|psql|python3?|rm|sqlite3|"
    r"ss|ssh|sysctl|systemctl|tcpdump|udevadm|useradd|virsh) +[^\s=:]"
)
"""How a line begins that is a command."""
_BLOCK = re.compile(
    r"^(?P<margin> *)\.\. code-block:: (?P<kind>console|sh)\n"
    r"(?P<options>(?:(?P=margin) +:.*\n)*)\n(?P<text>(?:(?P=margin) +.*\n|[ \t]*\n)+)",
    re.MULTILINE,
)
_PROMPT = re.compile(r"^(?:(\w*)#|\$) (.+)$")
_COMMENT = re.compile(r"\s{2,}# .*$")
_HEREDOC = re.compile(r"<<(\w+)")


class Lines(NamedTuple):
    """A block of commands: how it is written, and its text without the margin."""

    kind: str
    text: str


def page(name: str) -> str:
    """The text of a page, by its name without a folder."""
    path = ROOT / "README.rst" if name == "README" else SOURCE / f"{name}.rst"
    return path.read_text(encoding="utf-8")


def chapter(name: str, title: str) -> str:
    """A part of a page, from a title with a double rule to the next."""
    parts = re.split(r"^(\S.*)\n={3,}\n", page(name), flags=re.MULTILINE)
    return parts[parts.index(title) + 1]


def pages() -> list[str]:
    """The names of all pages."""
    return sorted({"README", *(path.stem for path in SOURCE.glob("*.rst"))})


def blocks(text: str) -> Iterator[Lines]:
    """Each block of commands."""
    for result in _BLOCK.finditer(text):
        if ":caption:" not in result["options"]:
            yield Lines(result["kind"], textwrap.dedent(result["text"]).strip("\n"))


def commands(text: str) -> Iterator[str]:
    """Every command of a page, in its order, on one line unless it brings its input along."""
    for _guest, command in located(text):
        yield command


def located(text: str) -> Iterator[tuple[str, str]]:
    """The same, each after the name of the guest that it is typed in; empty for the host."""
    for block in blocks(text):
        yield from (of_console if block.kind == "console" else of_shell)(block.text)


def of_console(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console: what stands behind prompts."""
    for line in text.replace("\\\n", "").splitlines():
        if match := _PROMPT.match(line):
            yield match[1] or "", match[2]


def of_shell(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a script on the host, without comments."""
    lines = iter(text.replace("\\\n", "").splitlines())
    for line in lines:
        command = _COMMENT.sub("", line)
        if end := _HEREDOC.search(line):
            for more in lines:
                command += f"\n{more}"
                if more == end[1]:
                    break
        if command.strip():
            yield "", command


def untyped(name: str, typed: Iterable[str]) -> list[str]:
    """The commands of a page that were not typed, and that :data:`NOT_TYPED` does not explain."""
    one_lines = {_one_line(command) for command in typed}
    return [
        command
        for command in commands(page(name))
        if _one_line(command) not in one_lines and explained(command) is None
    ]


def explained(command: str) -> str | None:
    """The pattern of :data:`NOT_TYPED` that a command matches."""
    line = _one_line(command)
    return next((pattern for pattern in NOT_TYPED if re.fullmatch(pattern, line)), None)


def hidden(text: str) -> list[str]:
    """Lines that look like commands in blocks that are not marked as such."""
    bare = _BLOCK.sub("", text)
    texts = re.findall(r"(?:^|.*[^.\n]|^ *)::\n\n((?: +.*\n|[ \t]*\n)+)", bare, re.MULTILINE)
    texts += re.findall(
        r"^ *\.\. code-block:: (?:text|bash|shell)\n\n((?: +.*\n|[ \t]*\n)+)", bare, re.MULTILINE
    )
    firsts = [block.strip().splitlines()[0] for block in texts if block.strip()]
    return [line for line in firsts if PROGRAMS.match(line)]


def _one_line(command: str) -> str:
    return " ".join(command.split())
