"""A name and a version of IP should lead ``dfmeta trace`` and its sisters to the guest."""

import json

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import OPENSTACK6
from tests.host.e2e import test_trace
from tests.host.e2e.test_trace import trace

_filter = test_trace._filter


def test_records_name_is_its_guests(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    guest, other, agent = make_guest(), make_guest(), make_agent()
    for port in (guest, other):
        agent.ctl("store", "put", port.instance_id, "--hostname", f"{port.port}.example.org")
    for name in ("before", "web2"):
        agent.ctl("store", "put", guest.instance_id, "--name", name)
        assert trace(agent, name, 0).startswith(f"{guest.port} (ofport"), "also at once"
    (row,) = json.loads(agent.ctl("ports", "web2", "--format", "json").stdout)
    hostname = f"{guest.port}.example.org"
    assert (row["port"], row["record_names"]) == (guest.port, ["web2", hostname])
    assert len(agent.ctl("ports", hostname).stdout.splitlines()) == 2
    assert " web2 " in agent.ctl("ports").stdout
    flows = json.loads(agent.ctl("flows", "--port", "web2", "--format", "json").stdout)
    assert {row["port"] for row in flows} == {guest.port}
    page = agent.admin(f"/?port={hostname}").text
    assert (guest.port in page, other.port in page) == (True, False)
    assert agent.ctl("flows", "--port", "web3", check=False).returncode == 2
    agent.ctl("store", "put", other.instance_id, "--name", "web2")
    for command in (["trace", "web2"], ["flows", "--port", "web2"], ["ports", "web2"]):
        done = agent.ctl(*command, check=False)
        (message,) = done.stderr.splitlines()
        assert done.returncode == 2
        assert f"{guest.port} ({guest.instance_id}), {other.port} (" in message, command


def test_guests_version_of_ip_is_traced(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    guest, agent = make_guest(), make_agent()
    assert ", to fe80::" not in trace(agent, guest.port, 0, None), "it has used none"
    assert guest.curl("/", host=OPENSTACK6).status == 404
    text = trace(agent, guest.port, 0, None)
    assert (", to fe80::a9fe:a9fe" in text, "128.0.0." in text) == (True, False)
