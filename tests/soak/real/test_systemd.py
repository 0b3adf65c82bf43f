"""dfmeta-agent under a booted systemd should do as its unit and the pages say."""

from collections.abc import Iterator

import pytest

from tests.harness.activator import WEDGE
from tests.harness.poll import wait_for
from tests.soak.real.node import CONFIGURATION, Guest, Node

WEB = Guest("web", "10.0.0.5", "fa:16:3e:00:00:05")
SYSTEMD = 150
"""Seconds of TimeoutStartSec=; an emulated CPU needs 30 to begin, and more on a busy machine."""
DROP_IN = "/run/systemd/system/dfmeta-agent.service.d/wedge.conf"
SOCKETS = "dfmeta-agent-guests.socket dfmeta-agent-admin.socket"


@pytest.fixture
def guest(node: Node) -> Iterator[Guest]:
    """One that is served."""
    node.put(WEB)
    node.plug(WEB)
    wait_for(lambda: node.ask(WEB) == WEB.name, "the first answer")
    yield WEB
    node.unplug(WEB)


def program(node: Node) -> str:
    """The command of the daemon that runs."""
    return node.text(f"tr '\\0' ' ' < /proc/{node.pid()}/cmdline")


def test_units_are_as_systemd_wants_them(node: Node) -> None:
    message = node.run(
        "cd /opt/dfmeta/share/dfmeta/systemd; systemd-analyze --man=no verify ./dfmeta-agent*"
    )
    assert "dfmeta" not in message.stdout + message.stderr
    assert node.text("systemctl is-system-running") == "running"


def test_a_restart_refuses_nobody(node: Node, guest: Guest) -> None:
    before = node.pid()
    with node.load(guest) as load:
        node.run("systemctl restart dfmeta-agent.service")
        node.wait_ready()
        assert node.ask(guest) == guest.name
    assert node.pid() != before
    assert load.faults() == []


def test_a_killed_daemon_is_started_again(node: Node, guest: Guest) -> None:
    before = node.pid()
    with node.load(guest) as load:
        node.run("systemctl kill -s KILL dfmeta-agent.service")
        wait_for(lambda: node.pid() not in (0, before), "another daemon")
        node.wait_ready()
        assert node.ask(guest) == guest.name
    # What the daemon held is lost with it: one request of the one guest at most.
    assert len(load.faults()) <= 1, load.faults()


def check_watchdog(node: Node, guest: Guest, signal: str, body: str) -> str:
    """A guest that asks meanwhile is answered, by the next daemon or by haproxy; the warnings."""
    before, since = node.pid(), node.now()
    begun = float(node.text(f"kill -{signal} {before}; cut -d' ' -f1 /proc/uptime"))
    assert node.ask(guest) == body
    wait_for(lambda: node.pid() not in (0, before), "the next daemon")
    begin = node.text("systemctl show -P ExecMainStartTimestampMonotonic dfmeta-agent.service")
    assert int(begin) / 1e6 - begun < 30
    node.wait_ready()
    assert node.ask(guest) == body
    journal = node.journal(since, priority="warning")
    assert "Watchdog timeout (limit 20s)" in journal
    return journal


def test_a_hub_that_hangs_is_started_again_and_refuses_nobody(node: Node, guest: Guest) -> None:
    node.machine.write("/run/wedge/sitecustomize.py", WEDGE)
    node.machine.write(DROP_IN, "[Service]\nEnvironment=PYTHONPATH=/run/wedge\n")
    node.run("systemctl daemon-reload; systemctl restart dfmeta-agent.service")
    node.wait_ready()
    assert " in wedge\n" in check_watchdog(node, guest, "USR1", guest.name), "where it was"
    node.run(f"rm {DROP_IN}; systemctl daemon-reload")


@pytest.mark.long
def test_a_stopped_daemon_is_started_again_with_either_engine(node: Node, guest: Guest) -> None:
    check_watchdog(node, guest, "STOP", guest.name)
    with node.with_haproxy(guest):
        (before,) = node.haproxy()
        check_watchdog(node, guest, "STOP", guest.instance)
        (after,) = node.haproxy()
        assert after != before


