"""A host that was booted with ``ipv6.disable=1`` should serve its guests over IPv4."""

from collections.abc import Iterator

import pytest

from tests.soak.real.node import READY, Guest, Node
from tests.soak.real.test_systemd import SOCKETS

# One more machine: its boot and the installation take more than a minute.
pytestmark = pytest.mark.long

WEB = Guest("web", "10.0.0.5", "fa:16:3e:00:00:05")
CAUSE = "the kernel has no IPv6: it was booted with ipv6.disable=1"


@pytest.fixture(scope="module")
def guest(node_without_ipv6: Node) -> Iterator[Guest]:
    """One with a record."""
    node_without_ipv6.put(WEB)
    node_without_ipv6.plug(WEB)
    yield WEB
    node_without_ipv6.unplug(WEB)


def test_guests_are_served_over_ipv4(node_without_ipv6: Node, guest: Guest) -> None:
    node = node_without_ipv6
    assert node.text("ls /proc/sys/net/ipv6 2>&1 || true").endswith("No such file or directory")
    assert node.ask(guest) == guest.name
    flows = node.text("ovs-ofctl dump-flows br-int")
    assert [word for word in ("ipv6", "tcp6") if word in flows] == []
    # What would come to tap-metadata, if another kernel had IPv6, is dropped.
    rest = [flow for flow in flows.splitlines() if "icmp6" in flow]
    assert all(flow.endswith("actions=drop") for flow in rest), rest
    assert node.journal().count(f"Guests are not served over IPv6: {CAUSE}") == 1


def test_doctor_says_so_in_one_line(node_without_ipv6: Node, guest: Guest) -> None:
    message = node_without_ipv6.run("/opt/dfmeta/bin/dfmeta doctor", check=False, timeout=READY)
    assert (message.returncode, message.stderr) == (0, "")
    _head, *lines, counts = message.stdout.splitlines()
    assert " ok, 1 warning, 0 wrong" in counts
    (line,) = (line for line in lines if not line.startswith("ok "))
    assert line.split()[:2] == ["warning", "ipv6"]
    assert f"guests are served over IPv4 only: {CAUSE}" in line
    assert "remove ipv6.disable=1 from the kernel's command line and boot again" in line


def test_a_socket_unit_opens_the_listener_of_ipv4(node_without_ipv6: Node, guest: Guest) -> None:
    node = node_without_ipv6
    node.run(
        f"""
install -m 0644 /opt/dfmeta/share/dfmeta/systemd/dfmeta-agent-*.socket /etc/systemd/system/
systemctl daemon-reload
systemctl stop dfmeta-agent.service
systemctl start {SOCKETS} dfmeta-agent.service
"""
    )
    unit = node.text("systemctl show -P Listen dfmeta-agent-guests.socket")
    assert unit == "169.254.169.254:18080 (Stream)"
    node.wait_ready()
    assert node.ask(guest) == guest.name
    assert node.text("systemctl is-system-running") == "running"


def test_the_journal_has_no_traceback(node_without_ipv6: Node, guest: Guest) -> None:
    assert node_without_ipv6.ask(guest) == guest.name
    assert "Traceback" not in node_without_ipv6.text("journalctl -q -o cat")
