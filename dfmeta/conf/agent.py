"""The options of the daemon, group ``[df_metadata]``."""

from __future__ import annotations

import pwd
import re
from ipaddress import IPv4Address
from typing import Any, Final

from oslo_config import cfg, types

from dfmeta.conf.kinds import Several, Text, absolute_path, has_port, host_port
from dfmeta.exceptions import ConfigError
from dfmeta.flows.pipeline import METADATA_IP, TABLES_TAKEN

GROUP: Final = cfg.OptGroup(
    name="df_metadata",
    title="The daemon",
    help="The packet path and the proxy on a compute node.",
)
_IFNAME: Final = types.String(regex=r"^[A-Za-z0-9_.-]{1,15}$")
_OVSDB: Final = re.compile(r"unix:/.+|tcp:.+:\d+")
_OPENFLOW: Final = re.compile(r"auto|unix:/.+|listen:.+:\d+")

IDENTITY_SOURCES: Final = ("ovsdb", "libvirt", "neutron", "store")
IDENTITY_DEFAULT: Final = ("ovsdb", "libvirt")


def _is_reachable(text: str) -> bool:
    """Whether a listener can be reached at an IPv4 address from another interface."""
    address = IPv4Address(text)
    return not (address.is_unspecified or address.is_loopback or address.is_multicast)


_ADDRESS: Final = Text(
    "a unicast IPv4 address outside 127.0.0.0/8",
    _is_reachable,
    example=METADATA_IP,
    type_name="IP address value",
)

