"""A host before dfmeta, with it, after its end and after --cleanup: as doc/source/owns.rst says."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.core.docs.typed import untyped
from tests.harness.console import Step, blocks, difference, steps
from tests.harness.guest import Guest
from tests.harness.netns import ROOT
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.shell import Shell
from tests.host.e2e.support import asks_own, put

PAGE = (ROOT / "doc/source/owns.rst").read_text(encoding="utf-8")
STEPS = [step for block in blocks(PAGE) if block.kind == "console" for step in steps(block.text)]
SHOWN = {" ".join(line.split()) for step in STEPS for line in step.shown}
TAP = "tap-metadata"
STOP = "systemctl stop dfmeta-agent"
OURS = "cookie=0x64666d65"
COUNTERS = ("statistics", "status", "_uuid", "rstp_", "cur_cfg", "next_cfg", "link_resets")
"""Columns that Open vSwitch changes by itself."""
OF_A_DEVICE = (
    "name",
    "interfaces",
    "ofport",
    "ifindex",
    "mac_in_use",
    "mtu",
    "admin_state",
    "link_",
)
"""Columns in which each port differs from each other one."""
DEFAULTS = {"[]", "{}", "0", "false", '"full"'}
COUNTS = re.compile(
    r"has (\d+) flows, each guest's port adds (\d+), and each address [^.]* adds (\d+)\."
)

View = dict[str, set[str]]


class Host(Shell):
    """A host with a guest, and without dfmeta."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack, stack.enter_context(OpenvSwitch()))
        self.guest = stack.enter_context(Guest(self.switch))

    def type(self, step: Step) -> str:
        """What a command prints; systemd's part is the test's own."""
        if step.command != STOP:
            return self.run(step.command)
        self.agent.stop()
        return ""

    def look(self) -> View:
        """All that somebody could change, as lines, without what changes by itself."""
        namespace, ofctl = self.switch.namespace, self.switch.ofctl
        wait_for(self.has_all_routes, "the kernel's own routes of IPv6")
        flows = ofctl("--no-stats", "dump-flows", BRIDGE).splitlines()
        sysctls = namespace.run(["sysctl", "-a", "--pattern", r"^net\."], check=False).stdout
        tables = ("Open_vSwitch", "Bridge", "Port", "Interface", "Controller", "Manager", "QoS")
        return {
            "rules": lines(namespace.ip("rule") + namespace.run(["ip", "-6", "rule"]).stdout),
            "routes": lines(namespace.ip("route show table all")),
            "addresses": lines("\n".join(re.findall(r"inet6? .*", namespace.ip("address")))),
            "neighbours": lines(namespace.ip("neighbour show")),
            "sysctls": {line for line in lines(sysctls) if not by_itself(line)},
            "sockets": self.sockets(),
            "processes": {" ".join(line.split("\0")) for line in self.command_lines()},
            "flows": {flow.strip() for flow in flows if "actions=" in flow},
            **{table: self.rows(table) for table in tables},
        }

    def has_all_routes(self) -> bool:
        """Whether each IPv6 address and each device that is up has the kernel's own route.

        The kernel adds them later than the address and the flag: an address gets its route in a
        work queue (also with nodad, when it is never tentative), a device when IPv6 has been told
        of its carrier.
        """
        run = self.switch.namespace.run
        routes = json.loads(run(["ip", "-json", "-6", "route", "show", "table", "local"]).stdout)
        result = {(route["dst"], route["dev"]) for route in routes}
        wanted = set()
        for link in json.loads(run(["ip", "-json", "address"]).stdout):
            if {"UP", "LOWER_UP"} <= set(link["flags"]):
                addresses = [
                    address["local"]
                    for address in link["addr_info"]
                    if address["family"] == "inet6"
                ]
                multicast = [] if "LOOPBACK" in link["flags"] else ["ff00::/8"]
                wanted |= {(dst, link["ifname"]) for dst in addresses + multicast}
        return wanted <= result

    def command_lines(self) -> Iterator[str]:
        """Those of the processes in the namespace."""
        for pid in self.switch.namespace.processes():
            # One that has ended since the listing is not there.
            with suppress(FileNotFoundError, ProcessLookupError):
                yield Path(f"/proc/{pid}/cmdline").read_text()

    def sockets(self) -> set[str]:
        """Those that listen, and names in the abstract namespace, without Open vSwitch's own."""
        listening = self.switch.namespace.run(["ss", "-Hlntux"]).stdout
        named = self.switch.namespace.run(["ss", "-Hax", "src", "@*"]).stdout
        words = [line.split() for line in (listening + named).splitlines()]
        return {word[4] for word in words if not word[4].startswith(str(self.switch.rundir))}

    def rows(self, table: str) -> set[str]:
        """Columns of OVSDB that somebody sets, each with the name of its row."""
        return {
            f"{row.get('name', table)} {column} {json.dumps(value)}"
            for row in self.switch.records(table)
            for column, value in row.items()
            if not column.startswith(COUNTERS) and column not in ("ports", "bridges")
        }


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The host at four moments, what the page's commands printed, and which files are left."""

    before: View
    running: View
    ended: View
    cleaned: View
    printed: dict[str, str] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)


