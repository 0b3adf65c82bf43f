"""A way to the proxy that leaves the switch out.

Guests' packets come in on tap-metadata with their key as the source; the daemon hears nothing
else. In these measurements they come from a namespace instead of from the switch: the kernel's
traffic control hands what the namespace sends to tap-metadata as received, and what tap-metadata
sends to the namespace. The peers listen on the same device, on ports of their own, so that nothing
differs but the proxy.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address

from bench.load import FIRST_USER
from dfmeta.flows.key import NEXT_HOP_MAC, PROBE_KEY
from tests.harness.guest import METADATA_IP
from tests.harness.netns import Namespace, veth

TAP = "tap-metadata"
_NEAR, _FAR = "direct", "load0"
_FIRST_TABLE = 1000
_ANY = ("prio", "2", "protocol", "ip", "u32", "match", "u32", "0", "0")
_PROBE = ("prio", "1", "protocol", "ip", "u32", "match", "ip", "dst", f"{PROBE_KEY}/32")


class Direct:
    """The namespace that the load is in, wired to tap-metadata of *host*."""

    def __init__(self, host: Namespace, sources: Sequence[IPv4Address]) -> None:
        """Wire it. tap-metadata has to be there; from now on the switch gets no answers
        but those to the daemon's own probes.

        :param sources: keys of known guests; user number FIRST_USER + n has the n-th.
        """
        self.host = host
        self.namespace = Namespace("load")
        veth(host, _NEAR, self.namespace, _FAR, mac=NEXT_HOP_MAC)
        near = host.run(["cat", f"/sys/class/net/{_NEAR}/address"]).stdout.strip()
        # Connections in TIME_WAIT use up ports; the second gives them out again.
        ports: dict[str, int | str] = {
            "net.ipv4.ip_local_port_range": "1024 65535",
            "net.ipv4.tcp_tw_reuse": 1,
        }
        self.namespace.sysctl(**ports)
        self.namespace.ip(
            f"neigh replace {METADATA_IP} lladdr {near} dev {_FAR} nud permanent",
            f"route replace {METADATA_IP}/32 dev {_FAR}",
        )
        for number, source in enumerate(sources):
            user, table = FIRST_USER + number, _FIRST_TABLE + number
            self.namespace.ip(
                f"addr add {source}/32 dev {_FAR}",
                f"route replace {METADATA_IP}/32 dev {_FAR} src {source} table {table}",
                f"rule add uidrange {user}-{user} lookup {table}",
            )
        self._hand_over()

    def _hand_over(self) -> None:
        for device in (_NEAR, TAP):
            self.host.run(["tc", "qdisc", "add", "dev", device, "clsact"])
        # The daemon proves the path by a SYN of its own, whose answer the switch has to get.
        self.host.run(["tc", "filter", "add", "dev", TAP, "egress", *_PROBE, "flowid", "1:1"])
        for device, side, to in ((_NEAR, "ingress", TAP), (TAP, "egress", _NEAR)):
            self.host.run(
                [
                    *("tc", "filter", "add", "dev", device, side, *_ANY),
                    *("action", "mirred", side, "redirect", "dev", to),
                ]
            )

    def resent(self) -> int:
        """SYNs that the load has had to send again so far (TcpExt TCPSynRetrans)."""
        text = self.namespace.run(["cat", "/proc/net/netstat"]).stdout
        return counter(text, "TcpExt", "TCPSynRetrans")

    def close(self) -> None:
        """Take it away."""
        self.host.run(["tc", "qdisc", "del", "dev", TAP, "clsact"], check=False)
        self.namespace.close()


def counter(text: str, group: str, name: str) -> int:
    """One of the counters of ``/proc/net/netstat``: lines of names, each with one of values.

    :raises KeyError: there is none.
    """
    lines = [line.split() for line in text.splitlines() if line.startswith(f"{group}:")]
    names, values = lines
    return int(dict(zip(names, values, strict=True))[name])
