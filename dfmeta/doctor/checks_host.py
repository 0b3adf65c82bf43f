"""Checks of the host's side of the packet path. Pure, but for the list of chains.

The required rules and sysctls were found by trying each combination of rules and rp_filter; see
:mod:`dfmeta.host.netlink` and Linux' Documentation/networking/ip-sysctl.rst.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dfmeta.doctor.facts import HostSettings, PathFacts
from dfmeta.doctor.finding import Finding, listed, ok, unknown, warning, wrong
from dfmeta.flows.family import IPV4, IPV6, family_of
from dfmeta.host.host_facts import HostFacts, RuleFact
from dfmeta.host.ipv6 import Lack
from dfmeta.identity.key import NEXT_HOP_MAC
from dfmeta.model import TAP_MTU_MIN, HttpHost
from dfmeta.ovsdb.rows import USERSPACE
from dfmeta.runtime.clock import ANSWER_TIMEOUT

KEYS4: Final = "128.0.0.0/4"
"""Keys in the first slot, that is, of most guests: with every VLAN id."""
_STRICT: Final = 1
WAIT: Final = "wait until dfmeta-agent is ready, or read its log: `journalctl -u dfmeta-agent`"
_SAVE: Final[Mapping[int, str]] = {4: "iptables-save", 6: "ip6tables-save"}
_RULES: Final = ("rule-from", "rule-oif")
"""Checks that a host with a second bridge has not."""
_LINES: Final[Mapping[int, tuple[str, ...]]] = {
    4: ("rp_filter", *_RULES, "route", "neighbour", "listener"),
    6: (*_RULES, "route", "neighbour", "listener"),
}
_HOOKS: Final = ("ingress", "prerouting", "input", "output", "postrouting")
"""Hooks that a guest's packet, or its answer, passes (nft(8))."""
_VERSIONS: Final = {"ip": (4,), "ip6": (6,), "inet": (4, 6), "netdev": (4, 6)}
"""Family of an nftables' table → versions of IP."""
_IPTABLES: Final = {4: "iptables", 6: "ip6tables"}


def device(host: HostFacts, wanted: HostSettings) -> Finding:
    """Check that tap-metadata's device exists and is up."""
    if host.up is None:
        return wrong(f"there is no device {wanted.tap}", "`systemctl start dfmeta-agent`")
    if not host.up:
        return wrong(f"{wanted.tap} is down", f"`ip link set {wanted.tap} up`")
    if not host.carrier:
        return wrong(
            f"{wanted.tap} has no carrier: ovs-vswitchd does not have it open",
            "`systemctl start openvswitch-switch`",
        )
    return ok(f"{wanted.tap} is up")


def address(host: HostFacts, wanted: HostSettings) -> Finding:
    """Check that tap-metadata has the proxy's address.

    Another device may have the address too: guests' connections arrive on tap-metadata, and the
    ``from`` rule sends the answers there. The second device is a fault only if answers leave by
    another device than tap-metadata.
    """
    ip, bits = wanted.host_ip, family_of(wanted.version).bits
    flags = " nodad noprefixroute" if wanted.version == IPV6.version else ""
    holders = {
        (name, held.network.prefixlen) for name, held in host.addresses if str(held.ip) == ip
    }
    others = sorted(name for name, _ in holders if name != wanted.tap)
    if others and host.way_back != wanted.tap:
        return wrong(
            f"{ip} is on {', '.join(others)} as well, and answers to guests do not leave by "
            f"{wanted.tap} but: {host.way_back}",
            _for(
                wanted,
                f"`ip addr del {ip} dev {others[0]}`, or set {_option(wanted)} to another "
                f"{'address' if wanted.meta is None else 'network'}",
            ),
        )
    if (wanted.tap, bits) not in holders:
        return wrong(
            f"{wanted.tap} does not have {ip}/{bits}",
            _for(wanted, f"`ip addr replace {ip}/{bits} dev {wanted.tap}{flags}`"),
        )
    beside = f"; {', '.join(others)} has it as well" if others else ""
    return ok(f"{wanted.tap} has {ip}/{bits}{beside}")


