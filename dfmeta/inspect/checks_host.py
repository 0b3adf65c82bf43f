"""Judgements on the kernel's side of the packet path. Pure.

What is needed, and why, was tried for each combination of rules and rp_filter; see
:mod:`dfmeta.host.netlink` and Linux' Documentation/networking/ip-sysctl.rst.
"""

from __future__ import annotations

from collections.abc import Iterator

from dfmeta.flows.family import IPV4
from dfmeta.flows.key import NEXT_HOP, NEXT_HOP_MAC
from dfmeta.inspect.facts import HostFacts, Settings
from dfmeta.inspect.finding import Finding, ok, unknown, wrong
from dfmeta.inspect.offload import USERSPACE

BY_ITSELF = "a running dfmeta-agent does so by itself within a second"
_STRICT = 1
_RULES = {"from": "rule-from", "oif": "rule-oif"}


def device(host: HostFacts, wanted: Settings) -> Finding:
    """Whether tap-metadata's device is there and up."""
    if host.up is None:
        return wrong(
            "device",
            f"there is no device {wanted.tap}",
            "see that ovs-vswitchd runs and that its port is there; start dfmeta-agent, which "
            "makes it",
        )
    if not host.up:
        return wrong(
            "device", f"{wanted.tap} is down", f"`ip link set {wanted.tap} up`; {BY_ITSELF}"
        )
    if not host.carrier:
        return wrong(
            "device",
            f"{wanted.tap} has no carrier: ovs-vswitchd does not hold it",
            "start ovs-vswitchd (`systemctl start openvswitch-switch`)",
        )
    return ok("device", f"{wanted.tap} is up")


def address(host: HostFacts, wanted: Settings) -> Finding:
    """Whether tap-metadata has the proxy's address.

    Another device may have it too: connections of guests come in on tap-metadata, and the rule
    sends the answers there. It does harm where they take another way.
    """
    ip, bits = wanted.host_ip, wanted.family.bits
    holders = {(name, one.network.prefixlen) for name, one in host.addresses if str(one.ip) == ip}
    others = sorted(name for name, _ in holders if name != wanted.tap)
    if others and host.way_back != wanted.tap:
        return wrong(
            "address",
            f"{ip} is on {', '.join(others)} as well, and answers to guests do not leave by "
            f"{wanted.tap} but: {host.way_back}",
            _for(
                wanted,
                f"`ip addr del {ip} dev {others[0]}`, or give [df_metadata] host_ip another "
                "address and restart dfmeta-agent",
            ),
        )
    if (wanted.tap, bits) not in holders:
        return wrong(
            "address",
            f"{wanted.tap} does not have {ip}/{bits}",
            _for(wanted, f"`ip addr replace {ip}/{bits} dev {wanted.tap}`; {BY_ITSELF}"),
        )
    beside = (
        f"; {', '.join(others)} has it as well, where the host answers for it too; no harm to "
        f"guests, whose answers leave by {wanted.tap}"
        if others
        else ""
    )
    return ok("address", f"{wanted.tap} has {ip}/{bits}{beside}")


def rules(host: HostFacts, wanted: Settings) -> Iterator[Finding]:
    """Whether both rules lead to the route table."""
    for rule in host.rules:
        check = _RULES[rule.selector.partition(" ")[0]]
        if rule.there:
            yield ok(check, f"rule {rule.selector} leads to table {wanted.route_table}")
        else:
            yield wrong(
                check,
                f"there is no rule {rule.selector} table {wanted.route_table}: answers to guests "
                "take another way",
                _for(
                    wanted,
                    f"`ip rule add priority {rule.priority} {rule.selector} table "
                    f"{wanted.route_table}`; {BY_ITSELF}; systemd-networkd removes it unless it "
                    "has ManageForeignRoutingPolicyRules=no",
                ),
            )


def route(host: HostFacts, wanted: Settings) -> Finding:
    """Whether all of the route table's destinations are behind tap-metadata."""
    if host.route:
        return ok("route", f"table {wanted.route_table} leads to {wanted.tap}")
    return wrong(
        "route",
        f"table {wanted.route_table} has no default route via {NEXT_HOP} through {wanted.tap}",
        _for(
            wanted,
            f"`ip route replace default via {NEXT_HOP} dev {wanted.tap} onlink table "
            f"{wanted.route_table}`; {BY_ITSELF}; systemd-networkd removes it unless it has "
            "ManageForeignRoutes=no",
        ),
    )


def way_back(host: HostFacts, wanted: Settings) -> Iterator[Finding]:
    """Whether the kernel takes that way for answers: another's rule or address may come before.

    Nothing where the lines before say what is missing.
    """
    if not (host.up and host.route and all(rule.there for rule in host.rules)):
        return
    if host.way_back == wanted.tap:
        yield ok("way-back", f"answers to guests leave by {wanted.tap}")
        return
    first = host.rules[0].priority if host.rules else 0
    yield wrong(
        "way-back",
        f"answers to guests do not leave by {wanted.tap} but: {host.way_back}",
        _for(
            wanted,
            f"`ip rule show`: have none before {first} that takes what comes from "
            f"{wanted.host_ip} or goes to 128.0.0.0/8; `ip route show table local "
            "128.0.0.0/8`: no address of the host there may cover guests' keys",
        ),
    )


