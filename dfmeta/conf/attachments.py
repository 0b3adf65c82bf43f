"""The options of containers in virtual machines: ``[attachments]`` and the networks' groups.

Each network has a group of its own, ``[attachment_network:NAME]``. The names of these groups are
known only when the files are read.
"""

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from itertools import combinations
from typing import Any, Final
from uuid import UUID

from oslo_config import cfg, types

from dfmeta import errors, model
from dfmeta.conf.haproxy import HAPROXY
from dfmeta.conf.kinds import Several, Text, ipv4_network

GROUP: Final = cfg.OptGroup(
    name="attachments",
    title="Containers in virtual machines",
    help="The API with which a virtual machine gives each of its containers a network device of "
    "its own. Each network of containers has a group [attachment_network:NAME].",
)
NETWORK: Final = "attachment_network:"
"""Beginning of the name of a network's group."""
_VIDS: Final = "2:4000"
_RANGE: Final = re.compile(r"[0-9]{1,4}:[0-9]{1,4}", re.ASCII)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32}")
_EXAMPLE: Final = "10.20.0.0/24"
_NOT_GIVEN: Final = (cfg.Locations.opt_default, cfg.Locations.set_default)
LOCAL, NEUTRON = "local", "neutron"
_OF_LOCAL: Final = ("subnet", "gateway", "local_vlan", "mtu", "dns")
"""Options of a network with the driver local; with the driver neutron they are Neutron's."""
_OF_NEUTRON: Final = ("neutron_network", "neutron_subnet", "security_groups")
_EXAMPLE_ID: Final = "22222222-3333-4444-5555-666666666666"
_RESOURCE: Final = Text("the id of a resource of Neutron", _UUID.fullmatch, example=_EXAMPLE_ID)


def _is_range(text: str) -> bool:
    low, _colon, high = text.partition(":")
    return bool(_RANGE.fullmatch(text)) and 1 <= int(low) <= int(high) <= model.VID_MAX


_IDS: Final = Several(
    Text(
        "the id of an instance or a project",
        _UUID.fullmatch,
        example="11111111-2222-3333-4444-555555555555",
    ),
    least=0,
)

OPTS: Final = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="Answer requests for attachments, /dfmeta/v1/, of the virtual machines that allow or "
        "external_ids:dfmeta-attachments=true names. All others get 404.",
    ),
    cfg.StrOpt(
        "driver",
        default=LOCAL,
        choices=[
            (LOCAL, "Patch ports in Open vSwitch, which dfmeta makes itself."),
            (NEUTRON, "Ports of Neutron, as subports of the trunk of the virtual machine's port."),
        ],
        help="How attachments are made. neutron needs [neutron] with an account that may create "
        "ports of all projects and change all trunks (by Neutron's default policy: admin).",
    ),
    cfg.Opt(
        "allow",
        type=_IDS,
        default=[],
        mutable=True,
        help="Ids of the instances that get attachments, or of projects, with commas between them. "
        "A virtual machine is allowed as well by external_ids:dfmeta-attachments=true in the "
        "Interface row of its port. Both count for the networks without a list of their own.",
    ),
    cfg.Opt(
        "vid_range",
        type=Text(
            f"LOW:HIGH, two VLAN ids from 1 to {model.VID_MAX}",
            _is_range,
            example=_VIDS,
            type_name="range of VLAN ids",
        ),
        default=_VIDS,
        help="First and last VLAN id for the containers of a virtual machine. Each virtual machine "
        "has the whole range.",
    ),
    cfg.IntOpt(
        "quota",
        default=256,
        min=1,
        max=model.VID_MAX,
        mutable=True,
        help="Largest number of attachments of one virtual machine on all networks, including "
        "those that are being removed.",
    ),
    cfg.FloatOpt(
        "rate",
        default=20,
        min=0.1,
        max=1000,
        mutable=True,
        help="New attachments of one virtual machine in a second. Its other requests of the API "
        "are limited to ten times as many. Those of [metadata_rate_limiting] do not count here.",
    ),
    cfg.FloatOpt(
        "rest",
        default=10,
        min=0,
        max=86400,
        help="Seconds for which the VLAN id of a removed attachment is not given again, if the "
        "virtual machine has deleted its device.",
    ),
    cfg.FloatOpt(
        "rest_unknown",
        default=120,
        min=0,
        max=86400,
        help="The same in seconds, if the device may still exist.",
    ),
    cfg.FloatOpt(
        "grace",
        default=600,
        min=0,
        max=2592000,
        help="Seconds after which the attachments of a virtual machine are removed that is no "
        "longer on this host.",
    ),
    cfg.FloatOpt(
        "gc_min_age",
        default=60,
        min=0,
        max=86400,
        help="Age in seconds below which a runtime's garbage collection removes no attachment.",
    ),
    cfg.StrOpt(
        "connection",
        default="sqlite:///${df_metadata.state_path}/attachments.db",
        secret=True,
        help="The database of attachments, as an SQLAlchemy URL: sqlite:///PATH, or "
        "postgresql://USER:PASSWORD@HOST/DATABASE for the hosts among which virtual machines "
        "migrate (pip install 'dfmeta[postgresql]'). It may be the same as [store] connection. A "
        "missing SQLite file is created with mode 0600.",
    ),
]

