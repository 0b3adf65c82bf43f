"""Checks of the kernel's side of the packet path. Pure.

The required rules and sysctls were found by trying each combination of rules and rp_filter; see
:mod:`dfmeta.host.netlink` and Linux' Documentation/networking/ip-sysctl.rst.
"""

from __future__ import annotations

from collections.abc import Iterator

from dfmeta.doctor.facts import Settings
from dfmeta.doctor.finding import Finding, ok, unknown, warning, wrong
from dfmeta.flows.family import IPV4, IPV6
from dfmeta.host.facts import HostFacts
from dfmeta.identity.key import NEXT_HOP_MAC
from dfmeta.model import TAP_MTU_MIN, HttpHost
from dfmeta.ovsdb.rows import USERSPACE

BY_ITSELF = "a running dfmeta-agent does so by itself within a second"
NO_IPV6 = (
    "dfmeta-agent then serves IPv6 within seconds. If the host is to have no IPv6, make "
    "[df_metadata] ip6 empty"
)
KEYS4 = "128.0.0.0/4"
"""Keys in the first slot, that is, of most guests: with every VLAN id."""
_STRICT = 1
_RULES = {"from": "rule-from", "oif": "rule-oif"}


def device(host: HostFacts, wanted: Settings) -> Finding:
    """Check that tap-metadata's device exists and is up."""
    if host.up is None:
        return wrong(
            "device",
            f"there is no device {wanted.tap}",
            "check that ovs-vswitchd runs and that the bridge has this port; start dfmeta-agent, "
            "which makes it",
        )
    if not host.up:
        return wrong(
            "device", f"{wanted.tap} is down", f"`ip link set {wanted.tap} up`; {BY_ITSELF}"
        )
    if not host.carrier:
        return wrong(
            "device",
            f"{wanted.tap} has no carrier: ovs-vswitchd does not have it open",
            "start ovs-vswitchd (`systemctl start openvswitch-switch`)",
        )
    return ok("device", f"{wanted.tap} is up")


def address(host: HostFacts, wanted: Settings) -> Finding:
    """Check that tap-metadata has the proxy's address.

    Another device may have the address too: guests' connections arrive on tap-metadata, and the
    ``from`` rule sends the answers there. The second device is a fault only if answers leave by
    another device than tap-metadata.
    """
    ip, bits = wanted.host_ip, wanted.family.bits
    flags = " nodad noprefixroute" if wanted.family is IPV6 else ""
    holders = {(name, one.network.prefixlen) for name, one in host.addresses if str(one.ip) == ip}
    others = sorted(name for name, _ in holders if name != wanted.tap)
    if others and host.way_back != wanted.tap:
        return wrong(
            "address",
            f"{ip} is on {', '.join(others)} as well, and answers to guests do not leave by "
            f"{wanted.tap} but: {host.way_back}",
            _for(
                wanted,
                f"`ip addr del {ip} dev {others[0]}`, or set {_option(wanted)} to another "
                f"{'address' if wanted.meta is None else 'network'} and restart dfmeta-agent",
            ),
        )
    if (wanted.tap, bits) not in holders:
        return wrong(
            "address",
            f"{wanted.tap} does not have {ip}/{bits}",
            _for(wanted, f"`ip addr replace {ip}/{bits} dev {wanted.tap}{flags}`; {BY_ITSELF}"),
        )
    beside = (
        f"; {', '.join(others)} has it as well, and the host answers for it there too; this does "
        f"not harm guests: answers to them leave by {wanted.tap}"
        if others
        else ""
    )
    return ok("address", f"{wanted.tap} has {ip}/{bits}{beside}")


def rules(host: HostFacts, wanted: Settings) -> Iterator[Finding]:
    """Check that both rules exist and lead to the route table."""
    for rule in host.rules:
        check = _RULES[rule.selector.partition(" ")[0]]
        if rule.there:
            yield ok(check, f"rule {rule.selector} leads to table {wanted.route_table}")
        else:
            yield wrong(
                check,
                f"there is no rule {rule.selector} table {wanted.route_table}: answers to guests "
                "take another route",
                _for(
                    wanted,
                    f"`ip rule add priority {rule.priority} {rule.selector} table "
                    f"{wanted.route_table}`; {BY_ITSELF}; systemd-networkd removes it unless it "
                    "has ManageForeignRoutingPolicyRules=no",
                ),
            )


