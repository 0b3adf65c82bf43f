"""Clients that take long to install should get what they ask for, and repeat no request."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest
from tests.host.e2e import test_clients as programs
from tests.host.e2e.support import KEY, put
from tests.host.e2e.test_clients import TOKEN, fetch, run
from tests.host.e2e.test_cloudinit import OTHER_KEY, document, own_id, push
from tests.soak.e2e import clients

Guests = tuple[Guest, Guest]
host, agent = programs.host, programs.agent

CONFIG = {"ignition": {"version": "3.3.0"}, "storage": {"files": [{"path": "/marked"}]}}
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"


@pytest.fixture
def guests(agent: Agent, make_guest: MakeGuest) -> Guests:
    """A guest with what ``dfmeta store put --hostname`` makes, and one with much more."""
    bare, full = make_guest("bare"), make_guest("full")
    put(agent, bare)
    members = {**document(full), "public_keys": {"winrm": CERTIFICATE}, "plan": "c3"}
    push(agent, full, members, json.dumps(CONFIG).encode())
    return bare, full


def test_java_and_go_fetch_and_repeat_nothing(agent: Agent, guests: Guests, tmp_path: Path) -> None:
    java, go, program = tmp_path / "Fetch.java", tmp_path / "fetch.go", tmp_path / "fetch"
    java.write_text(clients.JAVA, encoding="ascii")
    go.write_text(clients.GO, encoding="ascii")
    env = {**os.environ, "GO111MODULE": "off", "GOCACHE": str(tmp_path / "cache")}
    subprocess.run(["go", "build", "-o", program, go], env=env, check=True)
    push(agent, guests[1], document(guests[1]), b"data")
    for guest in guests:
        for name, command in (("JDK", ["java", str(java)]), ("Go", [str(program)])):
            fetch(agent, guest, name, command, full=guest.name == "full")


def test_the_sdk_of_javascript_repeats_nothing(agent: Agent, guests: Guests) -> None:
    for guest, kind, data in zip(guests, ("", "c3"), (None, json.dumps(CONFIG)), strict=True):
        command = ["env", f"NODE_PATH={clients.NODE_MODULES}", "node", "-e", clients.SDK]
        output, repeated = run(agent, guest, command)
        assert repeated == {TOKEN}, "it takes one for each request"
        assert json.loads(output) == {
            "hostname": f"{guest.name}.example.org",
            "instance-id": own_id(guest, "Ec2"),
            "instance-type": kind,
            "userData": data,
            "role": 404,
        }


def test_cloudbase_init_repeats_nothing(agent: Agent, guests: Guests) -> None:
    result = (None, [], []), (json.dumps(CONFIG), sorted((KEY, OTHER_KEY)), [CERTIFICATE])
    for guest, (data, keys, certificates) in zip(guests, result, strict=True):
        output, repeated = run(agent, guest, [str(clients.PYTHON), "-c", clients.CLOUDBASE])
        name = f"{guest.name}.example.org"
        # Each service has a cache of its own. Certificates may be in user-data as well.
        missing = {request for request in repeated if not request.endswith("200")}
        assert missing <= {"GET /openstack/latest/user_data 404"}
        assert json.loads(output) == {
            "HttpService": [name, data, guest.instance_id, keys],
            "EC2Service": [name, data, own_id(guest, "Ec2"), keys],
            "PacketService": [name, data],
            "certificates": certificates,
            "links": 1,
            "password": [False, True, True],
        }


def test_os_collect_config_repeats_nothing(agent: Agent, guests: Guests) -> None:
    for guest in guests:
        output, repeated = run(agent, guest, [str(clients.COLLECT), "--print", "ec2"])
        assert repeated == set()
        result = json.loads(output)["ec2"]
        assert result["hostname"] == f"{guest.name}.example.org"
        assert result["instance-id"] == own_id(guest, "Ec2")
        assert ("public-keys" in result) == (guest.name == "full")


def test_ignition_repeats_nothing(agent: Agent, guests: Guests, tmp_path: Path) -> None:
    for guest in guests:
        kept = tmp_path / guest.name
        command = [str(clients.IGNITION), "-platform", "openstack", "-stage", "fetch"]
        command += ["-log-to-stdout", "-config-cache", str(kept)]
        command += ["-state-file", str(tmp_path / "state"), "-root", str(tmp_path)]
        output, repeated = run(agent, guest, command)
        assert repeated == set()
        assert "attempt #1" in output
        assert "attempt #2" not in output
        assert ("/marked" in kept.read_text(encoding="utf-8")) == (guest.name == "full")
