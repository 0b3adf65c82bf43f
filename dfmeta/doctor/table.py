"""The table of the checks of ``dfmeta doctor``.

A check is a row: its name, its sentence on the page, the facts without which it is unknown, the
hosts that have it, and its verdict. doc/source/doctor.rst has the list that is made from the table.
"""

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from dfmeta.doctor import (
    check,
    checks_daemon,
    checks_flows,
    checks_guests,
    checks_host,
    checks_switch,
    checks_system,
    checks_trunks,
    finding,
    probes,
)
from dfmeta.flows.family import IPV4, IPV6
from dfmeta.host.system import own_route, read_networkd, read_ovn_metadata
from dfmeta.http.limits import BACKLOG


def examine(inspection: probes.Inspection) -> Iterator[finding.Finding]:
    """Run every check."""
    inspection.begin()
    for row in CHECKS:
        yield from row.findings(inspection)


def run(inspection: probes.Inspection, names: Iterable[str]) -> Iterator[finding.Finding]:
    """Run the checks of these names, in their order."""
    by_name = {row.name: row for row in CHECKS}
    for name in names:
        yield from by_name[name].findings(inspection)


CHECKS: Final[tuple[check.Check, ...]] = (
    check.Check(
        "user",
        "doctor does not run as root: other lines may then be wrong or unknown only because this "
        "user may not read everything.",
        run=lambda of: checks_daemon.user(os.geteuid()),
    ),
    check.Check(
        "daemon",
        "dfmeta-agent does not run, hangs or is not ready, or another program listens at "
        "``admin_listen``. The line names the missing parts.",
        run=lambda of: checks_daemon.daemon(of.daemon, of.wanted),
    ),
    check.Check(
        "configuration",
        "A name in dfmeta's groups of the files is not an option, or the daemon runs with other "
        "values or other files (`The daemon's values`_).",
        run=lambda of: checks_daemon.configuration(of.options.compared, running=of.running),
        page="configuration",
    ),
    check.Check(
        "state_path",
        "``state_path`` does not exist, cannot be read, or is open to other users; it or a file in "
        "it belongs to another user than root or the daemon's; or ``token.key`` is damaged.",
        run=lambda of: checks_daemon.state_path(of.folder, of.wanted.state_path, owners=of.owners),
    ),
    check.Check(
        "secret-files",
        "All users may read or change a file that contains a secret or is one, or the user of "
        "workers owns it.",
        run=lambda of: checks_daemon.secret_files(of.secret_files),
    ),
    check.Check(
        "disk",
        "The disk of ``state_path`` has less than 256 MiB, or less than a fiftieth of a smaller "
        "disk, or room for fewer than 100 files.",
        run=lambda of: checks_daemon.disk(of.disk, of.wanted.state_path) if of.disk else None,
    ),
    check.Check(
        "version",
        "Another version of dfmeta is installed than runs.",
        run=check.version,
        page="upgrade",
    ),
    check.Check(
        "permissions",
        "The daemon's process lacks a capability that it or its workers need.",
        needs=("process",),
        run=lambda of: checks_daemon.permissions(of.process, workers=of.options.workers),
        page="install",
    ),
    check.Check(
        "sockets",
        "The daemon may not connect to OVSDB's socket or to a bridge's management socket.",
        needs=("process",),
        run=lambda of: checks_daemon.sockets(of.process, of.sockets),
    ),
    check.Check(
        "open-files",
        "The daemon may open fewer files than ``[guest_limits] connections`` needs: two for each "
        "connection, and 256 more.",
        needs=("process",),
        run=lambda of: checks_daemon.open_files(of.process, of.options.connections),
        page="limits",
    ),
    check.Check(
        "workers",
        "Fewer worker processes are alive than ``proxy_workers``.",
        only=("workers",),
        needs=("process",),
        run=lambda of: checks_daemon.workers(of.process, of.options.workers),
    ),
    check.Check(
        "account",
        "Another program runs as the user of haproxy or of the workers: it can read secrets of "
        "guests and take their connections.",
        only=("accounts",),
        run=check.account,
        page="install",
    ),
    check.Check(
        "haproxy",
        "The program ``[haproxy] binary`` is missing, too old or does not run; a warning: another "
        "version runs than is installed.",
        only=("haproxy",),
        run=check.haproxy,
    ),
    check.Check(
        "haproxy-process",
        "No haproxy runs, it does not answer the daemon, it has privileges, or it runs with a "
        "former configuration. A warning for an hour: it was started again after a fault.",
        only=("haproxy",),
        needs=("haproxy",),
        run=check.haproxy_process,
    ),
    check.Check(
        "haproxy-files",
        "haproxy has opened all the files that it may; a warning at 90 % of them.",
        only=("haproxy",),
        needs=("haproxy", "haproxy-process"),
        run=lambda of: checks_daemon.haproxy_files(of.engine, of.child) if of.child else None,
    ),
    check.Check(
        "haproxy-connections",
        "Guests have as many connections as ``[haproxy] maxconn``; a warning at 90 %.",
        only=("haproxy",),
        needs=("haproxy",),
        run=lambda of: checks_daemon.haproxy_connections(of.engine),
    ),
    check.Check(
        "haproxy-map",
        "In three readings, haproxy's map lacks entries of the daemon's guests, or has others. The "
        "line has their numbers.",
        only=("haproxy",),
        needs=("haproxy",),
        run=lambda of: checks_daemon.haproxy_map(of.engine),
    ),
    check.Check(
        "ovsdb",
        "OVSDB does not answer at ``ovsdb_connection``.",
        run=lambda of: checks_switch.ovsdb(of.ovsdb_cause, of.wanted),
    ),
    check.Check(
        "vswitchd",
        "ovs-vswitchd does not answer on its control socket.",
        run=lambda of: checks_switch.vswitchd(*of.vswitchd),
    ),
    check.Check(
        "ovs-version",
        "ovs-vswitchd is older than 2.9.",
        run=lambda of: checks_switch.ovs_version(of.vswitchd[0]),
    ),
    check.Check(
        "bridge",
        "OVSDB has no bridge ``integration_bridge``.",
        needs=("ovsdb",),
        run=lambda of: checks_switch.bridge(of.snapshot.bridge(of.wanted.bridge), of.wanted),
    ),
    check.Check(
        "tap",
        "The port of tap-metadata is missing, on another bridge, made by another program, without "
        "a port number, or cut off by ``no-receive`` or ``no-forward``.",
        needs=("ovsdb",),
        run=lambda of: checks_switch.tap(of.tap, of.snapshot, wanted=of.wanted, cut=of.tap_cut),
    ),
    check.Check(
        "tap-vlan",
        "That port has another tag or VLAN mode: flooded frames reach it.",
        needs=("ovsdb", "tap"),
        run=lambda of: checks_switch.vlan([of.tap] if of.tap is not None else []),
    ),
    check.Check(
        "meta-bridge",
        "The bridge ``meta_bridge`` is missing, its ``fail_mode`` is not ``secure``, its datapath "
        "is not that of ``integration_bridge``, or its flows cannot be read. A bridge of others, "
        "who have ports on it, keeps its ``fail_mode``.",
        only=("meta",),
        needs=("ovsdb",),
        run=lambda of: checks_switch.meta_bridge(
            of.snapshot, of.wanted, of.meta, cause=of.meta_reading[1]
        ),
    ),
    check.Check(
        "meta-patch",
        "A patch port between the bridges is missing, on another bridge, without its peer or a "
        "port number, or cut off.",
        only=("meta",),
        needs=("ovsdb",),
        run=lambda of: checks_switch.meta_patch(of.snapshot, of.wanted, of.meta, of.bits),
    ),
    check.Check(
        "meta-patch-vlan",
        "A patch port has another tag or VLAN mode: flooded frames reach the other bridge.",
        only=("meta",),
        needs=("ovsdb",),
        run=lambda of: checks_switch.vlan(
            checks_switch.patch_ports(of.snapshot, of.wanted, of.meta)
        ),
    ),
    check.Check(
        "meta-mappings",
        "Flows of another program on ``meta_bridge`` may take guests' packets before dfmeta's. A "
        "warning: ``bridge_mappings`` of OVN or Neutron name that bridge, or another program has a "
        "flow with the action ``NORMAL``; its next restart may change the bridge.",
        only=("meta",),
        needs=("ovsdb",),
        run=check.mappings,
    ),
    check.Check(
        "socket",
        "The bridge's management socket accepts no connection.",
        run=lambda of: checks_switch.socket(of.socket_cause, of.wanted),
    ),
    check.Check(
        "openflow",
        "The bridge does not support OpenFlow 1.3, or does not answer.",
        needs=("socket",),
        run=lambda of: checks_switch.openflow(of.openflow_cause, of.wanted),
    ),
    check.Check(
        "fail-mode",
        "No controller of the bridge answers, its ``fail_mode`` is not ``secure``, and a flow of "
        "Open vSwitch itself, which no dump shows, takes all packets (fail open); a warning before "
        "that flow is there.",
        needs=("ovsdb",),
        run=lambda of: of.fail_mode,
    ),
    check.Check(
        "foreign-flows",
        "A flow of another program in ``classification_table``, at ``hook_priority`` or above, "
        "takes guests' packets to a metadata address or their requests for its MAC. OVN's drop at "
        "a port that waits for its guest by live migration is ok.",
        needs=("switch",),
        run=check.foreign_flows,
    ),
    check.Check(
        "flows",
        "Flows of dfmeta are missing, changed or stray, compared with those that the daemon "
        "desires; ``dfmeta flows`` shows each.",
        needs=("switch", "daemon"),
        run=check.flows,
        page="pipeline",
    ),
    check.Check(
        "floods",
        "A warning: the switch drops the SYNs of a guest that sends too many. Other guests are "
        "served.",
        needs=("switch",),
        run=lambda of: checks_flows.floods(of.reading.dumped if of.reading else (), of.names),
        page="limits",
    ),
    check.Check(
        "host",
        "The kernel's addresses, rules and routes cannot be read.",
        run=lambda of: (
            finding.wrong(cause, "run doctor as root, in the host's own network namespace")
            if (cause := of.host_cause(IPV4))
            else None
        ),
    ),
    check.Check(
        "device",
        "The device of tap-metadata is missing, down, or not held by ovs-vswitchd.",
        needs=("kernel",),
        run=lambda of: checks_host.device(of.host(IPV4), of.wanted),
    ),
    check.Check(
        "ipv6",
        "A warning: a setting of the host prevents IPv6 on that device (the boot option "
        "``ipv6.disable``, ``disable_ipv6``, an MTU below 1280), so guests are served over IPv4 "
        "only.",
        only=("no-ipv6",),
        run=lambda of: checks_host.ipv6(of.lack_of_ip6) if of.lack_of_ip6 is not None else None,
        page="ipv6-only",
    ),
    *check.both(
        "address",
        "The device lacks the address of the proxy's listener, ``host_ip``; or another device has "
        "it too, and answers to guests leave by that one.",
        lambda host, wanted, of: checks_host.address(host, wanted),
    ),
    *check.both(
        "rule-from",
        "The rule is missing that sends packets from ``host_ip`` to ``route_table``. No line with "
        "``identity_scheme = meta_ip``.",
        lambda host, wanted, of: checks_host.rule(host, wanted, "from"),
    ),
    *check.both(
        "rule-oif",
        "The rule is missing that sends packets that leave by tap-metadata to ``route_table``. No "
        "line with ``identity_scheme = meta_ip``.",
        lambda host, wanted, of: checks_host.rule(host, wanted, "oif"),
    ),
    *check.both(
        "route",
        "The default route of ``route_table`` does not lead to tap-metadata; with "
        "``identity_scheme = meta_ip``, the main table's route to the keys.",
        lambda host, wanted, of: checks_host.route(host, wanted),
    ),
    *check.both(
        "way-back",
        "Rules and route are there, and the kernel sends answers to guests by another device: a "
        "rule or route of another program, or an address of the host, comes first.",
        lambda host, wanted, of: checks_host.way_back(host, wanted),
    ),
    *check.both(
        "neighbour",
        "The next hop of that route has no permanent MAC.",
        lambda host, wanted, of: checks_host.neighbour(host, wanted),
    ),
    check.Check(
        "rp_filter",
        "Reverse path filtering drops guests' packets, since the rule ``rule-from`` is missing, "
        "with which it does no harm.",
        needs=("kernel",),
        run=lambda of: checks_host.rp_filter(of.host(IPV4), of.wanted),
    ),
    check.Check(
        "arp_ignore",
        "``net.ipv4.conf.all.arp_ignore`` is 0: the host answers ARP for ``host_ip`` on its other "
        "network interfaces.",
        needs=("kernel",),
        run=lambda of: checks_host.arp_ignore(of.host(IPV4), of.wanted),
    ),
    check.Check(
        "checksum",
        "On a userspace datapath, tap-metadata leaves TCP checksums to a network interface, and "
        "none completes them.",
        needs=("ovsdb", "kernel"),
        run=check.checksum,
    ),
    *check.both(
        "listener",
        "No process listens on ``host_ip`` and ``port``, or another program does.",
        lambda host, wanted, of: checks_host.listener(host, wanted, running=of.running),
    ),
    *check.both(
        "firewall",
        "Never wrong: the line names firewalld, and the base chains of nftables and iptables that "
        "drop what no rule accepts. The check ``path`` shows whether guests' packets pass.",
        lambda host, wanted, of: checks_host.firewall(
            of.chains, wanted.version, firewalld=of.firewalld
        ),
    ),
    check.Check(
        "flow-restore-wait",
        "``other_config:flow-restore-wait`` is true, so that ovs-vswitchd forwards nothing until a "
        "restart of Open vSwitch has restored the flows; a warning while it forwards: only a start "
        "of ovs-vswitchd reads it.",
        needs=("ovsdb",),
        run=lambda of: of.restore_wait,
        page="upgrade",
    ),
    check.Check(
        "path",
        "A SYN of dfmeta-agent's own, from the switch to tap-metadata, gets no answer within 2 s, "
        "is refused, or gets one with an incomplete checksum. It takes the path of a guest's SYN "
        "through all packet filters, rules and the listener.",
        needs=("daemon",),
        run=lambda of: checks_host.path(of.path, of.wanted, firewalld=of.firewalld),
        page="status",
    ),
    check.Check(
        "path-ipv6",
        "As ``path``, over IPv6. Readiness does not wait for it.",
        only=("path-ipv6",),
        needs=("daemon",),
        run=lambda of: checks_host.path(
            of.path.over(6), of.wanted.over(IPV6), firewalld=of.firewalld
        ),
    ),
    check.Check(
        "somaxconn",
        "``net.core.somaxconn`` is below the length of the listener's queue.",
        needs=("kernel",),
        run=lambda of: checks_system.somaxconn(of.host(IPV4).limits, backlog=BACKLOG),
        page="limits",
    ),
    check.Check(
        "syncookies",
        "``net.ipv4.tcp_syncookies`` is 0.",
        needs=("kernel",),
        run=lambda of: checks_system.syncookies(of.host(IPV4).limits),
        page="limits",
    ),
    check.Check(
        "conntrack",
        "Nine tenths of the host's conntrack table are taken, or it was full since the host's "
        "start and one guest could take half of it (`Guests' connections in conntrack`_).",
        run=check.conntrack,
    ),
    check.Check(
        "neighbours",
        "Nine tenths of the neighbour table are taken.",
        needs=("kernel",),
        run=lambda of: checks_system.neighbours(of.host(IPV4).limits),
    ),
    check.Check(
        "local-ports",
        "``net.ipv4.ip_local_port_range`` has fewer ports than ``[guest_limits] connections``.",
        only=("nova",),
        needs=("kernel",),
        run=lambda of: checks_system.local_ports(
            of.host(IPV4).limits, needed=of.options.connections
        ),
    ),
    check.Check(
        "networkd",
        "systemd-networkd runs and configures tap-metadata, or removes rules and routes of other "
        "programs; dfmeta-agent adds them again within a second.",
        run=lambda of: checks_system.networkd(read_networkd(of.root, of.wanted.tap), of.wanted.tap),
        page="install",
    ),
    check.Check(
        "network-manager",
        "NetworkManager runs and manages tap-metadata, as ``nmcli`` reports.",
        run=lambda of: checks_system.network_manager(
            checks_host.read_managed(of.wanted.tap), of.wanted.tap
        ),
        page="install",
    ),
    check.Check(
        "ovn-metadata",
        "The devices of OVN's metadata agent are on the bridge, and it does not run: no process "
        "listens at a socket ``metadata_proxy``. No line without the devices.",
        needs=("ovsdb",),
        run=lambda of: checks_system.ovn_metadata(
            read_ovn_metadata(of.root), of.snapshot, of.wanted
        ),
        page="migrate",
    ),
    check.Check(
        "cloud",
        "The host needs the metadata address itself, as a cloud's guest, and ``host_ip`` is that "
        "address: it has a route of its own to it, or a server answered there before dfmeta's "
        "first start.",
        run=lambda of: checks_system.cloud(own_route(of.wanted.ip, but=of.wanted.tap), of.wanted),
        page="install",
    ),
    check.Check(
        "nova",
        "A host of Nova's metadata API does not answer a signed request within 3 s, refuses the "
        "signature, ignores dfmeta's headers, has failed, or is not a metadata API.",
        only=("nova",),
        run=lambda of: of.services.nova(),
        page="first-hour-openstack",
    ),
    check.Check(
        "nova-guests",
        "Nova does not have a guest of this host in the project that dfmeta sends. Up to 10 guests "
        "are tried, failing ones first.",
        only=("nova",),
        run=lambda of: of.services.nova_guests(),
    ),
    check.Check(
        "source-libvirt",
        "A directory of ``libvirt_xml_path`` cannot be listed, a file cannot be read, or none "
        "exists though the configuration names libvirt.",
        run=lambda of: of.services.libvirt(),
    ),
    check.Check(
        "source-neutron",
        "Neutron cannot be queried, its account is refused or may not list ports, it shows none of "
        "this host's ports, or has them on a host of another name.",
        run=lambda of: of.services.neutron(),
    ),
    check.Check(
        "source-ovn",
        "OVN's southbound database has no known address, or cannot be read.",
        run=lambda of: of.services.ovn(of.snapshot.external_ids),
        page="trunks",
    ),
    check.Check(
        "store",
        "The store's database does not answer, is not a database, or was deleted or truncated "
        "while the daemon runs.",
        run=lambda of: of.services.store(running=of.running),
        page="store-central",
    ),
    check.Check(
        "store-schema",
        "A newer dfmeta has made the database's schema, or the daemon runs and needs another one. "
        "An older schema is migrated at the next start.",
        run=lambda of: of.services.store_schema(running=of.running),
        page="upgrade",
    ),
    check.Check(
        "store-files",
        "Users other than the owner may read or write a file of the database, or another user than "
        "the daemon's owns it.",
        run=lambda of: of.services.store_files(),
    ),
    check.Check(
        "lookup",
        "The upstream store does not answer within 3 s, or refuses the token of lookups.",
        run=lambda of: of.services.lookup(),
        page="store-central",
    ),
    check.Check(
        "tokens",
        "``[store] token_file`` cannot be read, is open to other users, or has no valid token.",
        run=lambda of: of.services.tokens(),
        page="store-api",
    ),
    check.Check(
        "clock",
        "The clock of Nova or of the upstream store differs by more than 60 seconds; or this clock "
        "is not synchronised, none of those agrees, and certificates or tokens depend on it.",
        run=check.clock,
    ),
    check.Check(
        "guests",
        "A guest that has asked since the daemon's start lacks its metadata. There is a line for "
        "each status and reason, four at most.",
        needs=("daemon",),
        run=lambda of: checks_guests.guests(of.ports, datetime.now(UTC)),
        page="status",
    ),
    check.Check(
        "ports",
        "A guest's port is broken, has no instance, no port number or, with Nova, no project; is "
        "cut off by its device, its link or the switch; or its SYNs arrive and no connection "
        "follows.",
        needs=("ports",),
        run=lambda of: checks_guests.ports(
            of.ports, of.wanted, running=of.running, snapshot=of.snapshot if of.has_ovsdb else None
        ),
        page="runbook",
    ),
    check.Check(
        "next-hops",
        "A next hop is left out: its entry is invalid, or is the service's or guest's address.",
        needs=("ports",),
        run=lambda of: checks_guests.next_hops(of.ports),
    ),
    check.Check(
        "trunks",
        "An entry of a list of subports is wrong or has no subport, or a patch of a subport or "
        "parent leads to no trunk. A warning: a parent has no local VLAN, or the MTU of a subport "
        "is larger than that of its VM's interface.",
        needs=("ports", "ovsdb"),
        run=lambda of: checks_trunks.trunks(of.ports, of.snapshot, of.wanted.bridge),
        page="trunks",
    ),
    check.Check(
        "attachments",
        "An attachment waits for its data plane for more than a minute or lacks it, or the table "
        "cannot be read. A warning: a VM has 90 % of its attachments; one is on a network that is "
        "not configured or is from before the VM's last boot; ports or entries are of none, or "
        "left where attachments are off; or the MTU of a network is too large.",
        needs=("attachments", "ovsdb"),
        run=check.attachments,
        page="containers",
    ),
    check.Check(
        "meta-range",
        "All Meta IPs of ``provider_cidr`` are taken, so that a port has none.",
        only=("meta",),
        needs=("daemon",),
        run=lambda of: checks_switch.meta_range(of.ports, of.wanted),
    ),
    check.Check(
        "meta-ids",
        "In several readings, OVSDB has other Meta IPs than the daemon uses: after a restart the "
        "guests would get others.",
        only=("meta",),
        needs=("daemon",),
        run=lambda of: of.settled_ids(),
    ),
    check.Check(
        "other-ports",
        "Never wrong: ports of the bridge that could have a guest and have no ids of one, such as "
        "an uplink.",
        needs=("ovsdb",),
        run=lambda of: checks_guests.other_ports(of.snapshot, of.wanted),
    ),
)
"""Every check, in the order of its lines."""