def route(host: HostFacts, wanted: Settings) -> Finding:
    """Check that the route table's default route goes through tap-metadata."""
    next_hop, network = _next_hop(wanted), wanted.network
    by = f"dev {wanted.tap} onlink mtu {TAP_MTU_MIN}"
    if network is None:
        table, leads = f"table {wanted.route_table}", wanted.tap
        route = "default route"
        command = f"`ip route replace default via {next_hop} {by} table {wanted.route_table}`"
    else:
        table, leads = "the main table", f"{wanted.tap} for {network}"
        route = f"route to {network}"
        # "replace" could take a route of another program.
        command = (
            f"`ip route add {network} via {next_hop} {by}`, or, if another program has a route to "
            f"it (`ip route show {network}`), delete that or set {_option(wanted)} to another "
            "network and restart dfmeta-agent"
        )
    if host.route:
        return ok("route", f"{table} leads to {leads}")
    return wrong(
        "route",
        f"{table} has no {route} via {next_hop} through {wanted.tap}",
        _for(
            wanted,
            f"{command}; {BY_ITSELF}; systemd-networkd removes it unless it has "
            "ManageForeignRoutes=no",
        ),
    )


def way_back(host: HostFacts, wanted: Settings) -> Iterator[Finding]:
    """Check that the kernel sends answers by tap-metadata.

    A rule of another program or an address of the host may precede dfmeta's rules. Yields nothing
    if a rule, the route or the device is missing: other lines name it.
    """
    if not (host.up and host.route and all(rule.there for rule in host.rules)):
        return
    if host.way_back == wanted.tap:
        yield ok("way-back", f"answers to guests leave by {wanted.tap}")
        return
    if host.contender:
        yield _late(host, wanted)
        return
    if host.rules:
        before, more = f"before priority {host.rules[0].priority}", ""
    else:
        before = "before that of the main table"
        more = f"; `ip route show root {_keys(wanted)}`: no route of another program may be there"
    yield wrong(
        "way-back",
        f"answers to guests do not leave by {wanted.tap} but: {host.way_back}",
        _for(
            wanted,
            f"`ip rule show`: no rule {before} may match packets from {wanted.host_ip} or to "
            f"{_keys(wanted)}; `ip route show table local {_keys(wanted)}`: no address of the host "
            f"there may cover guests' keys{more}",
        ),
    )


def _late(host: HostFacts, wanted: Settings) -> Finding:
    """Return the line on a rule of another program that takes the answers to guests."""
    own = next((f"{rule.priority}: {rule.selector} lookup" for rule in host.rules), "")
    behind = f"dfmeta's rule '{own} {wanted.route_table}'" if own else "the main table's rule"
    return wrong(
        "way-back",
        f"answers to guests do not leave by {wanted.tap} but: {host.way_back}; the rule "
        f"'{host.contender}' of another program comes before {behind}",
        "a running dfmeta-agent moves its rules ahead, more and more rarely if the other program "
        "comes first again each time: let that program (a VPN?) give its rule a fixed priority "
        "and leave it there, or restrict it, such as with `to`, to other packets",
    )


def neighbour(host: HostFacts, wanted: Settings) -> Finding:
    """Check that the next hop of that route has a permanent MAC, so that none is asked for."""
    next_hop = _next_hop(wanted)
    if host.neighbour:
        return ok("neighbour", f"{next_hop} has its MAC on {wanted.tap}")
    return wrong(
        "neighbour",
        f"{next_hop}, behind which all guests are, has no permanent MAC on {wanted.tap}",
        _for(
            wanted,
            f"`ip neigh replace {next_hop} lladdr {NEXT_HOP_MAC} nud permanent dev "
            f"{wanted.tap}`; {BY_ITSELF}",
        ),
    )


def rp_filter(host: HostFacts, wanted: Settings) -> Finding:
    """Check that reverse path filtering lets guests' packets in.

    The larger value of ``all`` and the interface applies. With the ``from`` rule every value works,
    since the route to a key is then looked up in dfmeta's table. Without it only 0 is certain to
    work.
    """
    everywhere, own = host.rp_filter
    effective = max(everywhere, own)
    text = f"rp_filter is {effective} on {wanted.tap} (all {everywhere}, its own {own})"
    from_rule = next((rule for rule in host.rules if rule.selector.startswith("from ")), None)
    if effective == 0 or from_rule is None or from_rule.there:
        reason = f"the rule {_named(host)}" if host.rules else f"a route to {wanted.network}"
        because = "" if effective == 0 else f", which does no harm with {reason}"
        return ok("rp_filter", text + because)
    harm = "drops" if effective == _STRICT else "may drop"
    return wrong(
        "rp_filter",
        f"{text} and {harm} guests' packets, since the rule {from_rule.selector} is missing",
        _for(
            wanted,
            f"`ip rule add priority {from_rule.priority} {from_rule.selector} table "
            f"{wanted.route_table}`; with this rule every value of rp_filter works",
        ),
    )


