"""devstack's plugin: each phase with devstack's functions replaced, and twice."""

import configparser
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from dfmeta import conf
from tests.harness.certificates import Authority

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
STACK = (
    "stack pre-install",
    "stack install",
    "stack post-config",
    "stack extra",
    "stack test-config",
)
LIFE = (*STACK, "unstack", "clean")
SECRET = "b5d1f0c2a7"
CONFIG = "etc/dfmeta/dfmeta.conf"
NOVA = "etc/nova/nova.conf"
L3 = "etc/neutron/l3_agent.ini"
DHCP = "etc/neutron/dhcp_agent.ini"
ML2 = "etc/neutron/ml2_conf.ini"
CONSTRAINTS = "requirements/upper-constraints.txt"
SHELL = """
set -o errexit -o errtrace -o pipefail -o nounset -o xtrace
source "$STUBS"
source "$PLUGIN/settings"
for phase in "$@"; do
    # As run_plugins does: both words without quotes.
    # shellcheck disable=SC2086
    source "$PLUGIN/plugin.sh" $phase
done
printf 'ENABLED %s\\n' "$ENABLED_SERVICES"
"""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of some phases; the trace is what stack.sh writes into its log."""

    status: int
    trace: str
    services: frozenset[str]
    calls: tuple[str, ...]

    def called(self, word: str) -> list[str]:
        return [call for call in self.calls if call.startswith(word)]


class Devstack:
    """A host's files below a folder, and stack.sh as far as the plugin sees it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bin", "stack/dfmeta", "data", "etc/nova", "etc/neutron", "requirements"):
            (root / folder).mkdir(parents=True)
        (root / "stack/dfmeta/setup.cfg").symlink_to(ROOT / "setup.cfg")
        (root / CONSTRAINTS).write_text("click===8.3.1\n")
        (root / ML2).write_text("[ovn]\novn_metadata_enabled = False\n")
        self.program(status=0)
        self.rebuild_nova()
        (root / L3).write_text("[DEFAULT]\ninterface_driver = openvswitch\n")
        (root / DHCP).write_text("[DEFAULT]\nenable_isolated_metadata = True\n")

    def program(self, *, status: int) -> None:
        program = self.root / "bin/dfmeta-agent"
        program.write_text(f"#!/bin/sh\nexit {status}\n")
        program.chmod(0o755)

    def rebuild_nova(self) -> None:
        """Write nova.conf anew, as each stack.sh does."""
        (self.root / NOVA).write_text("[DEFAULT]\ndebug = True\n\n[neutron]\nusername = nova\n")

    def run(self, phases: Sequence[str], **local_conf: str) -> Ran:
        calls = self.root / "calls"
        calls.write_text("")
        done = subprocess.run(
            ["bash", "-c", SHELL, "stack.sh", *phases],
            env={
                "PATH": os.environ["PATH"],
                "ROOT": str(self.root),
                "CALLS": str(calls),
                "STUBS": str(HERE / "stubs.sh"),
                "INI": str(HERE / "ini.py"),
                "PLUGIN": str(ROOT / "devstack"),
                "PYTHON": sys.executable,
                **local_conf,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        services = re.findall(r"^ENABLED (.*)$", done.stdout, re.MULTILINE)
        return Ran(
            status=done.returncode,
            trace=done.stderr,
            services=frozenset(services[0].split(",") if services else ()),
            calls=tuple(calls.read_text().splitlines()),
        )

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Every file and folder of the host, with mode and content."""
        return {
            str(path.relative_to(self.root)): (
                path.stat().st_mode,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in sorted(self.root.rglob("*"))
            if path.name != "calls"
        }

    def ini(self, name: str) -> configparser.RawConfigParser:
        ini = configparser.RawConfigParser(default_section="")
        ini.read(self.root / name)
        return ini


@pytest.fixture
def devstack(tmp_path: Path) -> Devstack:
    return Devstack(tmp_path / "host")


def good(ran: Ran) -> Ran:
    assert ran.status == 0, ran.trace[-3000:]
    return ran


@pytest.mark.parametrize("agent", ["openvswitch", "ovn"])
@pytest.mark.parametrize("phase", LIFE, ids=lambda phase: phase.replace(" ", "-"))
def test_phase_may_run_twice(devstack: Devstack, phase: str, agent: str) -> None:
    before = LIFE[: LIFE.index(phase)]
    if before:
        good(devstack.run(before, Q_AGENT=agent))
    good(devstack.run([phase], Q_AGENT=agent))
    once = devstack.files()
    second = good(devstack.run([phase, phase], Q_AGENT=agent))
    assert devstack.files() == once
    assert "dfmeta-agent" in second.services


def test_dfmeta_and_neutron_and_nova_are_configured(devstack: Devstack) -> None:
    dhcp = (devstack.root / DHCP).read_bytes()
    ran = good(devstack.run(STACK, METADATA_PROXY_SHARED_SECRET=SECRET))
    file = devstack.root / CONFIG
    loaded = conf.load([str(file)], prog="test")
    assert (loaded.df_metadata.backend, loaded.df_metadata.integration_bridge) == ("nova", "br-int")
    assert loaded.df_metadata.state_path == str(devstack.root / "data/dfmeta")
    assert (loaded.nova_metadata_host, loaded.nova_metadata_port) == ("192.0.2.10", 8775)
    assert loaded.metadata_proxy_shared_secret == SECRET
    assert loaded.debug
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o007) == (0o600, 0)
    assert not devstack.ini(CONFIG).has_section("neutron"), "no source of identity asks Neutron"
    nova = devstack.ini(NOVA)["neutron"]
    assert nova["service_metadata_proxy"] == "True"
    assert nova["metadata_proxy_shared_secret"] == SECRET
    assert nova["username"] == "nova"
    assert "async_wait configure_neutron_nova" in ran.calls
    # Routers get no proxy, and guests without one keep their route.
    l3 = devstack.ini(L3)["DEFAULT"]
    assert (l3["enable_metadata_proxy"], l3["interface_driver"]) == ("False", "openvswitch")
    assert (devstack.root / DHCP).read_bytes() == dhcp
    assert devstack.ini(ML2)["ovn"]["ovn_metadata_enabled"] == "False"


def test_ovn_gives_the_route_without_its_agent_and_has_its_bridge(devstack: Devstack) -> None:
    l3 = (devstack.root / L3).read_bytes()
    ran = good(devstack.run(STACK, Q_AGENT="ovn", OVS_BRIDGE="br-other"))
    loaded = conf.load([str(devstack.root / CONFIG)], prog="test").df_metadata
    assert loaded.integration_bridge == "br-int"
    assert loaded.ovsdb_connection == f"unix:{devstack.root}/run/db.sock"
    assert loaded.identity_sources == ["ovsdb", "libvirt"]
    assert devstack.ini(ML2)["ovn"]["ovn_metadata_enabled"] == "True"
    assert devstack.ini(NOVA)["neutron"]["service_metadata_proxy"] == "True"
    assert (devstack.root / L3).read_bytes() == l3
    assert {"ovn-controller", "ovn-northd", "dfmeta-agent"} < ran.services


def test_devstacks_settings_reach_the_configuration(devstack: Devstack) -> None:
    Authority(devstack.root).certificate.rename(devstack.root / "ca-bundle.pem")
    settings = {
        "DFMETA_NOVA_METADATA_HOST": "192.0.2.7",
        "DFMETA_NOVA_METADATA_PORT": "8776",
        "DFMETA_NOVA_METADATA_PROTOCOL": "https",
        "DFMETA_ADMIN_LISTEN": "127.0.0.1:9000",
        "DFMETA_IDENTITY_SOURCES": "ovsdb, neutron",
    }
    good(devstack.run(STACK, **settings))
    loaded = conf.load([str(devstack.root / CONFIG)], prog="test")
    assert (loaded.nova_metadata_host, loaded.nova_metadata_port) == ("192.0.2.7", 8776)
    assert loaded.nova_metadata_protocol == "https"
    assert loaded.auth_ca_cert == str(devstack.root / "ca-bundle.pem")
    assert loaded.df_metadata.admin_listen == "127.0.0.1:9000"
    assert loaded.df_metadata.identity_sources == ["ovsdb", "neutron"]
    account = devstack.ini(CONFIG)["neutron"]
    assert account["auth_url"] == "http://192.0.2.10/identity"
    assert account["password"] == "for services"


def test_what_asks_neutron_is_installed_with_what_that_needs(devstack: Devstack) -> None:
    checkout = devstack.root / "stack/dfmeta"
    plain = good(devstack.run(["stack install"]))
    asking = good(devstack.run(["stack install"], DFMETA_IDENTITY_SOURCES="neutron"))
    assert plain.called("setup_develop") == [f"setup_develop {checkout}"]
    assert asking.called("setup_develop") == [f"setup_develop {checkout} neutron"]


def test_metadata_agents_are_switched_off_and_nothing_else(devstack: Devstack) -> None:
    agents = ("q-meta", "q-ovn-metadata-agent", "q-ovn-agent")
    names = {*agents, *(name.replace("q-", "neutron-") for name in agents[1:])}
    services = ",".join(sorted({"n-cpu", "q-svc", "neutron-metadata-agent", *names}))
    ran = good(devstack.run([], Q_AGENT="ovn", ENABLED_SERVICES=services))
    assert ran.services == {"n-cpu", "q-svc", "dfmeta-agent"}
    extensions = "metadata,ovn-bgp"
    ran = good(devstack.run([], Q_AGENT="ovn", OVN_AGENT_EXTENSIONS=extensions))
    assert "q-ovn-agent" in ran.services, "another extension needs it"


def test_a_secret_is_drawn_once_and_is_the_same_on_both_sides(devstack: Devstack) -> None:
    good(devstack.run(STACK))
    secret = devstack.ini(CONFIG)["DEFAULT"]["metadata_proxy_shared_secret"]
    assert re.fullmatch("[0-9a-f]{64}", secret)
    assert devstack.ini(NOVA)["neutron"]["metadata_proxy_shared_secret"] == secret
    # That which Nova has already is taken.
    devstack.rebuild_nova()
    with (devstack.root / NOVA).open("a") as nova:
        nova.write(f"metadata_proxy_shared_secret = {SECRET}\n")
    good(devstack.run(STACK))
    assert devstack.ini(CONFIG)["DEFAULT"]["metadata_proxy_shared_secret"] == SECRET


def test_the_log_has_no_secret_and_traces_the_phases(devstack: Devstack) -> None:
    ran = good(devstack.run(LIFE, METADATA_PROXY_SHARED_SECRET=SECRET))
    assert "dfmeta_configure" in ran.trace
    assert "dfmeta_start" in ran.trace, "tracing goes on after the configuration"
    assert SECRET not in ran.trace
    assert not [call for call in ran.calls if SECRET in call]


def test_the_daemon_is_started_as_root_and_awaited(devstack: Devstack) -> None:
    ran = good(devstack.run(STACK, DFMETA_ADMIN_LISTEN="127.0.0.1:9000"))
    program, config = devstack.root / "bin/dfmeta-agent", devstack.root / CONFIG
    command = f"{program} --config-file {config}"
    assert ran.called("run_process") == [
        f"run_process service=dfmeta-agent command={command} group= user=root"
    ]
    (waited,) = ran.called("test_with_retry")
    assert "http://127.0.0.1:9000/healthz/readiness" in waited
    assert waited.endswith("seconds=60")


def test_unstack_restores_the_host_while_there_is_a_bridge(devstack: Devstack) -> None:
    before = devstack.files().keys()
    good(devstack.run(STACK))
    (devstack.root / "data/dfmeta").mkdir()
    program, config = devstack.root / "bin/dfmeta-agent", devstack.root / CONFIG
    devstack.program(status=1)
    assert good(devstack.run(["unstack"])).called("warn")
    assert config.exists(), "a clean-up that failed can be repeated"
    devstack.program(status=0)
    ran = good(devstack.run(["unstack"]))
    assert ran.calls[:2] == (
        "stop_process dfmeta-agent",
        f"sudo {program} --config-file {config} --cleanup",
    )
    assert not config.exists()
    assert not [call for call in good(devstack.run(["clean"])).calls if "--cleanup" in call]
    assert devstack.files().keys() == before
    good(devstack.run(STACK))
    other = devstack.root / "etc/dfmeta/tokens"
    other.write_text("")
    good(devstack.run(["clean"]))
    assert other.exists(), "a file of somebody else"
    assert not config.exists()


def test_a_host_without_guests_tells_nova_and_runs_nothing(devstack: Devstack) -> None:
    ran = good(devstack.run(LIFE, DISABLED_SERVICES="dfmeta-agent", Q_AGENT="linuxbridge"))
    assert not ran.called("run_process")
    assert not ran.called("setup_develop")
    assert not (devstack.root / CONFIG).exists()
    assert devstack.ini(NOVA)["neutron"]["service_metadata_proxy"] == "True"
    nova = (devstack.root / NOVA).read_bytes()
    without = {"ENABLED_SERVICES": "n-cpu,q-agt", "METADATA_PROXY_SHARED_SECRET": SECRET}
    good(devstack.run(STACK, **without))
    assert (devstack.root / NOVA).read_bytes() == nova, "a host without Nova's API"


WRONG: list[tuple[str, dict[str, str], str]] = [
    ("pre-install", {"Q_AGENT": "linuxbridge"}, "Q_AGENT=openvswitch"),
    ("pre-install", {"PYTHON3_VERSION": "3.9"}, "Python 3.11"),
    ("pre-install", {"DFMETA_NOVA_METADATA_PROTOCOL": "tls"}, "'tls'"),
    ("pre-install", {"DFMETA_NOVA_METADATA_PORT": "metadata"}, "'metadata'"),
    (
        "pre-install",
        {"DFMETA_IDENTITY_SOURCES": "ovsdb,neutron", "SERVICE_PASSWORD": ""},
        "SERVICE_PASSWORD",
    ),
    ("post-config", {"ENABLED_SERVICES": "n-cpu,q-agt"}, "METADATA_PROXY_SHARED_SECRET"),
]


def test_settings_that_cannot_work_end_it_with_a_line_that_says_why(devstack: Devstack) -> None:
    for phase, local_conf, word in WRONG:
        ran = devstack.run([f"stack {phase}"], **local_conf)
        *_, last = (line for line in ran.trace.splitlines() if not line.startswith("+"))
        assert ran.status == 1, word
        assert last.startswith("[ERROR] "), word
        assert word in last


def test_constraints_of_an_older_openstack_end_it(devstack: Devstack) -> None:
    constraints = devstack.root / CONSTRAINTS
    each = "click===8.1.8;python_version=='3.9'\nclick===8.2.2;python_version>='3.10'\n"
    for text in ("click===8.4.2\n", "click===10.0\n", each):
        constraints.write_text(text)
        good(devstack.run(["stack pre-install"]))
    constraints.write_text("click===8.1.8\n")
    ran = devstack.run(["stack pre-install"])
    assert ran.status == 1
    assert "click 8.2.1 or newer (OpenStack's constraints have 8.1.8): use" in ran.trace
