"""The options of the daemon, group ``[df_metadata]``."""

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Any, Final

from oslo_config import cfg, types

from dfmeta.conf import kinds
from dfmeta.errors import ConfigError
from dfmeta.flows.pipeline import METADATA_IP, TABLES_TAKEN, Layout
from dfmeta.identity.key import PREFIX6

GROUP: Final = cfg.OptGroup(
    name="df_metadata",
    title="The daemon",
    help="The packet path and the proxy on a compute node.",
)
_IFNAME: Final = types.String(regex=r"^[A-Za-z0-9_.-]{1,15}$")
_OVSDB: Final = re.compile(r"unix:/.+|tcp:.+:\d+")
_OPENFLOW: Final = re.compile(r"auto|unix:/.+|listen:.+:\d+")

IDENTITY_SOURCES: Final = ("ovsdb", "libvirt", "neutron", "ovn", "store")
IDENTITY_DEFAULT: Final = ("ovsdb", "libvirt")


SERVICE6: Final = ("fe80::a9fe:a9fe", "fd00:ec2::254")
HOST_IP6: Final = "fd00:a9fe:a9fe:a9fe::a9fe"


def _is_unicast(spelt: IPv4Address | IPv6Address) -> bool:
    """Return whether guests can ask a service at an address."""
    return not (spelt.is_unspecified or spelt.is_loopback or spelt.is_multicast)


def _is_service6(text: str) -> bool:
    spelt = IPv6Address(text)
    return _is_unicast(spelt) and not (spelt.ipv4_mapped or spelt.scope_id)


def _is_host6(text: str) -> bool:
    """Return whether a listener can be bound to an IPv6 address without a device."""
    return _is_service6(text) and not IPv6Address(text).is_link_local


def _is_prefix6(text: str) -> bool:
    prefix = IPv6Network(text)
    first = prefix.network_address
    return prefix.prefixlen == PREFIX6.prefixlen and not (
        first.is_link_local or first.is_multicast or first.is_unspecified
    )


_ADDRESS: Final = kinds.address(
    "a unicast IPv4 address outside 127.0.0.0/8",
    lambda text: _is_unicast(IPv4Address(text)),
    example=METADATA_IP,
)

