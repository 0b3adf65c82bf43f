"""The proxy's side of a host with either identity scheme, for tests that run with both."""

from dataclasses import dataclass
from typing import Final

from dfmeta.conf.agent import HOST_IP6
from dfmeta.conf.metadata import META_IP, TAP
from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.identity.key import IN_PORT, Keys
from tests.harness.agent import SCHEME
from tests.harness.meta import meta_keys
from tests.harness.ovs import BRIDGE

META_BRIDGE: Final = "br-meta"
_VERSIONS: Final = (4, 6)


@dataclass(frozen=True, kw_only=True)
class Side:
    """Names and addresses of the proxy's side, with the options as they are unless they are set."""

    scheme: str
    """The option ``identity_scheme``."""
    tap: str
    """Device of the listeners."""
    bridge: str
    """Bridge with the device's port."""
    ip: str
    """Address of IPv4's listener."""
    ip6: str
    """Address of IPv6's listener."""
    port: int
    """TCP port of both."""
    keys: Keys
    """The key scheme; it knows no owners."""
    table: str
    """Table of the routes to all keys, as ip-route(8) has it."""
    routes: dict[int, str]
    """Version of IP → destination of its route."""
    rules: tuple[int, ...]
    """Priorities of the rules of each version of IP."""

    @property
    def probes(self) -> frozenset[str]:
        """Return the source addresses of the daemon's own SYNs."""
        return frozenset(self.keys.probe_key(version) for version in _VERSIONS)

    def key(self, number: int) -> str:
        """Return that address of the network of all IPv4 keys, in use or not."""
        return str(self.keys.network(4)[number])


_META_KEYS: Final = meta_keys()
SIDES: Final = {
    "in_port": Side(
        scheme="in_port",
        tap="tap-metadata",
        bridge=BRIDGE,
        ip=METADATA_IP,
        ip6=HOST_IP6,
        port=18080,
        keys=IN_PORT,
        table="2",
        routes=dict.fromkeys(_VERSIONS, "default"),
        rules=(32764, 32765),
    ),
    META_IP: Side(
        scheme=META_IP,
        tap=TAP,
        bridge=META_BRIDGE,
        ip=_META_KEYS.gateway(4),
        ip6=_META_KEYS.gateway(6),
        port=80,
        keys=_META_KEYS,
        table="main",
        routes={version: str(_META_KEYS.network(version)) for version in _VERSIONS},
        rules=(),
    ),
}
SIDE: Final = SIDES[SCHEME]
"""Of a daemon whose test does not set the scheme."""
