"""The options of ``identity_scheme = meta_ip``, group ``[METADATA]``.

Names and defaults are those of Neutron's extension metadata_path, so that its section can be
copied.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Network
from typing import Any, Final

from oslo_config import cfg

from dfmeta import errors, model
from dfmeta.conf.kinds import Text, ipv4_network
from dfmeta.identity.key import Keys, MetaKeys

GROUP: Final = cfg.OptGroup(
    name="METADATA",
    title="Meta IPs",
    help="The identity scheme meta_ip. Names and defaults are those of Neutron's extension "
    "metadata_path. Nova's options of the group DEFAULT are read from this group too, where they "
    "are not set in DEFAULT.",
)
META_IP: Final = "meta_ip"
TAP: Final = "tap-meta"
"""Name of the internal port, as metadata_path has it."""
_CIDR: Final = "240.0.0.0/16"
_BASE_MAC: Final = "fa:16:ee:00:00:00"


OPTS: Final = [
    cfg.Opt(
        "provider_cidr",
        type=ipv4_network(range(10, 30), example=_CIDR),
        default=_CIDR,
        help="Network of the Meta IPs, by which the proxy tells guests apart. A network of N "
        "addresses has room for N - 3 addresses of guests, and for as many of IPv6. Packets with "
        "them never leave the host: change it only if the host needs this network itself.",
    ),
    cfg.IntOpt(
        "provider_vlan_id",
        default=1,
        min=1,
        max=4094,
        help="VLAN id of answers within the second bridge. It is pushed and popped there, so it "
        "may be the id of any other VLAN of the host.",
    ),
    cfg.Opt(
        "provider_base_mac",
        type=Text(
            "a unicast MAC such as fa:16:ee:00:00:00",
            lambda text: model.is_unicast(text.lower()),
            example=_BASE_MAC,
            type_name="MAC address value",
        ),
        default=_BASE_MAC,
        help="MAC to which the number of a Meta IP is added: the sum, the Meta MAC, stands for one "
        "address of a guest between the two bridges. Its last bits have to be 0.",
    ),
    cfg.PortOpt(
        "host_proxy_listen_port",
        default=80,
        min=1,
        help="TCP port of the proxy on tap-meta, at the first address of provider_cidr.",
    ),
]


def keys_of(conf: cfg.ConfigOpts) -> Keys:
    """Return a key scheme, which the registry, its mirrors and the flows share."""
    if conf.df_metadata.identity_scheme != META_IP:
        return Keys(IPv6Network(conf.df_metadata.key_prefix6))
    return _meta_keys(conf)


def meta_of(conf: cfg.ConfigOpts) -> model.MetaNames | None:
    """Return the names of the second bridge and its ports, which are those of metadata_path.

    None: the identity scheme has no second bridge.
    """
    if conf.df_metadata.identity_scheme != META_IP:
        return None
    bridge = conf.df_metadata.meta_bridge
    return model.MetaNames(bridge, TAP, f"int-{bridge}", f"phy-{bridge}", _meta_keys(conf).label(1))


def _meta_keys(conf: cfg.ConfigOpts) -> MetaKeys:
    group, prefix6 = conf[GROUP.name], IPv6Network(conf.df_metadata.key_prefix6)
    return MetaKeys(IPv4Network(group.provider_cidr), prefix6, group.provider_base_mac.lower())


def apply(conf: cfg.ConfigOpts) -> None:
    """Set the options of the host's side that follow from ``identity_scheme = meta_ip``."""
    if conf.df_metadata.identity_scheme != META_IP:
        return
    scheme = _meta_keys(conf)
    for name, value in (
        ("metadata_interface", TAP),
        ("host_ip", scheme.gateway(4)),
        ("host_ip6", scheme.gateway(6)),
        ("port", conf[GROUP.name].host_proxy_listen_port),
    ):
        conf.set_override(name, value, group="df_metadata")


def check(conf: cfg.ConfigOpts) -> None:
    """Check the rules between options of the group and others.

    :raises ConfigError: naming the option.
    """
    names = meta_of(conf)
    if names is None:
        return
    group: Any = conf[GROUP.name]
    cidr = IPv4Network(group.provider_cidr)
    if IPv4Address(conf.df_metadata.ip) in cidr:
        raise errors.ConfigError(
            option=f"[{GROUP.name}] provider_cidr",
            value=group.provider_cidr,
            cause=f"it contains [df_metadata] ip = {conf.df_metadata.ip}",
            remedy=f"Give another network, such as {_CIDR}",
        )
    base = int(group.provider_base_mac.replace(":", ""), 16)
    if base % (2 * cidr.num_addresses):
        raise errors.ConfigError(
            option=f"[{GROUP.name}] provider_base_mac",
            value=group.provider_base_mac,
            cause=f"its last {(2 * cidr.num_addresses).bit_length() - 1} bits are not 0: the "
            f"numbers of {cidr} are added to it",
            remedy=f"Give one such as {_BASE_MAC}",
        )
    longest = max(names[:4], key=len)
    if len(longest) > model.NAME_MAX:
        raise errors.ConfigError(
            option="[df_metadata] meta_bridge",
            value=conf.df_metadata.meta_bridge,
            cause=f"the name {longest} of its port is longer than {model.NAME_MAX} characters",
            remedy="Give a shorter name, such as br-meta",
        )
