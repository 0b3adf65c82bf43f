"""A compute node in a virtual machine: Open vSwitch on the kernel datapath, systemd, dfmeta.

dfmeta is installed as ``doc/source/install.rst`` has it. Guests are network namespaces.
"""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.harness.guest import METADATA_IP, Sample, uuid_of
from tests.soak.real.machine import Machine

READY = 900
"""Seconds in which the daemon has to be ready, on a busy machine that is emulated."""
CLIENT = "/usr/bin/python3 -IS /srv/dfmeta/tests/harness/client.py"
ADMIN = "http://127.0.0.1:9697"
_SHARE = "/opt/dfmeta/share/dfmeta"
_INSTALL = f"""
ovs-vsctl --may-exist add-br br-int -- set Bridge br-int datapath_type=system
install -d -m 0755 /etc/dfmeta
install -m 0600 {_SHARE}/dfmeta.conf.sample /etc/dfmeta/dfmeta.conf
# The CPU is emulated: the start of all services together takes longer than on a host.
sed -i 's/^#startup_timeout = .*/startup_timeout = 900/' /etc/dfmeta/dfmeta.conf
grep -q '^startup_timeout = 900$' /etc/dfmeta/dfmeta.conf
install -m 0644 {_SHARE}/systemd/dfmeta-agent.service /etc/systemd/system/
install -D -m 0644 {_SHARE}/sysusers.d/dfmeta.conf /etc/sysusers.d/dfmeta.conf
systemd-sysusers
install -d /etc/systemd/system/dfmeta-agent.service.d
cat > /etc/systemd/system/dfmeta-agent.service.d/path.conf << EOF
[Service]
Environment=PATH=/opt/dfmeta/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
# At a boot with an emulated CPU the daemon may need 90 s until it can say that it waits.
TimeoutStartSec=1200
EOF
systemctl daemon-reload
systemctl enable --now dfmeta-agent.service
"""
CONFIGURATION = "/etc/dfmeta/dfmeta.conf"
_NOVA = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Nova(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = self.headers.get("X-Instance-ID", "").encode()
        self.send_response(200 if self.headers.get("X-Instance-ID-Signature") else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

ThreadingHTTPServer(("127.0.0.1", 8775), Nova).serve_forever()
"""
"""A Nova whose every document is the id of the instance, for a signed request."""
_HAPROXY = """
[DEFAULT]
nova_metadata_host = 127.0.0.1
metadata_proxy_shared_secret = a secret
[df_metadata]
backend = nova
engine = haproxy
"""


@dataclass(frozen=True)
class Guest:
    """A namespace behind a port of br-int."""

    name: str
    ip: str
    mac: str

    @property
    def instance(self) -> str:
        """Its UUID."""
        return uuid_of(f"instance {self.name}")

    @property
    def port(self) -> str:
        """Its device on the host."""
        return f"tap-{self.name}"


class Node:
    """The machine as an operator sees it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.run = machine.run
        self.text = machine.text

    # The daemon

    def install(self) -> None:
        """As the page on installing has it, and wait until the daemon is ready."""
        self.run(_INSTALL, timeout=READY)
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait for the readiness of dfmeta-agent."""
        # One process that waits: with an emulated CPU, the start of another one takes a second.
        again = f"--retry {READY} --retry-delay 1 --retry-max-time {READY} --retry-all-errors"
        request = f"curl -sf -o /dev/null -m 30 {again} {ADMIN}/healthz/readiness"
        if self.run(request, check=False, timeout=READY + 60).returncode:
            raise AssertionError(f"dfmeta-agent is not ready\n{self.journal()[-4000:]}")

    def journal(self, since: str = "", *, priority: str = "debug") -> str:
        """What dfmeta-agent wrote to the journal.

        :param since: a time of :meth:`now`; after a cursor journalctl may leave the first line out.
        :param priority: the least one.
        """
        after = f"--since={since}" if since else ""
        return self.text(f"journalctl -q -o cat -u dfmeta-agent -p {priority} {after}")

    def status(self) -> str:
        """What ``systemctl status`` shows of the daemon's own words."""
        return self.text("systemctl show -P StatusText dfmeta-agent.service")

    def now(self) -> str:
        """The machine's time, for the journal."""
        return self.text("date +@%s.%6N")

    @contextmanager
    def with_haproxy(self, guest: Guest) -> Iterator[None]:
        """Restart the daemon with the engine haproxy and a Nova, and restart it without them."""
        self.run(f"systemd-run --quiet --unit=nova /usr/bin/python3 -c {shlex.quote(_NOVA)}")
        project = uuid_of(f"project {guest.name}")
        self.run(f"ovs-vsctl set Interface {guest.port} external_ids:project-id={project}")
        self.run(
            f"cp -p {CONFIGURATION} {CONFIGURATION}.kept; cat >> {CONFIGURATION}", stdin=_HAPROXY
        )
        try:
            self.run("systemctl restart dfmeta-agent.service")
            self.wait_ready()
            yield
        finally:
            self.run(
                f"mv {CONFIGURATION}.kept {CONFIGURATION}; systemctl restart dfmeta-agent.service;"
                "systemctl stop nova.service"
            )
            self.wait_ready()

    def haproxy(self) -> list[int]:
        """Process ids of haproxy."""
        return [int(word) for word in self.text("pgrep -x haproxy || true").split()]

    def pid(self) -> int:
        """Of the daemon."""
        return int(self.text("systemctl show -P MainPID dfmeta-agent"))

    def doctor(self) -> dict[str, dict[str, str]]:
        """``dfmeta doctor``: check → its finding."""
        message = self.run(
            "/opt/dfmeta/bin/dfmeta doctor --format json", check=False, timeout=READY
        )
        findings = json.loads(message.stdout)
        return {finding["check"]: finding for finding in findings}

    # Guests

    def plug(self, guest: Guest) -> None:
        """A veth pair with its offload left on, as a container runtime makes one."""
        name, port = guest.name, guest.port
        self.run(
            f"""
ip netns add {name}
ip link add {port} type veth peer name eth0 address {guest.mac} netns {name}
ip link set {port} up
"""
        )
        self._address(guest)
        self._port(guest, port)

    def plug_internal(self, guest: Guest) -> None:
        """An internal port of the switch, moved to the namespace, whose other end is no device."""
        name = guest.name
        self._port(guest, guest.port, "type=internal", f'mac="{guest.mac}"')
        self.run(f"ip netns add {name}; ip link set {guest.port} netns {name}")
        self._address(guest, guest.port)

    def unplug(self, guest: Guest) -> None:
        """Take the port and the namespace away."""
        self.run(f"ovs-vsctl --if-exists del-port {guest.port}; ip netns delete {guest.name}")

    def put(self, *guests: Guest) -> None:
        """A record for each, with its name, by the admin API: a command takes half a minute."""
        for guest in guests:
            record = json.dumps({"id": guest.instance, "metadata": {"hostname": guest.name}})
            self.run(f"curl -sSf -X POST {ADMIN}/device-metadata --data-binary @-", stdin=record)

    def ask(
        self, guest: Guest, path: str = "/latest/meta-data/hostname", *, host: str = METADATA_IP
    ) -> str:
        """One answer's body, or curl's complaint."""
        command = f"ip netns exec {guest.name} curl -sS -m 60 'http://{host}{path}'"
        return self.text(f"{command} 2>&1 || true", timeout=90)

    def load(self, *guests: Guest, concurrency: int = 1) -> Load:
        """Requests without end from each."""
        return Load(self.machine, guests, concurrency)

    def _address(self, guest: Guest, device: str = "eth0") -> None:
        # Guests with one MAC have one link-local address: its detection would take it from all.
        self.run(
            f"""
ip netns exec {guest.name} sysctl -qw net.ipv6.conf.{device}.accept_dad=0
ip -n {guest.name} addr add {guest.ip}/24 dev {device}
ip -n {guest.name} link set {device} up
ip -n {guest.name} route replace 169.254.0.0/16 dev {device}
"""
        )

    def _port(self, guest: Guest, port: str, *columns: str) -> None:
        ids = {
            "iface-id": uuid_of(f"port {guest.name}"),
            "attached-mac": guest.mac,
            "vm-uuid": guest.instance,
        }
        words = [f'external_ids:{name}="{value}"' for name, value in ids.items()]
        self.run(
            f"ovs-vsctl add-port br-int {port} -- set Interface {port} "
            + shlex.join([*columns, *words])
        )


class Load:
    """Requests under way; a context manager that ends them. Each names its guest."""

    def __init__(self, machine: Machine, guests: tuple[Guest, ...], concurrency: int) -> None:
        self._machine = machine
        self._guests = guests
        self._concurrency = concurrency
        self._running: list[subprocess.Popen[bytes]] = []
        self.samples: dict[Guest, list[Sample]] = {}

    def __enter__(self) -> Load:
        for guest in self._guests:
            options = "--count 100000 --timeout 120 --path /latest/meta-data/hostname"
            self._running.append(
                self._machine.spawn(
                    f"exec ip netns exec {guest.name} {CLIENT} --host {METADATA_IP} "
                    f"--concurrency {self._concurrency} {options}"
                )
            )
        return self

    def __exit__(self, *raised: object) -> None:
        self._machine.run("pkill -TERM -f harness/client.py", check=False)
        for guest, process in zip(self._guests, self._running, strict=True):
            stdout = process.communicate(timeout=300)[0]
            self.samples[guest] = [
                Sample(**{**result, "body": base64.b64decode(result["body"])})
                for result in json.loads(stdout)
            ]

    def faults(self) -> list[str]:
        """Each request that was not answered with its guest's own name."""
        return [
            f"{guest.name}: {sample.status} {sample.error} {sample.body[:80]!r}"
            for guest, own_samples in self.samples.items()
            for sample in own_samples
            if sample.status != 200 or sample.body.decode() != guest.name
        ]

    def count(self) -> int:
        """How many requests there were."""
        return sum(map(len, self.samples.values()))