OPTS: Final = [
    cfg.Opt(
        "ip",
        type=_ADDRESS,
        default=METADATA_IP,
        help="Address at which guests request metadata, on TCP port 80. cloud-init and all other "
        "clients have 169.254.169.254 built in: change it only together with the guests.",
    ),
    cfg.Opt(
        "host_ip",
        type=_ADDRESS,
        default="$ip",
        help="Address of tap-metadata on the host, as a /32. Set an address other than ip where "
        "the host itself needs that address because it is a guest of a cloud: the flows then "
        "rewrite the destination. No other interface may have this address.",
    ),
    cfg.Opt(
        "ip6",
        type=kinds.Several(
            kinds.address(
                "a unicast IPv6 address without a zone", _is_service6, example=SERVICE6[0]
            ),
            least=0,
        ),
        default=list(SERVICE6),
        help="IPv6 addresses at which guests request metadata, on TCP port 80, with commas between "
        "them: OpenStack's and Amazon EC2's by default. Empty: IPv4 only. On a host without IPv6, "
        "guests are served over IPv4.",
    ),
    cfg.Opt(
        "host_ip6",
        type=kinds.address(
            "a unicast IPv6 address that is not link-local", _is_host6, example=HOST_IP6
        ),
        default=HOST_IP6,
        help="IPv6 address of tap-metadata on the host, as a /128; the proxy listens there on the "
        "same port. The flows rewrite the destination of guests' packets to it. No other interface "
        "may have this address.",
    ),
    cfg.Opt(
        "key_prefix6",
        type=kinds.network(
            "a unicast IPv6 network of prefix length 64 that is not link-local",
            _is_prefix6,
            example=str(PREFIX6),
        ),
        default=str(PREFIX6),
        help="Network of the source addresses by which the proxy tells guests apart over IPv6. "
        "Packets with them never leave the host: change it only if the host needs this network "
        "itself. A change resets guests' open IPv6 connections.",
    ),
    cfg.PortOpt(
        "port",
        default=18080,
        help="TCP port of the proxy on tap-metadata. 0 chooses a free port and stores it in "
        "state_path, so that the daemon uses the same port after a restart.",
    ),
    cfg.Opt(
        "metadata_interface",
        type=_IFNAME,
        default="tap-metadata",
        help="Name of the port between the bridge and the proxy. dfmeta creates it if it is "
        "missing; it must not be used for anything else.",
    ),
    cfg.Opt(
        "integration_bridge",
        type=types.String(regex=r"^[^/\s]{1,255}$"),
        default="br-int",
        help="Bridge of the guests' ports. Must match [ovs] integration_bridge of Neutron's "
        "agent, if the host has one.",
    ),
    cfg.Opt(
        "ovsdb_connection",
        type=kinds.Text(
            "unix:PATH or tcp:HOST:PORT with a port from 1 to 65535",
            lambda text: _OVSDB.fullmatch(text) and kinds.has_port(text),
            example="unix:/var/run/openvswitch/db.sock",
        ),
        default="unix:/var/run/openvswitch/db.sock",
        help="Address of Open vSwitch's database: unix:PATH or tcp:HOST:PORT.",
    ),
    cfg.Opt(
        "openflow_connection",
        type=kinds.Text(
            "auto, unix:PATH or listen:HOST:PORT with a port from 1 to 65535",
            lambda text: _OPENFLOW.fullmatch(text) and kinds.has_port(text),
            example="auto or listen:127.0.0.1:6653",
        ),
        default="auto",
        help="OpenFlow connection to the bridge. auto: connect to the bridge's management socket "
        "beside OVSDB's socket, which needs no Controller row. unix:PATH: connect to the "
        "management socket at PATH. listen:HOST:PORT: wait there for the bridge, to which an "
        "operator has given this address as its controller; only the bridge with the datapath id "
        "that OVSDB lists is accepted.",
    ),
    cfg.IntOpt(
        "table_base",
        default=200,
        min=1,
        max=254 - TABLES_TAKEN,
        help=f"First of the {TABLES_TAKEN} tables that dfmeta uses on the bridge. No other program "
        "may use them; Neutron uses no table from 95 up.",
    ),
    cfg.IntOpt(
        "classification_table",
        default=0,
        min=0,
        max=253,
        help="Table that guests' frames enter first. dfmeta installs its hooks there, beside the "
        "flows of other programs.",
    ),
    cfg.IntOpt(
        "hook_priority",
        default=300,
        min=1,
        max=65534,
        help="Priority of the hooks in classification_table. Must be higher than that of the flows "
        "that handle guests' IPv4 and ARP there (Neutron: 200), or guests are not served. The "
        "flows of meta_bridge have fixed priorities.",
    ),
    cfg.IntOpt(
        "route_table",
        default=2,
        min=1,
        max=4294967295,
        help="Routing table of the host that routes all destinations to tap-metadata. It must not "
        "contain other routes; tables 253 to 255 belong to the kernel.",
    ),
    cfg.StrOpt(
        "identity_scheme",
        default="in_port",
        choices=[
            ("in_port", "the source address on tap-metadata is made from the number of the port"),
            ("meta_ip", "Meta IPs on a second bridge, as with metadata_path; see [METADATA]"),
        ],
        help="How the proxy tells guests apart. The identity of a guest is its port in both. With "
        "meta_ip the options metadata_interface, host_ip, host_ip6, port and route_table do not "
        "apply. A change needs a restart, which removes what belongs to the other scheme.",
    ),
    cfg.Opt(
        "meta_bridge",
        type=types.String(regex=r"^[^/\s]{1,11}$"),
        default="br-meta",
        help="Second bridge of identity_scheme = meta_ip. dfmeta creates it if it is missing.",
    ),
    cfg.StrOpt(
        "backend",
        default="store",
        choices=[
            ("store", "the embedded store answers; no other service is needed"),
            ("nova", "requests are signed and forwarded to Nova's metadata API"),
        ],
        mutable=True,
        help="Source of the answers to guests.",
    ),
    cfg.Opt(
        "identity_sources",
        type=kinds.Several(types.String(choices=IDENTITY_SOURCES)),
        default=list(IDENTITY_DEFAULT),
        help="Identity sources, which give the instance and project of a port: ovsdb, libvirt, "
        "neutron, ovn and store, with commas between them, in order of preference. For each value "
        "the first source that has it wins. A later source is queried only for values that are "
        "still missing; a source that is slow or does not answer delays only the ports that need "
        "it. ovsdb: external_ids vm-uuid or vm-id, and project-id, of the interface. libvirt: "
        "instance, project and name from the XML of the domains on this host. neutron: the "
        "instance from Neutron's API, see [neutron]. Neutron does not know the project of an "
        "instance, only that of the port, which is used when no other source gives a project "
        "(listed as 'neutron (port)'; Nova answers 404 if an admin owns the port). A tenant can "
        "write the instance into a port, so with backend = store a record answers such a port "
        "only if it has the port's project. ovn: the same values from OVN's southbound database, "
        "see [ovn]. store: project and name of a known instance from its record.",
    ),
    cfg.StrOpt(
        "subport_identity",
        default="own",
        choices=[
            ("own", "the container's own instance; without one, 404"),
            ("parent", "the instance of the VM"),
        ],
        help="Instance that a subport of a trunk is answered as, that is, a container in a VM. See "
        "the page on trunks for the places that name a subport's own instance. With own and "
        "backend = store, each new attachment (see [attachments]) is an instance with a record. A "
        "change needs a restart.",
    ),
    cfg.BoolOpt(
        "network_data_subports",
        default=True,
        mutable=True,
        help="Add the subports of a VM to its network_data.json as VLAN links, of which cloud-init "
        "makes VLAN devices at the VM's first boot. Set it to false if a program in the VMs makes "
        "these devices itself, such as a CNI plugin: it would find them there already. With engine "
        "= haproxy the daemon answers all requests for this file if it is true.",
    ),
    cfg.Opt(
        "libvirt_xml_path",
        type=kinds.Several(kinds.absolute_path(example="/run/libvirt/qemu")),
        default=["/run/libvirt/qemu", "/etc/libvirt/qemu"],
        help="Directories with the domains' XML files, for the identity source libvirt: absolute "
        "paths with commas between them. A directory that does not exist is skipped. The instance "
        "on a port is read from the status files of active domains (/run) alone; definitions "
        "(/etc) give the project and name of an instance that another source has named. The daemon "
        "must be able to read the files.",
    ),
    cfg.FloatOpt(
        "hold_timeout",
        default=8,
        min=0,
        max=60,
        mutable=True,
        help="Seconds that a guest's request may be held in all while its instance is not known "
        "yet or the backend is unavailable; the first SYN and the request share this time. "
        "cloud-init gives up after 10 seconds. Nova's answer has to arrive within it as well. 0: "
        "with Nova every request times out; with the store no request waits for its instance.",
    ),
    cfg.StrOpt(
        "timeout_answer",
        default="auto",
        choices=[
            ("auto", "like 503, but close under /openstack/<version>/, where cloud-init retries"),
            ("503", "503 Service Unavailable, on every path"),
            ("close", "the connection is closed without an answer, on every path"),
        ],
        mutable=True,
        help="Answer to a guest when hold_timeout has passed.",
    ),
    cfg.BoolOpt(
        "refuse_forwarded",
        default=False,
        mutable=True,
        help="Refuse requests with a header X-Forwarded-For, Forwarded or Via with 403: a proxy in "
        "the guest has forwarded such a request for another client. This protects against request "
        "forgery; leave it off if guests reach the service through a proxy of their own on "
        "purpose. In dfmeta-agent the content of these headers has no other effect.",
    ),
    cfg.StrOpt(
        "engine",
        default="wsgi",
        choices=[
            ("wsgi", "the daemon, or its workers, answer guests"),
            ("haproxy", "haproxy answers plain requests, and the daemon the others"),
        ],
        help="The part that accepts guests' connections. haproxy needs backend = nova; see "
        "[haproxy]. A change needs a restart.",
    ),
    cfg.IntOpt(
        "proxy_workers",
        default=0,
        min=0,
        max=64,
        help="Number of worker processes that answer guests. 0: the daemon answers them itself, in "
        "the thread that also handles first SYNs. With workers, first SYNs are handled at once "
        "even when guests keep the proxy busy; each worker has a share of a port's [guest_limits]. "
        "With backend = store the daemon still reads the records. A change needs a restart.",
    ),
    cfg.StrOpt(
        "proxy_worker_user",
        default="",
        help="User that workers run as if the daemon is root. No other program may run as this "
        "user: it could read what the workers have in memory. Empty: dfmeta-worker if there is "
        "such a user, else each worker has a user id from 65536 to 99999 that no other process "
        "has. Workers keep no capability, whether or not the daemon is root.",
    ),
    cfg.FloatOpt(
        "startup_timeout",
        default=30,
        min=0,
        max=3600,
        help="Seconds that the daemon waits at start for OVSDB, the bridge and the switch. After "
        "that it ends with status 2.",
    ),
    cfg.Opt(
        "admin_listen",
        type=kinds.host_port(example="127.0.0.1:9697"),
        default="127.0.0.1:9697",
        help="HOST:PORT of the listener for health, metrics, the status page, dfmeta's own "
        "commands and the store's admin API. If other hosts can reach it, that API needs "
        "token_file or oidc_issuer, or the daemon does not start. The other pages need no "
        "authentication and list the guests: restrict access with a firewall, or keep the listener "
        "on loopback.",
    ),
    cfg.IntOpt(
        "listener_keep",
        default=600,
        min=1,
        max=86400,
        help="Seconds that the guests' listener is kept open after the daemon has ended, if "
        "systemd does not keep it. Guests that connect meanwhile wait for the next start. If the "
        "daemon does not start in time, metadata_interface is set down and the listener is closed: "
        "guests' packets are then dropped, not refused, until the daemon starts again. Time during "
        "which the host is suspended does not count.",
    ),
    cfg.Opt(
        "state_path",
        type=kinds.absolute_path(example="/var/lib/dfmeta"),
        default="/var/lib/dfmeta",
        help="Directory for the data that the daemon keeps over a restart. It is created with mode "
        "0700 if it is missing; no other program may use it.",
    ),
]