def neighbour(host: HostFacts, wanted: Settings) -> Finding:
    """Whether the next hop of that route is known without asking."""
    if host.neighbour:
        return ok("neighbour", f"{NEXT_HOP} has its MAC on {wanted.tap}")
    return wrong(
        "neighbour",
        f"{NEXT_HOP}, behind which all guests are, has no permanent MAC on {wanted.tap}",
        _for(
            wanted,
            f"`ip neigh replace {NEXT_HOP} lladdr {NEXT_HOP_MAC} nud permanent dev "
            f"{wanted.tap}`; {BY_ITSELF}",
        ),
    )


def rp_filter(host: HostFacts, wanted: Settings) -> Finding:
    """Whether the kernel lets guests' packets in.

    The larger of ``all`` and the interface's counts. With the ``from`` rule each value does:
    the way back to a key is then looked up in our table. Without it only 0 is certain.
    """
    everywhere, own = host.rp_filter
    effective = max(everywhere, own)
    text = f"rp_filter is {effective} on {wanted.tap} (all {everywhere}, its own {own})"
    from_rule = next((rule for rule in host.rules if rule.selector.startswith("from ")), None)
    if effective == 0 or from_rule is None or from_rule.there:
        because = "" if effective == 0 else f", which does no harm with rule {_named(host)}"
        return ok("rp_filter", text + because)
    harm = "drops" if effective == _STRICT else "may drop"
    return wrong(
        "rp_filter",
        f"{text} and {harm} what guests send, since rule {from_rule.selector} is missing",
        _for(
            wanted,
            f"`ip rule add priority {from_rule.priority} {from_rule.selector} table "
            f"{wanted.route_table}`; with it each value of rp_filter will do",
        ),
    )


def arp_ignore(host: HostFacts, wanted: Settings) -> Finding:
    """Whether the host keeps quiet about the proxy's address on its other cards.

    For a family whose neighbours are asked by ARP.
    """
    if host.arp_ignore == 0:
        return wrong(
            "arp_ignore",
            f"net.ipv4.conf.all.arp_ignore is 0: the host answers ARP for {wanted.host_ip} on "
            "its other cards",
            "`sysctl -w net.ipv4.conf.all.arp_ignore=1`, and look in /etc/sysctl.d for who sets "
            "it to 0; dfmeta-agent sets it within a second where it runs",
        )
    return ok("arp_ignore", f"net.ipv4.conf.all.arp_ignore is {host.arp_ignore}")


def checksum(host: HostFacts, datapath_type: str, *, wanted: Settings) -> Finding:
    """Whether a userspace datapath gets whole checksums."""
    if datapath_type != USERSPACE:
        return ok("checksum", "the kernel's datapath completes checksums by itself")
    if host.tx_checksum is None:
        return unknown("checksum", f"{wanted.tap} does not say whether it leaves out checksums")
    if host.tx_checksum:
        return wrong(
            "checksum",
            f"{wanted.tap} leaves TCP checksums to a card that is not there (userspace datapath): "
            "guests drop the answers",
            f"`ethtool -K {wanted.tap} tx off`; dfmeta-agent does so when it starts",
        )
    return ok("checksum", f"{wanted.tap} sends whole checksums")


def listener(host: HostFacts, wanted: Settings, *, running: bool) -> Finding:
    """Whether it is the proxy that listens on its address and port.

    :param running: the daemon runs; without it the listener is kept open for the next one.
    """
    if wanted.port is None:
        return unknown("listener", "port = 0 and no daemon has remembered one in state_path yet")
    where = f"{wanted.host_ip}:{wanted.port}"
    there = [
        one
        for one in host.listeners
        if one.port == wanted.port and str(one.address) in (wanted.host_ip, "0.0.0.0")  # noqa: S104  # compared, not bound
    ]
    if any(one.inode == wanted.listener for one in there):
        if running:
            return ok("listener", f"the proxy listens on {where}, on {wanted.tap} alone")
        return ok("listener", f"{where} on {wanted.tap} is kept open for the next dfmeta-agent")
    if there:
        return wrong(
            "listener",
            f"another program listens on {there[0].address}:{there[0].port}",
            f"find it (`ss -ltnp sport = :{wanted.port}`) and stop it, or give [df_metadata] port "
            "another number; then start dfmeta-agent",
        )
    return wrong(
        "listener",
        f"nobody listens on {where}",
        "wait until dfmeta-agent is ready, and read its log if it does not become so"
        if running
        else "start dfmeta-agent (`systemctl start dfmeta-agent`)",
    )


def _for(wanted: Settings, remedy: str) -> str:
    """Give the commands of *remedy* the option for the version of IP (ip(8)); IPv4 needs none."""
    if wanted.family is IPV4:
        return remedy
    return remedy.replace("`ip ", f"`ip -{wanted.family.version} ")


def _named(host: HostFacts) -> str:
    return next((rule.selector for rule in host.rules), "from")
