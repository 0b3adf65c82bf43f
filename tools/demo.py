"""The demo program; tools/demo sets up its requirements and runs it.

Every statement is verified before it is printed. A statement that does not hold ends the demo with
one line on stderr and exit status 1.
"""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.harness import netns
from tests.harness.agent import Agent
from tests.harness.cloudinit import Boot, Booting
from tests.harness.guest import Guest, Ids
from tests.harness.ovs import OpenvSwitch

WIDTH = 78
ADDRESS = "10.0.0.5/24"
MAC = "fa:16:3e:00:00:05"
HELLO = "/run/hello"
USER_DATA = f'#!/bin/sh\necho "user-data of $(hostname)" > {HELLO}\n'
CRAWL = 28
"""Connections of cloud-init's OpenStack data source for an instance with a key."""


class NotAsClaimedError(Exception):
    """A statement of the demo does not hold."""


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A guest, and the values that it should get."""

    name: str
    hostname: str
    instance_id: str
    key: str


WEB = Tenant(
    name="web",
    hostname="web.example.org",
    instance_id="aaaaaaaa-0000-4000-8000-000000000001",
    key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHdlYi4uLi4uLi4uLi4uLi4uLi4uLi4uLi4uLi4uLi4u web",
)
MAIL = Tenant(
    name="mail",
    hostname="mail.example.org",
    instance_id="bbbbbbbb-0000-4000-8000-000000000002",
    key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG1haWwuLi4uLi4uLi4uLi4uLi4uLi4uLi4uLi4uLi4u mail",
)


def step(title: str, text: str) -> None:
    """Print a heading and a paragraph."""
    print(f"\n== {title}")
    print(textwrap.fill(" ".join(text.split()), WIDTH))


def show(prompt: str, output: str) -> None:
    """Print a command and its output, wrapped."""
    print(textwrap.fill(prompt, WIDTH, initial_indent="  ", subsequent_indent="      "))
    for line in output.splitlines():
        print(textwrap.fill(line, WIDTH, initial_indent="    ", subsequent_indent="      "))


def claim(holds: bool, sentence: str) -> None:
    """Print *sentence* if it holds.

    :raises NotAsClaimedError: it does not hold.
    """
    if not holds:
        raise NotAsClaimedError(sentence)
    print(textwrap.fill(sentence, WIDTH, initial_indent="  ok: ", subsequent_indent="      "))


def plug(host: OpenvSwitch, tenant: Tenant) -> Guest:
    """Plug a guest; its port names the instance, as a cloud or libvirt writes it into OVSDB."""
    ids = Ids(iface_id=tenant.instance_id.replace("0000", "1111"), vm_uuid=tenant.instance_id)
    return Guest(host, tenant.name, address=ADDRESS, mac=MAC, ids=ids)


def addresses(guest: Guest) -> str:
    """Return the guest's own view of its interface."""
    command = ["ip", "-o", "-4", "addr", "show", "dev", guest.device]
    address = re.search(r"inet (\S+)", guest.namespace.run(command).stdout)
    mac = guest.namespace.run(["cat", f"/sys/class/net/{guest.device}/address"]).stdout
    return f"{guest.device}  {mac.strip()}  {address[1] if address else 'no address'}"


def put(agent: Agent, tenant: Tenant) -> None:
    """Put a record into the embedded store."""
    user_data = agent.folder / "user-data"
    user_data.write_text(USER_DATA)
    command = ["store", "put", tenant.instance_id, "--hostname", tenant.hostname]
    command += ["--ssh-key", tenant.key, "--user-data", str(user_data)]
    printed = agent.ctl(*command).stdout
    shown = f"host# dfmeta store put {tenant.instance_id} --hostname {tenant.hostname}"
    show(f"{shown} --ssh-key 'ssh-ed25519 …' --user-data user-data", printed)


def fetch(guest: Guest, tenant: Tenant) -> None:
    """Run curl inside the guest, and verify the answers."""
    path = "/openstack/latest/meta_data.json"
    reply = guest.curl(path)
    figure = f"{reply.seconds * 1000:.0f} ms"
    shown = reply.error
    if reply.status == 200:
        document = json.loads(reply.body)
        parts = {key: document.get(key) for key in ("uuid", "hostname")}
        shown = f"{json.dumps(parts)[:-1]}, …}}   ({figure})"
    show(f"{tenant.name}$ curl http://169.254.169.254{path}", shown)
    if reply.status != 200:
        raise NotAsClaimedError(f"{tenant.name} gets an answer (got {reply.status} {reply.error})")
    claim(document.get("uuid") == tenant.instance_id, f"this is {tenant.name}'s own record")
    again = guest.curl("/latest/meta-data/public-keys/0/openssh-key")
    claim(again.text.strip() == tenant.key, f"and {tenant.name}'s own key, over the EC2 paths")