def rule(host: HostFacts, wanted: HostSettings, selector: str) -> Finding | None:
    """Check that a rule sends packets to the route table; None if the host needs none.

    :param selector: ``from``: packets from the proxy's address; ``oif``: those through
        tap-metadata.
    """
    row = _rule_of(host, selector)
    if row is None:
        return None
    if row.present:
        return ok(f"rule {row.selector} leads to table {wanted.route_table}")
    return wrong(
        f"there is no rule {row.selector} table {wanted.route_table}",
        _for(wanted, _add(row, wanted)),
    )


def _rule_of(host: HostFacts, selector: str) -> RuleFact | None:
    return next((rule for rule in host.rules if rule.selector.startswith(f"{selector} ")), None)


def _add(rule: RuleFact, wanted: HostSettings) -> str:
    selector, table = rule.selector, wanted.route_table
    return f"`ip rule add priority {rule.priority} {selector} table {table}`"


def route(host: HostFacts, wanted: HostSettings) -> Finding:
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
            f"it, set {_option(wanted)} to another network"
        )
    if host.route:
        return ok(f"{table} leads to {leads}")
    return wrong(
        f"{table} has no {route} via {next_hop} through {wanted.tap}", _for(wanted, command)
    )


def way_back(host: HostFacts, wanted: HostSettings) -> Finding | None:
    """Check that the kernel sends answers by tap-metadata.

    A rule of another program or an address of the host may precede dfmeta's rules. None if a rule,
    the route or the device is missing: other lines name it.
    """
    if not (host.up and host.route and all(rule.present for rule in host.rules)):
        return None
    if host.way_back == wanted.tap:
        return ok(f"answers to guests leave by {wanted.tap}")
    astray = f"answers to guests do not leave by {wanted.tap} but: {host.way_back}"
    first = host.rules[0] if host.rules else None
    if host.contender:
        behind = "the main table's rule"
        if first:
            rule = f"{first.priority}: {first.selector} lookup {wanted.route_table}"
            behind = f"dfmeta's rule '{rule}'"
        return wrong(
            f"{astray}; the rule '{host.contender}' of another program comes before {behind}",
            "let that program (a VPN?) give its rule a fixed priority behind dfmeta's",
        )
    before = f"priority {first.priority}" if first else "that of the main table"
    return wrong(
        astray,
        _for(
            wanted,
            f"`ip rule show`: no rule before {before} may match packets from {wanted.host_ip} or "
            f"to {_keys(wanted)}, and no route of another program or address of the host may cover "
            "these",
        ),
    )


def neighbour(host: HostFacts, wanted: HostSettings) -> Finding:
    """Check that the next hop of that route has a permanent MAC, so that none is asked for."""
    next_hop = _next_hop(wanted)
    if host.neighbour:
        return ok(f"{next_hop} has its MAC on {wanted.tap}")
    return wrong(
        f"{next_hop}, behind which all guests are, has no permanent MAC on {wanted.tap}",
        _for(
            wanted,
            f"`ip neigh replace {next_hop} lladdr {NEXT_HOP_MAC} nud permanent dev {wanted.tap}`",
        ),
    )


def rp_filter(host: HostFacts, wanted: HostSettings) -> Finding:
    """Check that reverse path filtering lets guests' packets in.

    The larger value of ``all`` and the interface applies. With the ``from`` rule every value works,
    since the route to a key is then looked up in dfmeta's table. Without it only 0 is certain to
    work.
    """
    everywhere, on_device = host.rp_filter
    effective = max(everywhere, on_device)
    text = f"rp_filter is {effective} on {wanted.tap} (all {everywhere}, its own {on_device})"
    from_rule = _rule_of(host, "from")
    if effective == 0 or from_rule is None or from_rule.present:
        reason = f"the rule {from_rule.selector}" if from_rule else f"a route to {wanted.network}"
        because = "" if effective == 0 else f", which does no harm with {reason}"
        return ok(text + because)
    harm = "drops" if effective == _STRICT else "may drop"
    return wrong(
        f"{text} and {harm} guests' packets, since the rule {from_rule.selector} is missing",
        _for(wanted, _add(from_rule, wanted)),
    )