def lines(text: str) -> set[str]:
    """Each with single blanks."""
    return {" ".join(line.split()) for line in text.splitlines()}


def by_itself(sysctl: str) -> bool:
    """Whether that is a device's own, or a counter."""
    return bool(re.search(r"\.(tap-metadata|tap\d+)\.|nf_conntrack_count", sysctl))


def differ(view: View, other: View) -> View:
    """What is in one of them alone."""
    return {name: result for name in view if (result := view[name] ^ other[name])}


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    with ExitStack() as stack:
        host = Host(stack)
        before = host.look()
        host.agent.start()
        put(host.agent, host.guest)
        asks_own(host.guest)
        running = host.look()
        printed, ended = {}, running
        for step in STEPS:
            printed[step.command] = host.type(step)
            if step.command == STOP:
                ended = host.look()
        yield Seen(
            before=before,
            running=running,
            ended=ended,
            cleaned=host.look(),
            printed=printed,
            files={path.name for path in host.agent.state_path.iterdir()},
        )


@pytest.fixture(scope="module")
def came(seen: Seen) -> View:
    """What is there with dfmeta and was not before."""
    return differ(seen.before, seen.running)


def test_the_pages_commands_print_its_lines(seen: Seen) -> None:
    for step in STEPS:
        assert difference(step.shown, seen.printed[step.command]) == "", step.command
    assert untyped("owns", seen.printed) == []
    shown = {line.split()[-1] for line in SHOWN if line.startswith("-rw")}
    assert seen.files == shown


def test_the_host_has_no_object_of_another_kind(came: View) -> None:
    assert came.keys() == {
        *("rules", "routes", "addresses", "neighbours", "sysctls", "sockets", "processes"),
        *("flows", "Port", "Interface"),
    }


def test_every_rule_and_route_is_on_the_page(came: View) -> None:
    assert came["rules"] < SHOWN
    # The kernel's own come with an address.
    routes = {
        route.replace("table 2 ", "") for route in came["routes"] if "proto kernel" not in route
    }
    assert {route for route in routes if not route.startswith("multicast ff00::/8")} < SHOWN
    assert {neighbour.replace(f"dev {TAP} ", "") for neighbour in came["neighbours"]} < SHOWN
    assert came["addresses"] == {
        f"inet 169.254.169.254/32 scope global {TAP}",
        "inet6 fd00:a9fe:a9fe:a9fe::a9fe/128 scope global nodad noprefixroute",
    }


def test_one_value_of_sysctl_is_another(came: View) -> None:
    name = "net.ipv4.conf.all.arp_ignore"
    assert came["sysctls"] == {f"{name} = 0", f"{name} = 1"}


def test_every_socket_and_process_is_on_the_page(came: View) -> None:
    assert came["sockets"] == {
        *("127.0.0.1:9697", "169.254.169.254:18080", "[fd00:a9fe:a9fe:a9fe::a9fe]:18080"),
        *("@dfmeta-agent", "@dfmeta-listener"),
    }
    for word in ("TCP 127.0.0.1:9697", "``@dfmeta-agent ...``", "``@dfmeta-listener ...``"):
        assert f"* - {word}" in PAGE
    agent, holder = sorted(came["processes"], key=lambda process: "holder" in process)
    assert "dfmeta-agent --config-file" in agent
    assert "python -P -S -m dfmeta.cmd.holder" in holder
    assert "``python -P -S -m dfmeta.cmd.holder``" in PAGE


def test_every_flow_has_the_pages_cookie_and_no_other_changes(seen: Seen, came: View) -> None:
    assert all(flow.startswith(OURS) for flow in came["flows"])
    assert seen.before["flows"] < seen.running["flows"]
    (counts,) = COUNTS.findall(" ".join(PAGE.split()))
    assert len(came["flows"]) == sum(map(int, counts))


def test_the_port_is_as_the_page_shows_it_and_else_as_any_other(came: View) -> None:
    for table in ("Port", "Interface"):
        (step,) = [step for step in STEPS if f"list {table} " in step.command]
        shown = {line.partition(":")[0].strip() for line in step.shown}
        columns = {row.partition(" ")[2] for row in came[table] if row.startswith(f"{TAP} ")}
        assert len(columns) == len(came[table])
        others = {column for column in columns if not column.startswith((*shown, *OF_A_DEVICE))}
        assert {row.partition(" ")[2] for row in others} <= DEFAULTS


def test_at_its_end_only_what_the_page_says_goes(seen: Seen) -> None:
    gone = differ(seen.running, seen.ended)
    assert gone.keys() == {"sockets", "processes"}
    assert gone["sockets"] == {"127.0.0.1:9697", "@dfmeta-agent"}
    assert len(gone["processes"]) == 1


def test_after_a_clean_up_the_host_is_as_it_was(seen: Seen) -> None:
    assert differ(seen.before, seen.cleaned) == {}