NETWORK_OPTS: Final = [
    cfg.Opt(
        "allow",
        type=_IDS,
        mutable=True,
        help="Ids of the instances that get attachments on this network, or of projects, with "
        "commas between them. Unset: those that [attachments] allow or their own port allows.",
    ),
    cfg.IntOpt(
        "quota",
        min=1,
        max=model.VID_MAX,
        mutable=True,
        help="Largest number of attachments of one virtual machine on this network. Unset: only "
        "[attachments] quota limits them.",
    ),
    cfg.Opt(
        "subnet",
        type=ipv4_network(range(8, 31), but="169.254.169.254", example=_EXAMPLE),
        help="Network of the containers' addresses. Required with driver = local. With driver = "
        "neutron, Neutron gives subnet, gateway, mtu and dns, and they must be unset.",
    ),
    cfg.IPOpt(
        "gateway",
        version=4,
        help="Address of subnet that becomes the containers' default route. Unset: they get no "
        "default route.",
    ),
    cfg.IntOpt(
        "local_vlan",
        default=0,
        min=0,
        max=model.VID_MAX,
        help="VLAN of the network on the integration bridge; 0: untagged.",
    ),
    cfg.IntOpt(
        "mtu",
        default=1500,
        min=576,
        max=9216,
        help="MTU of the containers' devices in bytes.",
    ),
    cfg.ListOpt(
        "dns",
        item_type=types.IPAddress(),
        default=[],
        help="Addresses of name servers for the containers, with commas between them.",
    ),
    cfg.Opt(
        "neutron_network",
        type=_RESOURCE,
        help="Id of the network in Neutron. Required with driver = neutron.",
    ),
    cfg.Opt(
        "neutron_subnet",
        type=_RESOURCE,
        help="Id of an IPv4 subnet of neutron_network. Required with driver = neutron. dfmeta "
        "chooses addresses of it that no other port has.",
    ),
    cfg.Opt(
        "security_groups",
        type=Several(_RESOURCE, least=0),
        default=[],
        help="Ids of the security groups of the containers' ports, with commas between them. "
        "Unset: the group default of the virtual machine's project.",
    ),
]


def vids(group: Any) -> range:
    """Return the VLAN ids of ``vid_range``."""
    low, high = map(int, group.vid_range.split(":"))
    return range(low, high + 1)


def allowed(group: Any) -> frozenset[str]:
    """Return the ids of ``allow``, as dfmeta writes instances and projects: both forms of each.

    :param group: ``[attachments]``, or the group of a network whose ``allow`` is set.
    """
    ids = map(UUID, group.allow)
    return frozenset(text for allowed_id in ids for text in (str(allowed_id), allowed_id.hex))


def uses_neutron(conf: cfg.ConfigOpts) -> bool:
    """Return whether attachments are made in Neutron."""
    return bool(conf.attachments.enabled) and conf.attachments.driver == NEUTRON


def networks(conf: cfg.ConfigOpts) -> dict[str, Any]:
    """Return name → group of each network in the files, in the order of the names."""
    return {name: conf[NETWORK + name] for name in sorted(_names(conf))}


