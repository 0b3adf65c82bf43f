"""A change of the scheme should remove the flows of the other scheme."""

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.host.e2e.test_meta_ip import asks


def test_a_change_of_the_scheme_removes_the_other_one(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest = make_guest()
    host = guest.host
    agent = make_agent(start=False)
    ports = {"in_port": "tap-metadata", "meta_ip": "int-br-meta"}
    for scheme, other in (("in_port", "meta_ip"), ("meta_ip", "in_port"), ("in_port", "meta_ip")):
        agent.configure({"df_metadata": {"identity_scheme": scheme}})
        agent.start()
        asks(agent, guest)
        assert ports[scheme] in host.ports()
        assert ports[other] not in host.ports()
        assert ("br-meta" in host.vsctl("list-br").split()) == (scheme == "meta_ip")
        rules = host.namespace.ip("rule show")
        assert ("32765" in rules) == (scheme == "in_port"), rules
        agent.stop()