def arp_ignore(host: HostFacts, wanted: HostSettings) -> Finding:
    """Check that the host does not answer ARP for the proxy's address on other interfaces.

    Only for a family that uses ARP, that is, IPv4.
    """
    if host.arp_ignore == 0:
        return wrong(
            f"net.ipv4.conf.all.arp_ignore is 0: the host answers ARP for {wanted.host_ip} on "
            "its other network interfaces",
            "`sysctl -w net.ipv4.conf.all.arp_ignore=1`, in /etc/sysctl.d too",
        )
    return ok(f"net.ipv4.conf.all.arp_ignore is {host.arp_ignore}")


def checksum(host: HostFacts, datapath_type: str, *, wanted: HostSettings) -> Finding:
    """Check that tap-metadata sends complete TCP checksums to a userspace datapath."""
    if datapath_type != USERSPACE:
        return ok("the kernel's datapath completes checksums by itself")
    if host.tx_checksum is None:
        return unknown(f"{wanted.tap} does not report whether it leaves out checksums")
    if host.tx_checksum:
        return wrong(
            f"{wanted.tap} leaves TCP checksums to a network interface, and the userspace datapath "
            "has none that completes them",
            f"`ethtool -K {wanted.tap} tx off`",
        )
    return ok(f"{wanted.tap} sends complete checksums")


def listener(host: HostFacts, wanted: HostSettings, *, running: bool) -> Finding:
    """Check that the proxy, and no other program, listens on host_ip and port.

    :param running: the daemon runs; while it does not, its listener is kept open for the next one.
    """
    if wanted.port is None:
        return unknown("port = 0, and no daemon has stored its port in state_path yet")
    where = HttpHost(wanted.host_ip, wanted.port).authority
    listeners = [
        sock
        for sock in host.listeners
        if sock.port == wanted.port
        and (str(sock.address) == wanted.host_ip or sock.address.is_unspecified)
    ]
    if any(sock.inode == wanted.listener for sock in listeners):
        if running:
            return ok(f"the proxy listens on {where}, on {wanted.tap} alone")
        return ok(f"{where} on {wanted.tap} is kept open for the next dfmeta-agent")
    if listeners:
        other = HttpHost(str(listeners[0].address), listeners[0].port)
        meta = wanted.meta is not None
        option = "[METADATA] host_proxy_listen_port" if meta else "[df_metadata] port"
        return wrong(
            f"another program listens on {other.authority}",
            f"stop it (`ss -ltnp sport = :{wanted.port}`), or change {option}",
        )
    start = "`systemctl start dfmeta-agent`"
    return wrong(f"no process listens on {where}", WAIT if running else start)


def ipv6(lack: Lack) -> Finding:
    """Report the setting of the host that prevents IPv6: guests are served over IPv4."""
    return warning(
        f"guests are served over IPv4 only: {lack.cause}",
        f"{lack.remedy}; or make [df_metadata] ip6 empty",
    )


def _option(wanted: HostSettings) -> str:
    if wanted.meta is not None:
        four, six = "[METADATA] provider_cidr", "[df_metadata] key_prefix6"
    else:
        four, six = "[df_metadata] host_ip", "[df_metadata] host_ip6"
    return four if wanted.version == IPV4.version else six


def _next_hop(wanted: HostSettings) -> str:
    return wanted.keys.next_hop(wanted.version)


def _keys(wanted: HostSettings) -> str:
    if wanted.network is not None:
        return str(wanted.network)
    return KEYS4 if wanted.version == IPV4.version else str(wanted.keys.network(wanted.version))


def _for(wanted: HostSettings, remedy: str) -> str:
    """Add the option for the IP version to the ip(8) commands in *remedy*; IPv4 needs none."""
    if wanted.version == IPV4.version:
        return remedy
    return remedy.replace("`ip ", f"`ip -{wanted.version} ")