def register_networks(conf: cfg.ConfigOpts) -> list[str]:
    """Register the options of each network in the files of *conf*, and return the groups.

    :raises ConfigError: for a network without a valid name.
    """
    groups = [NETWORK + name for name in sorted(_names(conf))]
    for group in groups:
        if not _NAME.fullmatch(group.removeprefix(NETWORK)):
            raise errors.ConfigError(
                option=f"[{NETWORK}NAME]",
                value=group.removeprefix(NETWORK),
                cause="it is not the name of a network",
                remedy="Give a name of at most 63 small letters, digits and _.-",
            )
        conf.register_group(cfg.OptGroup(group, title="A network of containers"))
        conf.register_opts(NETWORK_OPTS, group=group)
    return groups


def check(conf: cfg.ConfigOpts) -> None:
    """Check the rules between options.

    :raises ConfigError: naming the option.
    """
    groups = {NETWORK + name: network for name, network in networks(conf).items()}
    for group, network in groups.items():
        _check_driver(conf, group, network)
    if conf.attachments.driver == LOCAL:
        _check_subnets(groups)
    if conf.attachments.enabled:
        _check_enabled(conf, groups)


def _check_driver(conf: cfg.ConfigOpts, group: str, network: Any) -> None:
    """Check that a network has the options of its driver, and none of the other driver."""
    driver = conf.attachments.driver
    required, others = {
        LOCAL: ({"subnet": _EXAMPLE}, _OF_NEUTRON),
        NEUTRON: (dict.fromkeys(_OF_NEUTRON[:2], _EXAMPLE_ID), _OF_LOCAL),
    }[driver]
    for option in others:
        place = conf.get_location(option, group)
        if place is not None and place.location not in _NOT_GIVEN:
            raise errors.ConfigError(
                option=f"[{group}] {option}",
                value=network[option],
                cause=f"with driver = {driver} it has no effect",
                remedy=f"Remove it, or set another [{GROUP.name}] driver",
            )
    for option, example in required.items():
        if not network[option]:
            raise errors.ConfigError(
                option=f"[{group}] {option}",
                value="",
                cause=f"with driver = {driver} a network has to have one",
                remedy=f"Give one such as {example}",
            )


def _check_subnets(groups: Mapping[str, Any]) -> None:
    """Check that gateways are in their subnets, and that no two networks are the same."""
    for group, network in groups.items():
        subnet = IPv4Network(network.subnet)
        ends = (subnet.network_address, subnet.broadcast_address)
        gateway = IPv4Address(network.gateway) if network.gateway else None
        if gateway is not None and (gateway not in subnet or gateway in ends):
            raise errors.ConfigError(
                option=f"[{group}] gateway",
                value=network.gateway,
                cause=f"it is not the address of a host in subnet = {subnet}",
                remedy=f"Give an address such as {ends[0] + 1}",
            )
    for (first, network), (second, other) in combinations(groups.items(), 2):
        overlap = IPv4Network(network.subnet).overlaps(IPv4Network(other.subnet))
        if network.local_vlan == other.local_vlan and overlap:
            raise errors.ConfigError(
                option=f"[{second}] local_vlan",
                value=other.local_vlan,
                cause=f"[{first}] has the same, and their subnets overlap",
                remedy="Give each network a VLAN or a subnet of its own",
            )


def _check_enabled(conf: cfg.ConfigOpts, groups: Mapping[str, Any]) -> None:
    if not groups:
        raise errors.ConfigError(
            option=f"[{GROUP.name}] enabled",
            value=True,
            cause="there is no network of containers",
            remedy=f"Add a group [{NETWORK}NAME], or set enabled = False",
        )
    if conf.df_metadata.engine == HAPROXY:
        raise errors.ConfigError(
            option=f"[{GROUP.name}] enabled",
            value=True,
            cause="with engine = haproxy, an answer cannot be kept within the virtual machine",
            remedy="Set [df_metadata] engine = wsgi, or enabled = False",
        )


def _names(conf: cfg.ConfigOpts) -> set[str]:
    space = conf._namespace
    files = space._parsed if space is not None else []
    return {
        section[len(NETWORK) :]
        for sections in files
        for section in sections
        if section.lower().startswith(NETWORK)
    }
