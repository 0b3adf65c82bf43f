"""Neutron's server should begin empty, and be the same as a fork as started by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import netns, nursery
from tests.harness.neutron_api import HOST, NeutronServer

CIDR = "10.0.0.0/24"


@pytest.fixture
def namespace() -> Iterator[netns.Namespace]:
    with netns.Namespace("neutron") as one:
        yield one


def networks(server: NeutronServer) -> list[str]:
    """The names of all networks."""
    return [one["name"] for one in server.ask("GET", "networks").document["networks"]]


@pytest.mark.parametrize("prepared", [True, False])
def test_a_server_begins_empty_and_binds_ports(
    monkeypatch: pytest.MonkeyPatch, namespace: netns.Namespace, prepared: bool
) -> None:
    monkeypatch.setattr(nursery, "enabled", prepared)
    with NeutronServer(namespace) as server:
        server.start()
        assert isinstance(server._process, nursery.Forked) == prepared
        assert server._process is not None
        assert server._process.pid in namespace.processes()
        kinds = ("networks", "subnets", "ports", "trunks", "security-groups")
        rows = {kind: server.ask("GET", kind).document for kind in kinds}
        # Neutron makes this group with the first answer to a project.
        (default,) = rows.pop("security-groups")["security_groups"]
        assert default["name"] == "default"
        assert all(found == {kind: []} for kind, found in rows.items())
        network, _subnet = server.network("one", CIDR)
        port, trunk = server.parent(network["id"])
        (row,) = server.ports(id=port)
        assert (row["binding:host_id"], row["binding:vif_type"]) == (HOST, "ovs")
        assert server.trunk(trunk)["port_id"] == port


def test_forks_have_a_database_each_and_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "enabled", True)
    with NeutronServer() as one, NeutronServer() as other:
        one.start()
        other.start()
        one.network("of one", CIDR)
        assert (networks(one), networks(other)) == (["of one"], [])
        other.network("of other", CIDR)
        assert (networks(one), networks(other)) == (["of one"], ["of other"])
        one.stop()
        one.start()
        assert networks(one) == ["of one"]
        assert all((server.folder / "neutron.db").exists() for server in (one, other))
        process = one._process
        assert process is not None
        # No descriptor is another server's, or of the process that both are forks of.
        opened = {str(it.readlink()) for it in Path(f"/proc/{process.pid}/fd").iterdir()}
        assert not [it for it in opened if it.endswith(".db") and str(one.folder) not in it]
    assert not one.folder.exists()
