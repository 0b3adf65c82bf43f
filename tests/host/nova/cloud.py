"""A compute node with real control planes: Neutron makes its ports, OVN binds them, Nova has the
instances, and dfmeta reads their projects from Neutron.
"""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.harness.agent import HAPROXY, Agent
from tests.harness.guest import Guest, Ids
from tests.harness.nova import SECRET
from tests.harness.ovn import Central, Chassis
from tests.harness.ovs import OpenvSwitch
from tests.harness.postgres import Postgres
from tests.host.e2e.support import PROJECT
from tests.host.neutron.api import HOST, NeutronServer
from tests.host.nova.server import NovaServer
from tests.host.ovn.cloud import lease

ENGINES = ("wsgi", "haproxy")
_EGRESS = {"direction": "egress", "used_in_default_sg": True, "used_in_non_default_sg": True}


@dataclass
class Cloud:
    """The services, and a namespace for each guest."""

    host: OpenvSwitch
    central: Central
    neutron: NeutronServer
    nova: NovaServer
    stack: ExitStack
    networks: dict[str, str] = field(default_factory=dict)
    """Name → id; all have the same addresses."""

    def launch(
        self,
        name: str,
        *,
        network: str = "red",
        project: str = PROJECT,
        owner: str = "",
        mac: str = "",
        ip: str = "",
        **instance: Any,
    ) -> Guest:
        """Launch an instance, and plug its guest, which gets the address of its lease.

        :param owner: another project, which has made the port.
        :param instance: see :meth:`NovaServer.put`.
        """
        if network not in self.networks:
            # Nothing else is asked for a name there.
            made, _subnet = self.neutron.network(network, "10.0.0.0/24", gateway_ip=None)
            self.networks[network] = made["id"]
        instance_id = str(uuid.uuid4())
        values = {"mac_address": mac} if mac else {}
        port = self.neutron.create(
            "port",
            network_id=self.networks[network],
            project_id=owner or project,
            device_id=instance_id,
            device_owner="compute:nova",
            **{"binding:host_id": HOST},
            **(values | ({"fixed_ips": [{"ip_address": ip}]} if ip else {})),
        )
        assert port["binding:vif_type"] == "ovs", port
        self.nova.put(instance_id, project, name, **instance)
        guest = Guest(
            self.host,
            name,
            address=f"{port['fixed_ips'][0]['ip_address']}/24",
            mac=port["mac_address"],
            route="none",
            ids=Ids(iface_id=port["id"], vm_uuid=instance_id),
        )
        self.stack.enter_context(guest)
        self.central.nbctl("wait-until", "Logical_Switch_Port", port["id"], "up=true")
        lease(guest)
        return guest

    @contextmanager
    def agent(self, engine: str) -> Iterator[Agent]:
        """Run the daemon with an engine; it must stop with exit status 0."""
        df_metadata = {"backend": "nova", "identity_sources": "ovsdb,neutron"}
        workers = {"proxy_workers": 0} if engine == "haproxy" else {}
        options = {
            "DEFAULT": {"metadata_proxy_shared_secret": SECRET},
            "df_metadata": {**df_metadata, "engine": engine, **workers},
            "neutron": {"auth_type": "none", "endpoint_override": self.neutron.url},
            "haproxy": {"binary": HAPROXY},
        }
        with Agent(self.host, options) as daemon:
            yield daemon.start()
            daemon.stop()


@contextmanager
def cloud_with(postgres: Postgres) -> Iterator[Cloud]:
    """Start all but the daemon."""
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        central = stack.enter_context(Central())
        stack.enter_context(Chassis(host, central, name=HOST, address="127.0.0.1"))
        url = postgres.create_database().replace("+psycopg:", "+psycopg2:")
        ovn = (central.remote, url)
        neutron = stack.enter_context(NeutronServer(host.namespace, ovn=ovn)).start()
        # The migrations, which were not run, would have made it.
        rule = {"default_security_group_rule": {**_EGRESS, "ethertype": "IPv4"}}
        assert neutron.ask("POST", "default-security-group-rules", rule).status == 201
        nova = stack.enter_context(NovaServer(host.namespace, neutron))
        yield Cloud(host, central, neutron, nova, stack)