def path(facts: PathFacts, wanted: HostSettings, *, firewalld: bool = False) -> Finding:
    """Check that the host lets a SYN from the switch reach the proxy, and the answer return.

    :param facts: the result for the version of IP of *wanted*.
    :param firewalld: whether it runs.
    """
    if not facts.sent:
        return unknown(f"not probed: {facts.cause}")
    where = HttpHost(wanted.host_ip, wanted.port or 0).authority
    if not facts.answered:
        listing = f"a packet filter drops it: `nft list ruleset`, `{_SAVE[wanted.version]}`"
        edit = "firewall-cmd --permanent --zone=dfmeta"
        zone = (
            "firewalld refuses it: `firewall-cmd --permanent --new-zone=dfmeta`, "
            f"`{edit} --add-interface={wanted.tap}`, `{edit} --add-port={wanted.port}/tcp`, and "
            "`firewall-cmd --reload`"
        )
        return wrong(
            f"guests' SYNs do not reach the proxy: {facts.cause}",
            f"fix what the lines {_lines(wanted)} name; if all of them are ok, "
            f"{zone if firewalld else listing}",
        )
    if not facts.whole:
        return wrong(
            f"{wanted.tap} answers with an incomplete TCP checksum, and guests drop such answers",
            f"`ethtool -K {wanted.tap} tx off`",
        )
    return ok(
        f"a SYN from {wanted.bridge} to {where} by {wanted.tap} was answered, with a correct "
        f"checksum, in {facts.seconds * 1000:.1f} ms: filters, rules and listener let it pass"
    )


def _lines(wanted: HostSettings) -> str:
    """Return the names of the checks of which one may name the cause."""
    end = "-ipv6" if wanted.version == IPV6.version else ""
    names = [f"{name}{end}" for name in _LINES[wanted.version]]
    if wanted.meta is not None:
        rules = {f"{name}{end}" for name in _RULES}
        names = ["meta-patch", "flows", *(name for name in names if name not in rules)]
    return f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True, slots=True)
class Chain:
    """A base chain whose policy is ``drop``."""

    name: str
    versions: tuple[int, ...]


def read_chains() -> tuple[Chain, ...] | None:
    """Return the base chains with the policy ``drop``; None if no program can list them."""
    listing = _output(["nft", "-j", "list", "chains"])
    tables = {version: _output([name, "-w", "-S"]) for version, name in _IPTABLES.items()}
    if listing is None and not any(tables.values()):
        return None
    return (*_of_nftables(listing or "{}"), *_of_iptables(tables))


def read_managed(device: str) -> bool | None:
    """Return whether NetworkManager manages a device; None if it does not run, or nmcli fails."""
    answer = _output(["nmcli", "-g", "GENERAL.NM-MANAGED", "device", "show", device])
    return None if answer is None else answer.strip() == "yes"


def firewall(chains: tuple[Chain, ...] | None, version: int, *, firewalld: bool = False) -> Finding:
    """List the packet filter's base chains that drop each packet that no rule accepts.

    :param chains: None if no program can list them.
    :param version: version of IP.
    :param firewalld: whether it runs: its chains accept by policy, and refuse by their last rule.
    """
    if chains is None and not firewalld:
        return unknown("neither nft nor iptables can be run")
    names = ["firewalld"] * firewalld
    names += [chain.name for chain in chains or () if version in chain.versions]
    if not names:
        return ok("no base chain of the packet filter has the policy drop")
    return ok(
        f"packets that no rule accepts are dropped by {listed(names)}: the line path shows "
        "whether guests' packets are"
    )


def _of_nftables(listing: str) -> Iterator[Chain]:
    try:
        rows = json.loads(listing).get("nftables", ())
    except (ValueError, RecursionError, AttributeError):
        return
    for chain in (row["chain"] for row in rows if "chain" in row):
        if chain.get("policy") == "drop" and chain.get("hook") in _HOOKS:
            name = f"nftables' chain {chain['family']} {chain['table']} {chain['name']}"
            yield Chain(name, _VERSIONS.get(chain["family"], ()))


def _of_iptables(tables: dict[int, str | None]) -> Iterator[Chain]:
    for version, rules in tables.items():
        for name in ("INPUT", "OUTPUT"):
            if f"-P {name} DROP" in (rules or "").splitlines():
                yield Chain(f"{_IPTABLES[version]}' chain {name}", (version,))


def _output(command: Sequence[str]) -> str | None:
    """Return the output of *command*; None if it does not exist, fails or hangs."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603  # fixed arguments, found on the operator's own PATH
            [program, *command[1:]],
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