def layout_of(group: Any) -> Layout:
    """Return the layout of the pipeline on the switch.

    :param group: the options ``[df_metadata]``.
    """
    return Layout(group.table_base, group.classification_table, group.hook_priority)


def check(group: Any) -> None:
    """Check the rules between options of the group.

    :raises ConfigError: naming the option.
    """
    base, hooks = group.table_base, group.classification_table
    if base <= hooks < base + TABLES_TAKEN or hooks > base:
        raise ConfigError(
            option="[df_metadata] table_base",
            value=base,
            cause=f"a packet can go to higher tables only, and classification_table is {hooks}",
            remedy=f"Give a number above {hooks}",
        )
    if group.route_table in (253, 254, 255):
        raise ConfigError(
            option="[df_metadata] route_table",
            value=group.route_table,
            cause="it is one of the kernel's own tables",
            remedy="Give the number of a table that no other program uses, such as 2",
        )
    if len(set(group.identity_sources)) < len(group.identity_sources):
        raise ConfigError(
            option="[df_metadata] identity_sources",
            value=",".join(group.identity_sources),
            cause="it names a source twice",
            remedy="Name each source once",
        )
    _check_ip6(group)
    kinds.check_user("[df_metadata] proxy_worker_user", group.proxy_worker_user)


def _check_ip6(group: Any) -> None:
    keys = IPv6Network(group.key_prefix6)
    services = [IPv6Address(text) for text in group.ip6]
    listener = IPv6Address(group.host_ip6)
    cause = ""
    if len(set(services)) < len(services):
        cause = "it names an address twice"
    elif any(service in keys for service in services):
        cause = f"the addresses of [df_metadata] key_prefix6 = {keys} stand for guests"
    if cause:
        raise ConfigError(
            option="[df_metadata] ip6",
            value=",".join(group.ip6),
            cause=cause,
            remedy="Name each address once, and none of key_prefix6",
        )
    slot = int(listener) >> 48 & 0xFFFF
    if listener in services:
        cause = "it is also one of [df_metadata] ip6"
    elif listener in keys and slot:
        cause = f"in {keys}, addresses with a slot (the first 16 bits after the prefix) stand for "
        cause += "guests"
    if cause:
        raise ConfigError(
            option="[df_metadata] host_ip6",
            value=group.host_ip6,
            cause=cause,
            remedy=f"Give an address of the host's own, such as {HOST_IP6}",
        )