OPTS: Final = [
    cfg.Opt(
        "ip",
        type=_ADDRESS,
        default=METADATA_IP,
        help="Address that guests ask for metadata, on TCP port 80. cloud-init and every other "
        "client has 169.254.169.254 built in; change it only together with the guests.",
    ),
    cfg.Opt(
        "host_ip",
        type=_ADDRESS,
        default="$ip",
        help="Address that tap-metadata has on the host, as a /32. Give another one where the "
        "host itself needs the address that guests ask, because it is a guest of a cloud: the "
        "flows then rewrite the destination. No other interface may have it.",
    ),
    cfg.PortOpt(
        "port",
        default=18080,
        help="TCP port of the proxy on tap-metadata. 0 takes a free one and remembers it in "
        "state_path, so that guests' connections find it after a restart.",
    ),
    cfg.Opt(
        "metadata_interface",
        type=_IFNAME,
        default="tap-metadata",
        help="Name of the port between the bridge and the proxy. It is made when it is missing, "
        "and must not be used for anything else.",
    ),
    cfg.Opt(
        "integration_bridge",
        type=types.String(regex=r"^[^/\s]{1,255}$"),
        default="br-int",
        help="Bridge that the guests' ports are on. Must match [ovs] integration_bridge of "
        "Neutron's agent where there is one.",
    ),
    cfg.Opt(
        "ovsdb_connection",
        type=Text(
            "unix:PATH or tcp:HOST:PORT with a port from 1 to 65535",
            lambda text: _OVSDB.fullmatch(text) and has_port(text),
            example="unix:/var/run/openvswitch/db.sock",
        ),
        default="unix:/var/run/openvswitch/db.sock",
        help="Open vSwitch's database: unix:PATH or tcp:HOST:PORT.",
    ),
    cfg.Opt(
        "openflow_connection",
        type=Text(
            "auto, unix:PATH or listen:HOST:PORT with a port from 1 to 65535",
            lambda text: _OPENFLOW.fullmatch(text) and has_port(text),
            example="auto or listen:127.0.0.1:6653",
        ),
        default="auto",
        help="How the bridge is reached. auto dials its management socket beside OVSDB's, which "
        "needs no Controller row; unix:PATH names that socket; listen:HOST:PORT waits for a "
        "bridge whose operator has pointed a controller at it, and takes only the one whose "
        "datapath id OVSDB has.",
    ),
    cfg.IntOpt(
        "table_base",
        default=200,
        min=1,
        max=254 - TABLES_TAKEN,
        help=f"First of the {TABLES_TAKEN} tables that dfmeta uses on the bridge. Nobody else may "
        "use them; Neutron uses none from 95 up.",
    ),
    cfg.IntOpt(
        "classification_table",
        default=0,
        min=0,
        max=253,
        help="Table that guests' frames enter first and in which the hooks stand, beside other "
        "people's flows.",
    ),
    cfg.IntOpt(
        "hook_priority",
        default=300,
        min=1,
        max=65534,
        help="Priority of the hooks in classification_table. Must be above whatever handles "
        "guests' IPv4 and ARP there (Neutron: 200), or guests are not served.",
    ),
    cfg.IntOpt(
        "route_table",
        default=2,
        min=1,
        max=4294967295,
        help="Routing table of the host in which all destinations are behind tap-metadata. "
        "Nothing else may be in it; 253 to 255 are the kernel's own.",
    ),
    cfg.StrOpt(
        "backend",
        default="store",
        choices=[
            ("store", "the embedded store answers; needs nothing else"),
            ("nova", "requests are signed and forwarded to Nova's metadata API"),
        ],
        help="Who answers guests.",
    ),
    cfg.Opt(
        "identity_sources",
        type=Several(types.String(choices=IDENTITY_SOURCES), noun="source"),
        default=list(IDENTITY_DEFAULT),
        help="Who says which instance is on a port, and of which project it is: ovsdb, libvirt, "
        "neutron, store, with commas between them. The first one that has a value wins, each "
        "further one fills in what is still open and is asked only then; one that is slow or away "
        "holds up only the ports that need it. ovsdb: external_ids vm-uuid or vm-id, and "
        "project-id, of the interface. libvirt: instance, project and name from the XML of the "
        "domains on this host. neutron: the instance from its API, see [neutron]; it has no "
        "project of an instance, only that of the port, which is taken when nothing else gives "
        "one (listed as 'neutron (port)'; Nova answers 404 where an admin owns the port). A "
        "tenant may write the instance into a port, so with backend = store a record answers such "
        "a port only if it has the port's project. store: project and name of a known instance "
        "from its record.",
    ),
    cfg.Opt(
        "libvirt_xml_path",
        type=Several(absolute_path(example="/run/libvirt/qemu")),
        default=["/run/libvirt/qemu", "/etc/libvirt/qemu"],
        help="Folders with the domains' XML files, for identity_sources with libvirt; each is an "
        "absolute path, and one that is not there is passed over. Who is on a port is read from "
        "the status files of active domains (/run) alone; definitions (/etc) give project and "
        "name of an instance that is known otherwise. The daemon must be able to read them.",
    ),
    cfg.FloatOpt(
        "hold_timeout",
        default=8,
        min=0,
        max=60,
        help="Seconds that a guest's request may wait in all while its instance is not known yet "
        "or the backend is away: its first SYN and the request share this budget. cloud-init "
        "gives up after 10. Nova has to have answered within it as well: with 0 every request to "
        "it is out of time, and with the store none waits for an instance.",
    ),
    cfg.StrOpt(
        "timeout_answer",
        default="auto",
        choices=[
            ("auto", "as 503, but close under /openstack/<version>/, where cloud-init retries it"),
            ("503", "503 Service Unavailable, on every path"),
            ("close", "the connection is closed without an answer, on every path"),
        ],
        help="What a guest gets when hold_timeout has passed.",
    ),
    cfg.BoolOpt(
        "refuse_forwarded",
        default=False,
        help="Refuse with 403 what comes with X-Forwarded-For, Forwarded or Via: such a request "
        "was passed on by a proxy in the guest, for somebody who is not the guest. Against "
        "request forgery; leave it off where guests reach the service through a proxy of their "
        "own on purpose. Whatever such a header says, it decides nothing else.",
    ),
    cfg.IntOpt(
        "proxy_workers",
        default=0,
        min=0,
        max=64,
        help="Processes that answer guests. 0: the daemon does it itself, in the thread that also "
        "takes first SYNs. With workers those are served at once however busy guests keep the "
        "proxy; each has its own share of what [guest_limits] gives a port. With backend = store "
        "the daemon still reads the records. Changed by a restart alone.",
    ),
    cfg.StrOpt(
        "proxy_worker_user",
        default="nobody",
        help="User that workers run as where the daemon is root; they keep no capability, "
        "whoever starts them.",
    ),
    cfg.FloatOpt(
        "startup_timeout",
        default=30,
        min=0,
        max=3600,
        help="Seconds that the daemon waits at start for OVSDB, the bridge and the switch before "
        "it ends with status 2.",
    ),
    cfg.Opt(
        "admin_listen",
        type=host_port(example="127.0.0.1:9697"),
        default="127.0.0.1:9697",
        help="HOST:PORT of the listener for health, metrics, the status page, dfmeta's own "
        "commands and the store's admin API. Where other hosts can reach it, that API needs "
        "token_file or oidc_issuer, or the daemon does not start; all the rest asks nobody who he "
        "is, and says which guests there are: let a firewall keep it to those who may know, or "
        "stay on loopback.",
    ),
    cfg.IntOpt(
        "listener_keep",
        default=600,
        min=1,
        max=86400,
        help="Seconds that the guests' listener is kept open after the daemon has ended, where "
        "systemd does not keep it: guests that connect wait for the next start. If none comes in "
        "time, metadata_interface is taken down and the listener closed: what guests send is then "
        "dropped, not refused, until a start brings both back. Time for which the host is "
        "suspended does not count.",
    ),
    cfg.Opt(
        "state_path",
        type=absolute_path(example="/var/lib/dfmeta"),
        default="/var/lib/dfmeta",
        help="Folder for what outlives the daemon. It is made with mode 0700 if it is missing, "
        "and belongs to the daemon alone.",
    ),
]


def check(group: Any) -> None:
    """Check what no single option can say.

    :raises ConfigError: naming the option.
    """
    base, hooks = group.table_base, group.classification_table
    if base <= hooks < base + TABLES_TAKEN or hooks > base:
        raise ConfigError(
            option="[df_metadata] table_base",
            value=base,
            cause=f"a packet goes to higher tables only, and classification_table is {hooks}",
            remedy=f"Give a number above {hooks}",
        )
    if group.route_table in (253, 254, 255):
        raise ConfigError(
            option="[df_metadata] route_table",
            value=group.route_table,
            cause="it is one of the kernel's own tables",
            remedy="Give the number of a table that nothing else uses, such as 2",
        )
    if len(set(group.identity_sources)) < len(group.identity_sources):
        raise ConfigError(
            option="[df_metadata] identity_sources",
            value=",".join(group.identity_sources),
            cause="a source stands in it twice",
            remedy="Give each one once",
        )
    _check_user("proxy_worker_user", group.proxy_worker_user)


def _check_user(option: str, value: str) -> None:
    try:
        found = pwd.getpwnam(value)
    except (KeyError, ValueError):
        cause = "there is no such user"
    else:
        if found.pw_uid:
            return
        cause = "it is root"
    raise ConfigError(
        option=f"[df_metadata] {option}",
        value=value,
        cause=cause,
        remedy="Name a user of this host that owns nothing, such as nobody",
    )