def test_a_reload_that_is_refused_is_in_status_and_journal(node: Node, guest: Guest) -> None:
    up, file = "UP; 1 of 1 guest ports served", CONFIGURATION
    wait_for(lambda: node.status() == up, "the status")
    since = node.now()
    node.run(f"cp -p {file} {file}.kept; printf '[store]\na\n' > {file}")
    node.run("systemctl reload dfmeta-agent.service")
    wait_for(lambda: node.status().startswith(f"{up}; not reloaded: "), "the refused reload")
    node.run(f"mv {file}.kept {file}; systemctl reload dfmeta-agent.service")
    wait_for(lambda: node.status() == up, "the reload")
    (line,) = node.journal(since, priority="warning").splitlines()
    assert line.startswith("WARNING dfmeta.agent Not reloaded, the configuration in force stays: ")
    assert "INFO dfmeta.agent Reloaded" in node.journal(since)
    assert node.ask(guest) == guest.name


@pytest.mark.long
def test_haproxy_answers_inside_the_units_sandbox(node: Node, guest: Guest) -> None:
    with node.with_haproxy(guest):
        assert node.ask(guest) == guest.instance
        (first,) = node.haproxy()
        text = node.text(f"grep -E '^(Uid|CapEff|CapBnd|Seccomp|NoNewPrivs):' /proc/{first}/status")
        lines = dict(line.split(":\t") for line in text.splitlines())
        uid = node.text("id -u dfmeta-haproxy")
        assert lines["Uid"].split() == [uid] * 4
        assert {int(lines["CapEff"], 16), int(lines["CapBnd"], 16)} == {0}
        assert (lines["Seccomp"], lines["NoNewPrivs"]) == ("2", "1")
        # The daemon counts only the requests that it answers itself.
        metrics = node.text("curl -sf http://127.0.0.1:9697/metrics")
        assert "dfmeta_request_seconds_count 0.0" in metrics
        assert 'dfmeta_requests_total{backend="nova",status="2xx"} 1.0' in metrics
        node.run(f"kill -KILL {first}")
        assert node.ask(guest) == guest.instance
        (second,) = node.haproxy()
        assert second != first
        assert "haproxy: " not in node.journal(), "a complaint of haproxy's"
    assert node.haproxy() == []
    wait_for(lambda: node.ask(guest) == guest.name, "an answer of the store")


@pytest.mark.long
def test_doctor_and_a_reload_know_haproxy_inside_the_units_sandbox(
    node: Node, guest: Guest
) -> None:
    with node.with_haproxy(guest):
        assert node.ask(guest) == guest.instance
        doctor = node.doctor()
        checks = [check for check in doctor if check.startswith("haproxy")]
        assert len(checks) == 5
        assert {doctor[check]["status"] for check in checks} == {"ok"}, doctor
        (first,) = node.haproxy()
        since = node.now()
        node.run(f"printf '[haproxy]\\nmaxconn = 8192\\n' >> {CONFIGURATION}")
        with node.load(guest) as load:
            node.run("systemctl reload dfmeta-agent.service")
            wait_for(lambda: "Reloaded" in node.journal(since), "the reload")
            wait_for(lambda: first not in node.haproxy(), "another haproxy")
        assert [
            response for response in load.samples[guest] if response.body.decode() != guest.instance
        ] == []


@pytest.mark.long
def test_a_wrong_configuration_is_in_the_journal_as_one_line(node: Node, guest: Guest) -> None:
    since = node.now()
    path = "/etc/dfmeta/dfmeta.conf"
    node.run(f"cp -p {path} {path}.kept; printf '[df_metadata]\\nport = many\\n' > {path}")
    node.run("systemctl restart dfmeta-agent.service", check=False)
    status = "systemctl show -P ExecMainStatus dfmeta-agent.service"
    wait_for(lambda: node.text(status) == "2", "exit status 2")
    wrong = [line for line in node.journal(since).splitlines() if "port" in line and "many" in line]
    assert wrong
    assert "Traceback" not in node.journal(since)
    node.run(f"mv {path}.kept {path}; systemctl restart dfmeta-agent.service")
    node.wait_ready()
    wait_for(lambda: node.ask(guest) == guest.name, "an answer with the right configuration")


