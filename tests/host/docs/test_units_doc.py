"""The units should be as hardened as the page on installing says, which has why not more."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from dfmeta.admin.server import HELD
from dfmeta.cmd import central, daemon
from dfmeta.conf import agent, limits
from dfmeta.store.api.checks import USERDATA_MAX
from tests.core.docs.page import rows, sections

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "etc/systemd"
PAGE = (ROOT / "doc/source/install.rst").read_text(encoding="utf-8")
SERVICES = ("dfmeta-agent", "dfmeta-store")
EXPOSURE = {"dfmeta-agent": 3.0, "dfmeta-store": 1.5}
"""At most; the analyzer calls 5 and more "MEDIUM"."""
SOCKETS = sorted(UNITS.glob("*.socket"))


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", params=SERVICES)
def service(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def told(service: str) -> dict[str, str]:
    """Open item to its reason, in the page's table of that unit."""
    (section,) = (one for one in sections(PAGE) if one.title == f"{service}.service")
    found = rows("\n\n".join(section.paragraphs))
    return {item.strip("`"): reason for item, reason in found if item.startswith("``")}


def test_each_open_item_has_its_reason(service: str) -> None:
    path = UNITS / f"{service}.service"
    done = analyze("security", "--offline=true", "--json=short", path)
    items = json.loads(done.stdout)
    # What does not apply has no value.
    open_items = {one["name"] for one in items if one["set"] is False}
    reasons = told(service)
    assert open_items - reasons.keys() == set(), "no reason is given"
    # Another release of the analyzer may know fewer.
    assert reasons.keys() & {one["name"] for one in items} == open_items
    assert [item for item, reason in reasons.items() if not reason.endswith(".")] == []


def test_the_exposure_is_what_the_page_says(service: str) -> None:
    done = analyze("security", "--offline=true", UNITS / f"{service}.service")
    found = re.search(r"exposure level for \S+: ([\d.]+) (\w+)", done.stdout)
    assert found is not None, done.stderr
    assert found[2] == "OK"
    said = re.search(r"the exposure of the agent is ([\d.]+) and the store's ([\d.]+)", PAGE)
    assert said is not None
    assert float(said[1 + SERVICES.index(service)]) <= EXPOSURE[service]
    assert float(found[1]) <= EXPOSURE[service]


def test_systemd_has_nothing_to_say_of_any_unit() -> None:
    done = analyze("verify", *sorted(UNITS.iterdir()))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_memory_has_a_bound_that_the_page_argues_for(service: str) -> None:
    most = value(UNITS / f"{service}.service", "MemoryMax")
    assert f"Both units have ``MemoryMax={most}``" in PAGE
    (gigabytes,) = re.findall(r"^([0-9]+)G$", most)
    words = " ".join(PAGE.split())
    ports, workers, worker, guests = 228 * 10**6, 8, 40 * 10**6, 20
    large = {one.name: one.default for one in limits.OPTS}["requests_per_port"] * USERDATA_MAX
    needed = ports + workers * worker + HELD + guests * large
    assert needed < int(gigabytes) << 30
    for fact in (
        f"takes {ports // 10**6} MB with 5,000",
        f"a worker some {worker // 10**6} MB",
        f"admin listener {HELD >> 20} MiB",
        f"{large // USERDATA_MAX} of {USERDATA_MAX >> 20} MiB at most",
        "eight workers and more than twenty guests",
    ):
        assert fact in words
    limits_page = " ".join((ROOT / "doc/source/limits.rst").read_text(encoding="utf-8").split())
    assert f"the daemon takes {ports // 10**6} MB" in limits_page


def value(path: Path, name: str) -> str:
    found = re.findall(rf"^{name}=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == 1, f"{path.name}: {name}"
    return str(found[0])


def test_a_service_that_ends_with_a_status_is_started_again_each_time(service: str) -> None:
    unit = UNITS / f"{service}.service"
    assert value(unit, "Restart") == "on-failure"
    assert value(unit, "StartLimitIntervalSec") == "0", "however often it happens"
    assert "RestartPreventExitStatus" not in unit.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SOCKETS, ids=[one.stem for one in SOCKETS])
def test_a_socket_unit_passes_what_its_service_looks_for(path: Path) -> None:
    prog, _, which = path.stem.rpartition("-")
    assert prog in (daemon.PROG, central.PROG)
    assert which in ("guests", "admin")
    assert value(path, "FileDescriptorName") == path.stem
    assert value(path, "Service") == f"{prog}.service"
    assert f"* - ``{path.name}``" in PAGE


def test_the_sockets_of_the_agent_are_where_the_options_are_unless_they_are_set() -> None:
    default = {one.name: one.default for one in agent.OPTS}
    text = (UNITS / "dfmeta-agent-guests.socket").read_text(encoding="utf-8")
    guests, guests6 = re.findall(r"^ListenStream=(.*)$", text, re.MULTILINE)
    assert default["host_ip"] == "$ip"
    assert guests == f"{default['ip']}:{default['port']}"
    assert guests6 == f"[{default['host_ip6']}]:{default['port']}"
    for name in ("dfmeta-agent-admin.socket", "dfmeta-store-admin.socket"):
        assert value(UNITS / name, "ListenStream") == default["admin_listen"]
