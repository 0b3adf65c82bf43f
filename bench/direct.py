"""A path to the proxy that bypasses the switch.

Guests' packets arrive on tap-metadata with their key as the source; the daemon accepts no others.
In these measurements they come from a namespace instead of from the switch: the kernel's traffic
control redirects the namespace's packets to tap-metadata, as received there, and tap-metadata's
packets to the namespace. The peers listen on the same device, each on its own port, so that only
the proxy differs. TCP over IPv6 takes the same path; neighbour discovery does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address

from bench.load import FIRST_USER
from dfmeta.conf.agent import HOST_IP6
from dfmeta.identity.key import IN_PORT, NEXT_HOP_MAC
from tests.harness.guest import METADATA_IP
from tests.harness.netns import Namespace, veth

TAP = "tap-metadata"
_NEAR, _FAR = "direct", "load0"
_FIRST_TABLE = 1000
_REDIRECTED = (
    ("prio", "3", "protocol", "ip", "u32", "match", "u32", "0", "0"),
    ("prio", "4", "protocol", "ipv6", "u32", "match", "ip6", "protocol", "6", "0xff"),
)
_PROBES = (
    ("prio", "1", "protocol", "ip", "u32", "match", "ip", "dst", f"{IN_PORT.probe_key(4)}/32"),
    ("prio", "2", "protocol", "ipv6", "u32", "match", "ip6", "dst", f"{IN_PORT.probe_key(6)}/128"),
)


class Direct:
    """The namespace of the load generator, connected to tap-metadata of *host*."""

    def __init__(self, host: Namespace, sources: Sequence[IPv4Address | IPv6Address]) -> None:
        """Connect the namespace. tap-metadata must exist. From now on the switch gets no answers
        except those to the daemon's own probes.

        :param sources: keys of known guests, of both versions of IP; user FIRST_USER + n sends from
            the n-th key of the version.
        """
        self.host = host
        self.sources = sources
        self.namespace = Namespace("load")
        veth(host, _NEAR, self.namespace, _FAR, mac=NEXT_HOP_MAC)
        near = host.run(["cat", f"/sys/class/net/{_NEAR}/address"]).stdout.strip()
        # Connections in TIME_WAIT occupy ports; tcp_tw_reuse allows their reuse.
        ports: dict[str, int | str] = {
            "net.ipv4.ip_local_port_range": "1024 65535",
            "net.ipv4.tcp_tw_reuse": 1,
        }
        self.namespace.sysctl(**ports)
        for version, proxy, mask in ((4, METADATA_IP, 32), (6, HOST_IP6, 128)):
            self._route(
                [source for source in sources if source.version == version],
                version=version,
                proxy=proxy,
                mask=mask,
                near=near,
            )
        self._hand_over()

    def _route(
        self,
        sources: Sequence[IPv4Address | IPv6Address],
        *,
        version: int,
        proxy: str,
        mask: int,
        near: str,
    ) -> None:
        """Send packets to *proxy* to the device with the MAC *near*, from the user's source."""
        # Nothing can answer a check for duplicates here.
        no_check = "nodad" if version == 6 else ""
        lines = [
            f"neigh replace {proxy} lladdr {near} dev {_FAR} nud permanent",
            f"route replace {proxy}/{mask} dev {_FAR}",
        ]
        for number, source in enumerate(sources):
            user, table = FIRST_USER + number, _FIRST_TABLE + number
            lines += [
                f"addr add {source}/{mask} dev {_FAR} {no_check}",
                f"route replace {proxy}/{mask} dev {_FAR} src {source} table {table}",
                f"rule add uidrange {user}-{user} lookup {table}",
            ]
        self.namespace.ip(*lines, six=version == 6)

    def _hand_over(self) -> None:
        for device in (_NEAR, TAP):
            self.host.run(["tc", "qdisc", "add", "dev", device, "clsact"])
        # The daemon probes the path with a SYN of its own; the switch has to get the answer.
        for probe in _PROBES:
            self.host.run(["tc", "filter", "add", "dev", TAP, "egress", *probe, "flowid", "1:1"])
        for device, side, to in ((_NEAR, "ingress", TAP), (TAP, "egress", _NEAR)):
            for packets in _REDIRECTED:
                self.host.run(
                    [
                        *("tc", "filter", "add", "dev", device, side, *packets),
                        *("action", "mirred", side, "redirect", "dev", to),
                    ]
                )

    def add(self, keys: Iterable[IPv4Address | IPv6Address]) -> None:
        """Give the namespace further addresses, which no user sends from unless it binds to one."""
        self.namespace.ip(*(f"addr add {key}/{key.max_prefixlen} dev {_FAR}" for key in keys))

    def resent(self) -> int:
        """Return the SYNs that the load generator has resent so far (TcpExt TCPSynRetrans)."""
        text = self.namespace.run(["cat", "/proc/net/netstat"]).stdout
        return counter(text, "TcpExt", "TCPSynRetrans")

    def close(self) -> None:
        """Remove the redirection and the namespace."""
        self.host.run(["tc", "qdisc", "del", "dev", TAP, "clsact"], check=False)
        self.namespace.close()


def counter(text: str, group: str, name: str) -> int:
    """Return a counter of ``/proc/net/netstat``, which has pairs of lines: names, then values.

    :raises KeyError: the counter does not exist.
    """
    lines = [line.split() for line in text.splitlines() if line.startswith(f"{group}:")]
    names, values = lines
    return int(dict(zip(names, values, strict=True))[name])