@pytest.mark.long
def test_systemd_waits_as_long_as_startup_timeout_says(node: Node, guest: Guest) -> None:
    since = node.now()
    limit = "/run/systemd/system/dfmeta-agent.service.d/the-last.conf"
    node.machine.write(limit, f"[Service]\nTimeoutStartSec={SYSTEMD}\n")
    node.run("systemctl daemon-reload; systemctl stop dfmeta-agent openvswitch-switch")
    node.run("systemctl start --no-block --job-mode=ignore-dependencies dfmeta-agent.service")
    wait_for(lambda: "Waiting for" in node.journal(since), "the first line", deadline=SYSTEMD)
    pid = node.pid()
    wait_for(
        lambda: int(node.text(f"ps -o etimes= -p {pid}")) > SYSTEMD + 20,
        "the limit",
        deadline=3 * SYSTEMD,
    )
    node.run("systemctl start openvswitch-switch")
    node.wait_ready()
    assert node.pid() == pid
    assert node.ask(guest) == guest.name
    node.run(f"rm {limit}; systemctl daemon-reload")


@pytest.mark.long
def test_an_upgrade_by_the_link_refuses_nobody(node: Node, guest: Guest) -> None:
    with node.load(guest) as load:
        node.run("ln -sfnT dfmeta-2 /opt/dfmeta; systemctl restart dfmeta-agent")
        node.wait_ready()
        assert program(node).startswith("/opt/dfmeta-2/bin/python")
        assert node.ask(guest) == guest.name
        node.run("ln -sfnT dfmeta-1 /opt/dfmeta; systemctl restart dfmeta-agent")
        node.wait_ready()
    assert load.faults() == []


@pytest.mark.long
class TestSockets:
    """Units of sockets: the listeners outlive a stop."""

    @pytest.fixture(autouse=True)
    def _enabled(self, node: Node) -> Iterator[None]:
        node.run(
            f"""
install -m 0644 /opt/dfmeta/share/dfmeta/systemd/dfmeta-agent-*.socket /etc/systemd/system/
systemctl daemon-reload
systemctl stop dfmeta-agent.service
systemctl enable --now {SOCKETS}
systemctl start dfmeta-agent.service
"""
        )
        node.wait_ready()
        yield
        node.run(
            f"systemctl disable --now {SOCKETS} dfmeta-agent.service;"
            "systemctl enable --now dfmeta-agent.service"
        )
        node.wait_ready()

    def test_a_guest_that_asks_while_the_service_is_stopped_starts_it(
        self, node: Node, guest: Guest
    ) -> None:
        node.run("systemctl stop dfmeta-agent.service")
        assert node.text("systemctl is-active dfmeta-agent.service || true") == "inactive"
        assert node.ask(guest) == guest.name
        assert node.text("systemctl is-active dfmeta-agent.service") == "active"


@pytest.mark.long
def test_a_boot_brings_all_back(node: Node, guest: Guest) -> None:
    port = node.text("ovs-vsctl get Interface tap-metadata ofport")
    order = "/etc/systemd/system/libvirtd.service"
    node.machine.write(
        order, "[Service]\nType=oneshot\nExecStart=true\n[Install]\nWantedBy=multi-user.target\n"
    )
    node.run("systemctl daemon-reload; systemctl enable libvirtd.service")
    node.machine.power_off()
    node.machine.start()
    node.wait_ready()
    assert node.text("ovs-vsctl get Interface tap-metadata ofport") == port
    # The namespaces are gone with the power; Open vSwitch remembers the ports.
    node.run(f"ovs-vsctl del-port {guest.port}")
    node.plug(guest)
    assert node.ask(guest) == guest.name
    moments = node.text(
        "systemctl show -P ActiveEnterTimestampMonotonic dfmeta-agent.service;"
        "systemctl show -P ExecMainStartTimestampMonotonic libvirtd.service"
    ).split()
    assert int(moments[0]) < int(moments[1])
    node.run(f"systemctl disable libvirtd.service; rm {order}; systemctl daemon-reload")