def arp_ignore(host: HostFacts, wanted: Settings) -> Finding:
    """Check that the host does not answer ARP for the proxy's address on other interfaces.

    Only for a family that uses ARP, that is, IPv4.
    """
    if host.arp_ignore == 0:
        return wrong(
            "arp_ignore",
            f"net.ipv4.conf.all.arp_ignore is 0: the host answers ARP for {wanted.host_ip} on "
            "its other network interfaces",
            "`sysctl -w net.ipv4.conf.all.arp_ignore=1`, and look in /etc/sysctl.d for a file that "
            "sets it to 0; a running dfmeta-agent sets it to 1 within a second",
        )
    return ok("arp_ignore", f"net.ipv4.conf.all.arp_ignore is {host.arp_ignore}")


def checksum(host: HostFacts, datapath_type: str, *, wanted: Settings) -> Finding:
    """Check that tap-metadata sends complete TCP checksums to a userspace datapath."""
    if datapath_type != USERSPACE:
        return ok("checksum", "the kernel's datapath completes checksums by itself")
    if host.tx_checksum is None:
        return unknown("checksum", f"{wanted.tap} does not report whether it leaves out checksums")
    if host.tx_checksum:
        return wrong(
            "checksum",
            f"{wanted.tap} leaves TCP checksums to a network interface, and on a userspace "
            "datapath no interface completes them: guests drop the answers",
            f"`ethtool -K {wanted.tap} tx off`; dfmeta-agent does so when it starts",
        )
    return ok("checksum", f"{wanted.tap} sends complete checksums")


def listener(host: HostFacts, wanted: Settings, *, running: bool) -> Finding:
    """Check that the proxy, and no other program, listens on host_ip and port.

    :param running: the daemon runs; while it does not, its listener is kept open for the next one.
    """
    if wanted.port is None:
        return unknown("listener", "port = 0, and no daemon has stored its port in state_path yet")
    where = HttpHost(wanted.host_ip, wanted.port).authority
    there = [
        one
        for one in host.listeners
        if one.port == wanted.port
        and (str(one.address) == wanted.host_ip or one.address.is_unspecified)
    ]
    if any(one.inode == wanted.listener for one in there):
        if running:
            return ok("listener", f"the proxy listens on {where}, on {wanted.tap} alone")
        return ok("listener", f"{where} on {wanted.tap} is kept open for the next dfmeta-agent")
    if there:
        other = HttpHost(str(there[0].address), there[0].port)
        return wrong(
            "listener",
            f"another program listens on {other.authority}",
            f"find it (`ss -ltnp sport = :{wanted.port}`) and stop it, or set {_port(wanted)} to "
            "another number; then start dfmeta-agent",
        )
    return wrong(
        "listener",
        f"no process listens on {where}",
        "wait until dfmeta-agent is ready, and read its log if it does not become ready"
        if running
        else "start dfmeta-agent (`systemctl start dfmeta-agent`)",
    )


def no_ipv6(cause: str, remedy: str) -> Finding:
    """Return the line on a host whose settings prevent IPv6: guests are served over IPv4."""
    return warning("ipv6", f"guests are served over IPv4 only: {cause}", f"{remedy}; {NO_IPV6}")


def _option(wanted: Settings) -> str:
    if wanted.meta is not None:
        four, six = "[METADATA] provider_cidr", "[df_metadata] key_prefix6"
    else:
        four, six = "[df_metadata] host_ip", "[df_metadata] host_ip6"
    return four if wanted.family is IPV4 else six


def _port(wanted: Settings) -> str:
    if wanted.meta is not None:
        return "[METADATA] host_proxy_listen_port"
    return "[df_metadata] port"


def _next_hop(wanted: Settings) -> str:
    return wanted.keys.next_hop(wanted.family.version)


def _keys(wanted: Settings) -> str:
    if wanted.network is not None:
        return str(wanted.network)
    return KEYS4 if wanted.family is IPV4 else str(wanted.keys.network(wanted.family.version))


def _for(wanted: Settings, remedy: str) -> str:
    """Add the option for the IP version to the ip(8) commands in *remedy*; IPv4 needs none."""
    if wanted.family is IPV4:
        return remedy
    return remedy.replace("`ip ", f"`ip -{wanted.family.version} ")


def _named(host: HostFacts) -> str:
    return next((rule.selector for rule in host.rules), "from")
