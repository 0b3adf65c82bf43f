"""The units should have what the page on installing says of them; tests/host has the analyzer."""

import re
from pathlib import Path

from dfmeta.admin.server import HELD
from dfmeta.cmd import central, daemon
from dfmeta.conf import agent, kinds, limits
from dfmeta.store.api.checks import USERDATA_MAX
from tests.core.docs.sources import ROOT
from tools import package

UNITS = ROOT / "etc/systemd"
PAGE = (ROOT / "doc/source/install.rst").read_text(encoding="utf-8")
SERVICES = [UNITS / f"{name}.service" for name in ("dfmeta-agent", "dfmeta-store")]


def value(path: Path, name: str) -> str:
    result = re.findall(rf"^{name}=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(result) == 1, f"{path.name}: {name}"
    return str(result[0])


def test_memory_has_a_bound_that_the_page_argues_for() -> None:
    (most,) = {value(unit, "MemoryMax") for unit in SERVICES}
    assert f"Both units have ``MemoryMax={most}``" in PAGE
    (gigabytes,) = re.findall(r"^([0-9]+)G$", most)
    words = " ".join(PAGE.split())
    ports, workers, worker, guests = 322 * 10**6, 8, 40 * 10**6, 20
    large = {opt.name: opt.default for opt in limits.OPTS}["requests_per_port"] * USERDATA_MAX
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
    assert f"daemon takes {ports // 10**6} MB" in limits_page


def test_a_service_that_ends_with_a_status_is_started_again_each_time() -> None:
    for unit in SERVICES:
        assert value(unit, "Restart") == "on-failure"
        assert value(unit, "StartLimitIntervalSec") == "0", "however often it happens"
        assert "RestartPreventExitStatus" not in unit.read_text(encoding="utf-8")


def test_package_has_each_unit_and_a_version_that_sorts() -> None:
    rules = (ROOT / "tools/debian/rules").read_text(encoding="utf-8")
    services, sockets = re.findall(r"^(?:services|sockets) := (.*)$", rules, re.MULTILINE)
    units = {f"dfmeta-{name}.service" for name in services.split()}
    units |= {f"dfmeta-{name}.socket" for name in sockets.split()}
    assert units == {path.name for path in UNITS.iterdir()}
    versions = {"1.0": "1.0", "1.0rc2": "1.0~rc2", "1.1.dev3+gdev1": "1.1~dev3+gdev1"}
    for version, wanted in versions.items():
        assert package.debian_version(version, "debian-12") == f"{wanted}-1~deb12"


def test_accounts_are_those_of_the_options() -> None:
    text = (ROOT / "etc/sysusers.d/dfmeta.conf").read_text(encoding="utf-8")
    users = re.findall(r"^u (\S+) - ", text, re.MULTILINE)
    assert users == [kinds.HAPROXY_ACCOUNT, kinds.WORKER_ACCOUNT]
    assert all(f"``{user}``" in PAGE for user in users)


def test_a_socket_unit_passes_the_sockets_that_its_service_looks_for() -> None:
    for path in UNITS.glob("*.socket"):
        prog, _, which = path.stem.rpartition("-")
        assert prog in (daemon.PROG, central.PROG)
        assert which in ("guests", "admin")
        assert value(path, "FileDescriptorName") == path.stem
        assert value(path, "Service") == f"{prog}.service"
        assert f"   ``{path.name}``; " in PAGE


def test_the_sockets_of_the_agent_are_where_the_options_are_unless_they_are_set() -> None:
    default = {opt.name: opt.default for opt in agent.OPTS}
    text = (UNITS / "dfmeta-agent-guests.socket").read_text(encoding="utf-8")
    guests, guests6 = re.findall(r"^ListenStream=(.*)$", text, re.MULTILINE)
    assert default["host_ip"] == "$ip"
    assert guests == f"{default['ip']}:{default['port']}"
    assert guests6 == f"[{default['host_ip6']}]:{default['port']}"
    for name in ("dfmeta-agent-admin.socket", "dfmeta-store-admin.socket"):
        assert value(UNITS / name, "ListenStream") == default["admin_listen"]
