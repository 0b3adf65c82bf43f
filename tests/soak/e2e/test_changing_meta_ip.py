"""Options of Meta IPs that change between two starts leave nothing of the former value."""

from __future__ import annotations

import pytest

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import METADATA_IP, OPENSTACK6
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import TWIN_MAC, asks_own, put


def of_meta_ips(host: OpenvSwitch) -> str:
    """All that shows the options of Meta IPs: flows, rows of OVSDB, the host's side, listeners."""
    bridges = host.vsctl("list-br").split()
    ip = host.namespace.ip
    return "\n".join(
        [
            *(flow for one in bridges for flow in host.flows(one)),
            *(str(row) for row in host.records("Interface", "name", "mac", "external_ids")),
            ip("address", "route show table all"),
            ip("route show table all", six=True),
            host.namespace.run(["ss", "-Hlnt"]).stdout,
        ]
    )


@pytest.mark.parametrize(
    ("group", "option", "value", "new", "former"),
    [
        ("METADATA", "provider_cidr", "100.100.0.0/16", "100.100.0.1", "240.0."),
        ("METADATA", "provider_base_mac", "fa:16:ef:00:00:00", "fa:16:ef:", "fa:16:ee:"),
        ("METADATA", "host_proxy_listen_port", 8080, "240.0.0.1:8080", "240.0.0.1:80 "),
        ("METADATA", "provider_vlan_id", 7, "dl_vlan=7", "dl_vlan=1,"),
        ("df_metadata", "key_prefix6", "fd00:77::/64", "fd00:77::1", "fd00:a9fe:a9fe:a9fe:"),
        ("df_metadata", "meta_bridge", "br-new", "int-br-new", "int-br-meta"),
    ],
)
def test_a_start_takes_away_what_other_meta_ips_have_left(
    host: OpenvSwitch,
    make_agent: MakeAgent,
    make_guest: MakeGuest,
    group: str,
    option: str,
    value: object,
    new: str,
    former: str,
) -> None:
    agent = make_agent({"df_metadata": {"identity_scheme": "meta_ip"}})
    twins = [make_guest(name, mac=TWIN_MAC) for name in ("one", "two")]
    for twin in twins:
        put(agent, twin)

    def ask() -> None:
        for twin in twins:
            for service in (METADATA_IP, OPENSTACK6):
                asks_own(twin, host=service)

    ask()
    seen = of_meta_ips(host)
    assert former in seen
    assert new not in seen
    agent.stop()
    agent.configure({group: {option: value}})
    agent.start()
    ask()
    assert new in of_meta_ips(host)
    # OVSDB is written soon after the start.
    wait_for(lambda: former not in of_meta_ips(host), "the last trace of the former value")
    agent.restart()
    ask()
    assert agent.metric("dfmeta_packet_ins_total") == 0
