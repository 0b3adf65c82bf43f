"""What is pushed to one store should boot guests on every host, and go on doing so without it."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.harness.agent import ADMIN_PORT, Agent
from tests.harness.central import Central
from tests.harness.cloudinit import Booting
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.issuer import CLIENT_ID, CLIENT_SECRET, TokenIssuer
from tests.harness.netns import Namespace, veth
from tests.harness.ovs import OpenvSwitch
from tests.harness.postgres import Postgres
from tests.host.e2e.support import KEY

StartBoot = Callable[..., Booting]

HOSTS = 3
ADDRESS = "10.99.0.254"
USER_DATA = "#!/bin/sh\ntrue\n"


class Site:
    """Compute nodes, a store that they share, and what gives tokens to all of them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.middle = stack.enter_context(Namespace("middle"))
        self.middle.ip(
            "link add br0 type bridge", "link set br0 up", f"address add {ADDRESS}/24 dev br0"
        )
        self.postgres = stack.enter_context(Postgres())
        self.issuer = stack.enter_context(TokenIssuer(self.middle, ADDRESS, 8090))
        self.central = stack.enter_context(Central(self._options(), namespace=self.middle))
        self.central.start()
        self.agents = [self._agent(number) for number in range(1, HOSTS + 1)]

    def _options(self) -> dict[str, dict[str, object]]:
        return {
            "df_metadata": {"admin_listen": f"{ADDRESS}:{ADMIN_PORT}"},
            "store": {
                "connection": self.postgres.create_database(),
                "oidc_issuer": self.issuer.url,
                "oidc_audience": "dfmeta",
            },
        }

    def _agent(self, number: int) -> Agent:
        host = self._stack.enter_context(OpenvSwitch())
        veth(self.middle, f"host{number}", host.namespace, "uplink")
        self.middle.ip(f"link set host{number} master br0")
        host.namespace.ip(f"address add 10.99.0.{number}/24 dev uplink")
        lookup = {
            "lookup_base_url": f"http://{ADDRESS}:{ADMIN_PORT}",
            "lookup_issuer": self.issuer.url,
            "lookup_client_id": CLIENT_ID,
            "lookup_client_secret": CLIENT_SECRET,
            "lookup_scopes": "read",
            "lookup_retries": 0,
        }
        agent = self._stack.enter_context(Agent(host, {"store": lookup}))
        return agent.start(wait=False)

    def guest(self, agent: Agent, name: str) -> Guest:
        """A guest on that host; all of them have the same address."""
        ids = Ids(iface_id=uuid_of(f"port {name}"), vm_uuid=uuid_of(f"instance {name}"))
        return self._stack.enter_context(Guest(agent.host, name, ids=ids))

    def push(self, guest: Guest, **document: object) -> None:
        """Push both halves of a record to the central store, as another program would."""
        token = self.issuer.access_token("write")
        for kind, content in (("metadata", document), ("userdata", USER_DATA)):
            body = {"id": guest.instance_id, "ipAddresses": [], kind: content}
            answer = self.central.admin(
                f"/device-{kind}",
                method="POST",
                body=json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {token}"},
            )
            assert answer.status == 200, answer


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        site = Site(stack)
        for agent in site.agents:
            agent.wait_ready()
        yield site


def test_guests_of_three_hosts_boot_from_one_push(site: Site, cloud_init: StartBoot) -> None:
    guests = [site.guest(agent, f"guest{number}") for number, agent in enumerate(site.agents, 1)]
    for guest in guests:
        site.push(guest, hostname=f"{guest.name}.example.org", ssh_keys=[KEY])
    boots = [cloud_init(guest, mode="OpenStack") for guest in guests]
    for guest, booting in zip(guests, boots, strict=True):
        boot = booting.finish()
        assert boot.errors == [], boot.output + boot.log
        assert boot.instance_id == guest.instance_id
        assert boot.hostname.partition(".")[0] == guest.name
        assert boot.authorized_keys.strip() == KEY
        assert boot.user_data == USER_DATA.encode()
    assert set(site.issuer.given) == {"read"}
