"""Networks of OVN as Neutron's driver makes them, and guests at their logical switch ports."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.netns import ROOT
from tests.harness.ovn import Central

BUSYBOX = ROOT / ".cache/programs/bin/busybox"
GATEWAY, METADATA = "10.0.0.1", "10.0.0.2"
"""The router's port and the metadata port of each network."""
PREFIX6 = "fd00:0:0:1:"
"""Of the addresses that the router advertises."""
LEASE = ROOT / "tests/host/ovn/lease.sh"
"""Sets the address of a lease, and its routes."""


@dataclass
class Network:
    """A logical switch 10.0.0.0/24 with a router, a metadata port, DHCP and advertisements.

    All networks have the same addresses. The ports' ACL admits what the guests begin, and its
    answers (``allow-related``); all else is dropped.
    """

    central: Central
    name: str
    ports: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dhcp = self.central.nbctl(
            *("create", "DHCP_Options", "cidr=10.0.0.0/24"),
            f'options={{server_id="{GATEWAY}",server_mac="{self._mac(1)}",lease_time="3600",'
            f'router="{GATEWAY}",mtu="1400",classless_static_route='
            f'"{{169.254.169.254/32,{METADATA}, 0.0.0.0/0,{GATEWAY}}}"}}',
        ).strip()
        router, up, down = f"{self.name}-router", f"{self.name}-up", f"{self.name}-down"
        advertised = "ipv6_ra_configs:address_mode=slaac", "ipv6_ra_configs:send_periodic=true"
        self.central.wire(
            ("ls-add", self.switch),
            ("lr-add", router),
            ("lrp-add", router, up, self._mac(1), f"{GATEWAY}/24", f"{PREFIX6}:1/64"),
            ("set", "Logical_Router_Port", up, *advertised),
            ("lsp-add", self.switch, down),
            ("lsp-set-type", down, "router"),
            ("lsp-set-addresses", down, "router"),
            ("lsp-set-options", down, f"router-port={up}"),
            ("lsp-add", self.switch, self.metadata_port),
            ("lsp-set-type", self.metadata_port, "localport"),
            ("lsp-set-addresses", self.metadata_port, f"{self._mac(2)} {METADATA}"),
            external_ids(
                self.metadata_port,
                device_owner="network:distributed",
                device_id=self.namespace,
                cidrs=f"{METADATA}/24",
            ),
            ("pg-add", self.group),
            *(
                ("--type=port-group", "acl-add", self.group, direction, priority, match, verdict)
                for direction, priority, match, verdict in (
                    ("from-lport", "1002", f"inport == @{self.group} && ip", "allow-related"),
                    ("from-lport", "1001", f"inport == @{self.group} && ip", "drop"),
                    ("to-lport", "1002", f"outport == @{self.group} && icmp", "allow-related"),
                    ("to-lport", "1001", f"outport == @{self.group} && ip", "drop"),
                )
            ),
        )

    @property
    def switch(self) -> str:
        """Return the name of the logical switch."""
        return f"neutron-{uuid_of(self.name)}"

    @property
    def namespace(self) -> str:
        """Return the name of the namespace that OVN's metadata agent makes for the network."""
        return f"ovnmeta-{uuid_of(self.name)}"

    @property
    def group(self) -> str:
        """Return the name of the port group with the ACL."""
        return f"pg_{self.name}"

    @property
    def metadata_port(self) -> str:
        """Return the name of the localport."""
        return f"{self.name}-metadata"

    def add(self, port: str, mac: str, *ips: str, parent: str = "", tag: int = 0) -> None:
        """Add a port of a guest: port security, DHCP and the ACL.

        :param parent: the port of the VM, if it is a container's port with this *tag*.
        """
        nested = (parent, str(tag)) if parent else ()
        self.ports.append(port)
        self.central.wire(
            ("lsp-add", self.switch, port, *nested),
            ("lsp-set-addresses", port, " ".join((mac, *ips))),
            ("lsp-set-port-security", port, " ".join((mac, *ips))),
            ("lsp-set-dhcpv4-options", port, self.dhcp),
            ("pg-set-ports", self.group, *self.ports),
        )

    def _mac(self, number: int) -> str:
        return f"fa:16:3e:ff:{sum(self.name.encode()) & 255:02x}:{number:02x}"


def plug(
    make_guest: MakeGuest,
    network: Network,
    name: str,
    *,
    mac: str,
    address: str = "10.0.0.5",
    project: str = "",
) -> Guest:
    """Make a guest with the address and the route that OVN's DHCP gives it, and wait for both.

    :param project: id of its project, which Nova needs.
    """
    ids = Ids(
        iface_id=uuid_of(f"{network.name} port {name}"),
        vm_uuid=uuid_of(f"{network.name} instance {name}"),
        project_id=project,
    )
    guest = make_guest(name, address=f"{address}/24", mac=mac, route="none", ids=ids, plug=False)
    address6 = PREFIX6 + guest.link_local.removeprefix("fe80::")
    network.add(ids.iface_id, guest.mac, address, address6)
    values = {"device_owner": "compute:nova", "device_id": ids.vm_uuid, "project_id": project}
    network.central.wire(external_ids(ids.iface_id, **values))
    guest.plug()
    network.central.nbctl("wait-until", "Logical_Switch_Port", ids.iface_id, "up=true")
    lease(guest)
    return guest


def lease(guest: Guest) -> None:
    """Replace the guest's address by that of a lease."""
    guest.namespace.ip(f"addr del {guest.interface} dev {guest.device}", check=False)
    udhcpc = [str(BUSYBOX), "udhcpc", "-fnq", "-i", guest.device, "-O", "staticroutes"]
    guest.namespace.run([*udhcpc, "-s", str(LEASE)])


def external_ids(port: str, **values: str) -> tuple[str, ...]:
    """Return the command that sets Neutron's external_ids of a logical switch port."""
    pairs = (f'external_ids:"neutron:{key}"="{value}"' for key, value in values.items())
    return ("set", "Logical_Switch_Port", port, *pairs)