def check_boot(boot: Boot, tenant: Tenant) -> None:
    """Verify the results of cloud-init in a guest."""
    rows = {
        "data source": boot.datasource,
        "instance id": boot.instance_id,
        "host name": boot.hostname,
        "root's keys": boot.authorized_keys.strip(),
        "user-data": boot.files.get(HELLO, "did not run").strip(),
    }
    show(
        f"{tenant.name}: cloud-init, {boot.seconds:.1f} s",
        "\n".join(f"{name:12} {value}" for name, value in rows.items()),
    )
    claim(not boot.errors, f"{tenant.name}'s cloud-init reports no error ({boot.errors or 'none'})")
    name = tenant.hostname.partition(".")[0]
    wanted = ["OpenStack", tenant.instance_id, name, tenant.key, f"user-data of {name}"]
    got = [value.partition(".")[0] if "host" in key else value for key, value in rows.items()]
    got[4] = got[4].partition(".")[0]
    claim(got == wanted, f"host name, key and user-data are {tenant.name}'s")


def short_flows(host: OpenvSwitch) -> Iterator[str]:
    """Yield all flows except the bridge's own NORMAL, without counters and cookies."""
    for flow in host.flows():
        if not flow.endswith("priority=0 actions=NORMAL"):
            yield re.sub(r"\b(cookie|duration|n_bytes|idle_age|hard_age)=[^ ,]+,? ?", "", flow)


def demo(stack: ExitStack) -> None:
    """Run the steps of the demo."""
    step(
        "A compute node",
        """Open vSwitch with the bridge br-int, in a network namespace of its own. Two guests are
        plugged in. They have the same IP address and even the same MAC: their packets are
        identical, but each guest has its own port, and the port names the instance.""",
    )
    host = stack.enter_context(OpenvSwitch())
    guests = {tenant: stack.enter_context(plug(host, tenant)) for tenant in (WEB, MAIL)}
    for tenant, guest in guests.items():
        show(f"{tenant.name}$ ip addr show eth0    (shortened)", addresses(guest))
    web, mail = guests.values()
    claim((web.ip, web.mac) == (mail.ip, mail.mac), f"both are {web.ip}, {web.mac}")
    reply = web.curl("/", timeout=1)
    claim(reply.status == 0, "there is no answer from 169.254.169.254 yet")
    web.forget_neighbours()

    step(
        "The daemon",
        """dfmeta-agent runs on the host: it finds the switch through OVSDB, programs it and serves
        metadata from its embedded store. Each guest gets a record.""",
    )
    agent = stack.enter_context(Agent(host))
    start = time.monotonic()
    agent.start()
    print(
        f"  host# dfmeta-agent --config-file dfmeta.conf &    "
        f"(ready after {time.monotonic() - start:.1f} s)"
    )
    for tenant in guests:
        put(agent, tenant)
    show("host# dfmeta ports", agent.ctl("ports").stdout)
    claim(agent.metric("dfmeta_packet_ins_total") == 0, "the daemon has received no packet so far")

    step("curl", "Both guests send the same request from the same address.")
    for tenant, guest in guests.items():
        fetch(guest, tenant)

    step(
        "cloud-init",
        """The distribution's own cloud-init boots in both guests at the same time, unpacked but
        not installed, with its files on a tmpfs. It opens a new connection for every request.""",
    )
    boots = {tenant: Booting(guest.namespace, files=[HELLO]) for tenant, guest in guests.items()}
    for booting in boots.values():
        stack.callback(booting.close)
    for tenant, booting in boots.items():
        check_boot(booting.finish(), tenant)

    step(
        "The cost",
        f"""Each guest has opened about {CRAWL + 2} connections. Only the first SYN of an address
        goes to the daemon; the flows that the daemon then installs carry all other packets.""",
    )
    count = agent.metric("dfmeta_packet_ins_total")
    show(
        "host# curl http://127.0.0.1:9697/metrics | grep packet_ins",
        "\n".join(
            f"{name} {value:g}"
            for name, value in agent.metrics().items()
            if name.startswith("dfmeta_packet_ins_total")
        ),
    )
    claim(count == len(guests), f"{count:g} packet-ins: one for each guest")
    show("host# ovs-ofctl dump-flows br-int    (shortened)", "\n".join(short_flows(host)))

    step("The end", "The daemon is stopped; switch, guests and files are removed.")
    agent.stop()
    claim(agent.exit_status() == 0, "the daemon has stopped with exit status 0")


def main() -> int:
    """Run the demo, and clean up in all cases."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    start = time.monotonic()
    try:
        with ExitStack() as stack:
            stack.callback(netns.remove_own)
            demo(stack)
    except KeyboardInterrupt:
        print("\ndemo: interrupted; everything is removed", file=sys.stderr)
        return 130
    except NotAsClaimedError as error:
        print(f"demo: this does not hold: {error}", file=sys.stderr)
        return 1
    except (netns.CommandError, RuntimeError, AssertionError, OSError) as error:
        print(f"demo: failed: {error}", file=sys.stderr)
        return 1
    print(f"\nAll statements hold, in {time.monotonic() - start:.0f} s. Nothing is left behind.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
