"""The Debian package should start nothing unasked, refuse no guest, and leave the host clean."""

import shlex

import pytest

from tests.harness.poll import wait_for
from tests.soak.real.node import CONFIGURATION, READY, Guest, Node

WEB = Guest("web", "10.0.0.5", "fa:16:3e:00:00:05")
SOCKETS = "dfmeta-agent-guests.socket dfmeta-agent-admin.socket"
# As the page on installing has it. An emulated CPU takes longer for each step.
_START = f"""
ovs-vsctl --may-exist add-br br-int -- set Bridge br-int datapath_type=system
install -m 0600 /usr/share/dfmeta/dfmeta.conf.sample {CONFIGURATION}
sed -i 's/^#startup_timeout = .*/startup_timeout = 900/' {CONFIGURATION}
mkdir -p /run/systemd/system/dfmeta-agent.service.d
printf '[Service]\\nTimeoutStartSec=1200\\n' > /run/systemd/system/dfmeta-agent.service.d/slow.conf
systemctl daemon-reload
systemctl enable --now {SOCKETS}
systemctl start dfmeta-agent.service
"""
LEFT = "find / -xdev '(' -path /srv -o -path /var/cache/man ')' -prune -o -name '*dfmeta*' -print"


def apt(node: Node, *words: str) -> None:
    node.run(f"DEBIAN_FRONTEND=noninteractive apt-get -y {shlex.join(words)}", timeout=READY)


@pytest.mark.long
def test_package_serves_over_an_upgrade_and_leaves_nothing(node_of_package: Node) -> None:
    node = node_of_package
    first, second = node.text("ls /srv/*.deb").splitlines()
    clean = node.text(LEFT)
    apt(node, "install", first)
    states = node.text("systemctl is-active dfmeta-agent dfmeta-store || true")
    assert states.split() == ["inactive", "inactive"]
    assert node.text("systemctl is-system-running") == "running"
    node.run(_START, timeout=READY)
    node.wait_ready()
    node.put(WEB)
    node.plug(WEB)
    wait_for(lambda: node.ask(WEB) == WEB.name, "the first answer")
    if node.text("aa-enabled || true") == "Yes":
        label = node.text(f"cat /proc/{node.pid()}/attr/current")
        assert label == "dfmeta-agent (enforce)"
    assert "dfmeta-agent" in node.text("MANPAGER=cat man dfmeta-agent")
    assert node.text("stat -c '%a %U' /etc/dfmeta/dfmeta.conf /var/lib/dfmeta") == (
        "600 root\n700 root"
    )
    before = node.pid()
    with node.load(WEB) as load:
        apt(node, "install", second)
        node.wait_ready()
        assert node.ask(WEB) == WEB.name
    assert load.faults() == []
    assert node.pid() not in (0, before)
    with node.load(WEB) as load:
        apt(node, "install", "--allow-downgrades", first)
        node.wait_ready()
        assert node.ask(WEB) == WEB.name
    assert load.faults() == []
    assert node.text(f"systemctl is-active {SOCKETS}") == "active\nactive"
    with node.load(WEB):
        apt(node, "purge", "dfmeta")
    assert node.text("ovs-vsctl list-ports br-int") == WEB.port
    assert node.text("ovs-ofctl --no-stats dump-flows br-int") == " priority=0 actions=NORMAL"
    assert node.text("ip rule show | wc -l") == "3"
    assert node.text(LEFT) == clean
    states = node.text(f"systemctl is-active dfmeta-agent.service {SOCKETS} || true")
    assert states.split() == ["inactive"] * 3
