"""Programs that read metadata should get what they ask for, and repeat no request.

Those that cannot be installed by name: tests/core/unit/store/guest/test_clients.py. Those that take
longer to install: tests/soak/e2e/test_clients.py.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest
from tests.harness.netns import ROOT
from tests.host.e2e import shared
from tests.host.e2e.support import KEY, put
from tests.host.e2e.test_cloudinit import ZONE, document, own_id, push

host, agent = shared.host, shared.agent_with({"DEFAULT": {"debug": True}})

PROGRAMS = ROOT / ".cache" / "programs"
"""Where tools/setup.sh unpacks wget and busybox."""
NO_PROXY = {"http_proxy": "", "no_proxy": "*"}
FETCHERS = {
    "curl": ["curl", "-qsSf", "--retry", "3"],
    "wget": [str(PROGRAMS / "usr/bin/wget"), "-qO-", "--tries=3"],
    "busybox wget": [str(PROGRAMS / "bin/busybox"), "wget", "-qO-"],
}
"""Programs that write the bodies of URLs one after the other, and fail if one is not there."""
TOKEN = "PUT /latest/api/token 200"
PYTHON = """
import json
from botocore.utils import InstanceMetadataFetcher, InstanceMetadataRegionFetcher
from ec2_metadata import ec2_metadata
names = "account_id ami_id ami_launch_index ami_manifest_path availability_zone instance_action"
names += " instance_id instance_type private_hostname private_ipv4 public_hostname public_ipv4"
names += " reservation_id security_groups user_data"
print(json.dumps({
    "role": InstanceMetadataFetcher().retrieve_iam_role_credentials(),
    "region": InstanceMetadataRegionFetcher().retrieve_region(),
    "items": [getattr(ec2_metadata, name) is not None for name in names.split()],
    "ec2_id": ec2_metadata.instance_id,
    "zone": ec2_metadata.availability_zone,
}))
"""
"""botocore 1.44, whose region is the zone without its last letter, and ec2-metadata 3."""


def run(agent: Agent, guest: Guest, command: Iterable[str], **options: Any) -> tuple[str, set[str]]:
    """Run a client in the guest, whatever its exit status.

    :return: its output, and the requests that it has sent more than once, with their status.
    """
    start = len(agent.log())
    done = guest.namespace.run(command, check=False, env=NO_PROXY, **options)
    request = re.findall(rf" {guest.port} \S+ (\w+ \S+: \d+),", agent.log()[start:])
    assert request, done.stderr
    counts = Counter(line.replace(":", "") for line in request)
    return done.stdout, {line for line, count in counts.items() if count > 1}


def fetch(agent: Agent, guest: Guest, name: str, command: list[str], *, full: bool) -> None:
    """Have a program read what the guest has; without a key and user-data, it asks for them too."""
    bodies = {
        "latest/meta-data/hostname": f"{guest.name}.example.org",
        "latest/meta-data/instance-id": own_id(guest, "Ec2"),
        "1.0/meta-data/public-keys/0/openssh-key": KEY if full else "",
        "latest/user-data": "data" if full else "",
    }
    urls = [f"http://169.254.169.254/{path}" for path in bodies]
    assert run(agent, guest, [*command, *urls]) == ("".join(bodies.values()), set()), name


def test_programs_fetch_and_repeat_nothing(agent: Agent, make_guest: MakeGuest) -> None:
    bare, full = make_guest("bare"), make_guest("full")
    put(agent, bare)
    push(agent, full, document(full), b"data")
    for name, command in FETCHERS.items():
        fetch(agent, bare, name, command, full=False)
        fetch(agent, full, name, command, full=True)
    for guest, zone in ((bare, ""), (full, ZONE)):
        output, repeated = run(agent, guest, [sys.executable, "-c", PYTHON])
        assert repeated == {TOKEN}, "each of the three takes a token"
        assert json.loads(output) == {
            "role": {},
            "region": zone[:-1] or None,
            "items": [True] * 14 + [guest is full],
            "ec2_id": own_id(guest, "Ec2"),
            "zone": zone,
        }
