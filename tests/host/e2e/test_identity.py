"""Whose a port is, from wherever it is known: guests wait for it, and never get another's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import domains
from tests.harness import neutron as neutron_harness
from tests.harness.agent import Agent
from tests.harness.domains import Interface
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.neutron import Neutron
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.nova_tree import Instance
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for

PATH = "/latest/meta-data/hostname"
PROJECT = "5f0c0a52b6f44d12a8a1e1a5e5f0c0a5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the domains' status files are."""
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture
def neutron(host: OpenvSwitch) -> Iterator[Neutron]:
    """Keystone and Neutron on the host."""
    with Neutron(host.namespace) as server:
        yield server


def nova_options(sources: str, folder: Path, **neutron: object) -> dict[str, dict[str, object]]:
    """backend=nova with these identity sources."""
    return {
        "DEFAULT": {"metadata_proxy_shared_secret": SECRET},
        "df_metadata": {"backend": "nova", "identity_sources": sources, "libvirt_xml_path": folder},
        "neutron": neutron_harness.options(**neutron) if "neutron" in sources else {},
    }


def anonymous(make_guest: MakeGuest, name: str) -> Guest:
    """A guest with the Neutron port and the MAC alone in OVSDB."""
    return make_guest(name, ids=Ids(iface_id=uuid_of(f"port of {name}")))


def define(folder: Path, guest: Guest, instance: str) -> None:
    """Have libvirt run *guest* as *instance*."""
    nic = Interface(dev=guest.port, iface_id=guest.ids.iface_id, mac=guest.mac)
    text = domains.definition(instance, project=PROJECT, name=guest.name, interfaces=[nic])
    domains.write(folder, guest.name, domains.status(text))


def known_to(nova: RecordingNova, name: str) -> str:
    """Have Nova know an instance of that host name."""
    instance = Instance(instance_id=uuid_of(f"of {name}"), project_id=PROJECT, hostname=name)
    return nova.put(instance).instance_id


def row(agent: Agent, guest: Guest) -> dict[str, Any]:
    """What ``dfmeta ports`` has of a guest."""
    rows = json.loads(agent.ctl("ports", "--format", "json").stdout)
    result: dict[str, Any] = next((row for row in rows if row["port"] == guest.port), {})
    return result


def test_a_guest_waits_for_its_domain_to_appear(
    make_agent: MakeAgent, make_guest: MakeGuest, nova: RecordingNova, folder: Path
) -> None:
    agent = make_agent(nova_options("ovsdb,libvirt", folder))
    guest = anonymous(make_guest, "late")
    instance = known_to(nova, "late")
    batch = guest.start_many(1, path=PATH)
    wait_for(lambda: agent.metric("dfmeta_held_syns") >= 1, "the SYN to be held")
    define(folder, guest, instance)
    (sample,) = batch.samples()
    assert (sample.status, sample.body) == (200, b"late")
    seen = row(agent, guest)
    assert (seen["instance"], seen["project"]) == (instance, PROJECT)
    assert seen["instance_name"] == "late"
    assert set(seen["sources"].values()) == {"libvirt"}
    assert "project_id=libvirt" in agent.ctl("ports").stdout
