"""Clients that cannot run here should get what they ask for, and repeat no request.

Each is written after its source, which it names: its requests in their order, the answers that it
takes at once, and those after which it pauses and asks again. Clients that can be installed by name
run themselves in tests/host/guest/test_clients.py and tests/soak/clients.
"""

import hashlib
import json
import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import yaml

from dfmeta.model import GuestRequest, Identity, View
from dfmeta.proxy.tokens import TokenMode
from dfmeta.store.guest.backend import StoreBackend
from tests.core.unit.store.guest.crawling import record_of
from tests.core.unit.store.guest.networks import THREE, TWO, nic, version2
from tests.core.unit.store.support import KEY, named
from tests.core.unit.support import GUEST_MAC, INSTANCE
from tests.core.unit.test_application import World

Facts = dict[str, Any]
Retried = Callable[[int], bool]

OTHER_KEY = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBA== a=b/c"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
EC2_ID = f"i-{hashlib.sha256(INSTANCE.encode()).hexdigest()[:17]}"
ADDRESSES = ["10.0.0.5/24", "2001:db8::5/64"]
STATIC = version2(
    a=nic(TWO),
    b=nic(THREE),
    lan=nic(GUEST_MAC, addresses=ADDRESSES, gateway4="10.0.0.1", gateway6="fe80::1"),
)
BONDED = {
    **STATIC,
    "bonds": {
        "bond0": {
            "interfaces": ["a", "b"],
            "dhcp4": True,
            "parameters": {"mode": "802.3ad", "transmit-hash-policy": "layer3+4"},
        }
    },
}
BARE: Facts = {"hostname": "x"}
FULL: Facts = {
    "hostname": "web1.example.org",
    "ssh_keys": [KEY, {"label": "a=b/c", "key": OTHER_KEY}],
    "plan": "c3",
    "facility": "da11",
    "metro": "da",
    "instance_tags": {"role": "web"},
    "network": STATIC,
    "network_config": STATIC,
}
WITH_CERTIFICATE: Facts = {
    "hostname": "w",
    "public_keys": {"winrm": CERTIFICATE, "me": KEY},
    "network": BONDED,
    "network_config": yaml.safe_dump(BONDED),
}
SCRIPT = b"#!/bin/sh\n"
OF_ALL = Facts(uuid=INSTANCE, ec2_id=EC2_ID, addresses=ADDRESSES, tags={}, keys=[])
OF_ALL |= dict.fromkeys(("user_data", "type", "zone", "region", "local_ipv4"), "")
OF_FULL = Facts(hostname="web1.example.org", keys=[KEY, OTHER_KEY], user_data=SCRIPT.decode())
OF_FULL |= {"type": "c3", "zone": "da11", "region": "da"}
OF_FULL |= {"tags": {"role": "web"}, "local_ipv4": "10.0.0.5"}
RECORDS: tuple[tuple[Facts, bytes | None, Facts], ...] = (
    # The first is what "dfmeta store put --hostname x" makes.
    (BARE, None, OF_ALL | {"hostname": "x", "addresses": []}),
    (FULL, SCRIPT, OF_ALL | OF_FULL),
    (WITH_CERTIFICATE, b"", OF_ALL | {"hostname": "w", "keys": [KEY], "local_ipv4": "10.0.0.5"}),
)
"""Documents, user-data, and the facts that clients find."""


def on_curls(status: int) -> bool:
    """Tell the statuses after which ``curl --retry`` pauses (curl(1))."""
    return status in (408, 429, 500, 502, 503, 504)


def on_servers(status: int) -> bool:
    """Tell those of a server's fault."""
    return status >= 500


def on_all_but_404(status: int) -> bool:
    """Tell all but that of success, and that of a path that does not exist."""
    return status not in (200, 404)


class OneRecord(StoreBackend):
    """The store, of one record."""

    def open(self, request: GuestRequest, identity: Identity, **_options: object) -> View:
        return self.view(request, identity, self.record)


class Boot:
    """A client's requests.

    :ivar repeated: those whose answer makes the client pause and ask again.
    """

    def __init__(self, members: Facts | None, userdata: bytes | None, mode: TokenMode) -> None:
        no_database: Any = None
        backend = OneRecord(no_database)
        backend.record = record_of(members, userdata=userdata) if members is not None else None
        self._world = World(http_tokens=mode)
        self._world.application.replace(backend, self._world.application._settings)
        self._headers: dict[str, str] = {}
        self.repeated: list[str] = []

    def get(
        self,
        path: str,
        retried: Retried = on_servers,
        *,
        must: bool = False,
        form: str = r"(?s:.*)",
        method: str = "GET",
        **headers: str,
    ) -> str:
        """Request a path; the answer is empty for one that does not exist.

        :param must: any status but 200 has the request repeated.
        :param form: what an answer has to be, or the request is repeated.
        """
        given = self._world.ask(path, method, **self._headers, **headers)
        text = given.body.decode() if given.status == 200 else ""
        fits = re.fullmatch(form, text) if given.status == 200 else not must
        if retried(given.status) or not fits:
            self.repeated.append(f"{method} {path}: {given.status} {text[:40]!r}")
        return text

    def take_token(self, retried: Retried = on_servers, *, seconds: str = "21600") -> None:
        """Take a token, and send it with each request that follows."""
        self._headers["x_aws_ec2_metadata_token"] = self.get(
            *("/latest/api/token", retried),
            must=True,
            method="PUT",
            x_aws_ec2_metadata_token_ttl_seconds=seconds,
        )

    def keys(self, folder: str, retried: Retried = on_servers, **rules: Any) -> list[str]:
        """Return the keys of a listing with lines ``0=name``."""
        lines = self.get(folder, retried, **rules).splitlines()
        numbers = [line.partition("=")[0].rstrip("/") for line in lines]
        folder = folder.rstrip("/")
        return [self.get(f"{folder}/{one}/openssh-key", retried, must=True) for one in numbers]


def cirros(boot: Boot) -> Facts:
    """CirrOS 0.6.3, src/lib/cirros/ds/ec2: 20 tries, two seconds apart, until the id begins with
    "i-"; the rest once (src/usr/bin/ec2metadata, curl --retry 3)."""
    tree = "/2009-04-04/meta-data"
    ec2_id = boot.get(f"{tree}/instance-id", on_curls, must=True, form="i-.+")
    for name in boot.get(f"{tree}/block-device-mapping", on_curls).split():
        boot.get(f"{tree}/block-device-mapping/{name}", on_curls, must=True)
    for name in ("ami-launch-index", "public-ipv4", "local-hostname", "public-hostname"):
        boot.get(f"{tree}/{name}", on_curls)
    return {
        "keys": boot.keys(f"{tree}/public-keys", on_curls),
        "ec2_id": ec2_id,
        "type": boot.get(f"{tree}/instance-type", on_curls),
        "local_ipv4": boot.get(f"{tree}/local-ipv4", on_curls),
        "hostname": boot.get(f"{tree}/hostname", on_curls),
        "user_data": boot.get("/2009-04-04/user-data", on_curls),
        "zone": boot.get(f"{tree}/placement/availability-zone", on_curls),
    }


def nixos(boot: Boot, version: str = "1.0", retried: Retried = lambda _status: False) -> Facts:
    """NixOS, nixos/modules/virtualisation/openstack-metadata-fetcher.nix of 2025: wget, which takes
    any status at once; a file that is missing is left out."""
    boot.get(f"/{version}/meta-data/ami-manifest-path", retried)
    return {
        "user_data": boot.get(f"/{version}/user-data", retried),
        "hostname": boot.get(f"/{version}/meta-data/hostname", retried),
        "keys": one(boot.get(f"/{version}/meta-data/public-keys/0/openssh-key", retried)),
    }


def nixos_ec2(boot: Boot) -> Facts:
    """NixOS, ec2-metadata-fetcher.sh: a token, with 10 tries a second apart, and the instance-id,
    until both are there; the rest with curl --retry."""
    boot.take_token(on_curls, seconds="600")
    boot.get("/latest/meta-data/instance-id", on_curls, must=True)
    return nixos(boot, "latest", on_curls)


def freebsd(boot: Boot) -> Facts:
    """FreeBSD, sysutils/ec2-scripts' ec2_fetchkey before 2020, in images to this day."""
    return {"keys": one(boot.get("/1.0/meta-data/public-keys/0/openssh-key"))}


def freebsd_token(boot: Boot) -> Facts:
    """The same of today, by net/aws-ec2-imdsv2-get, and ec2_configinit."""
    boot.take_token()
    return {
        "keys": one(boot.get("/latest/meta-data/public-keys/0/openssh-key")),
        "user_data": boot.get("/latest/user-data"),
    }


def talos(boot: Boot) -> Facts:
    """Talos 1.14, platform/openstack/metadata.go and openstack.go; pkg/download/download.go asks
    for three minutes again, after a 404 as well where the caller does not except it."""
    names = ("meta_data.json", "network_data.json")
    meta, network = (
        json.loads(boot.get(f"/openstack/latest/{name}", on_all_but_404, must=True))
        for name in names
    )
    user_data = boot.get("/openstack/latest/user_data", on_all_but_404)
    boot.get("/latest/meta-data/public-ipv4", on_all_but_404)
    links = {link["id"]: link for link in network["links"]}
    for link in links.values():
        assert link["type"] in ("phy", "bond", "vlan")
        assert link["type"] != "bond" or link["bond_xmit_hash_policy"]
    for each in network["networks"]:
        assert each["id"]
        assert each["link"] in links
        assert each["type"] in ("ipv4", "ipv6", "ipv4_dhcp", "ipv6_dhcp", "ipv6_slaac")
    return {
        **talos_name(meta["hostname"]),
        "uuid": meta["uuid"],
        "user_data": user_data,
        "zone": meta["availability_zone"] or "",
        "type": boot.get("/latest/meta-data/instance-type", on_all_but_404, must=True),
        "addresses": [prefixed(each) for each in network["networks"] if "ip_address" in each],
    }


def prefixed(network: Facts) -> str:
    """Return an address with its prefix, of a netmask in the form of addresses (address.go)."""
    mask = int(ip_address(network["netmask"]))
    return f"{network['ip_address']}/{mask.bit_count()}"


def talos_nocloud(boot: Boot) -> Facts:
    """Talos 1.14, platform/nocloud/metadata.go: the same rules. Without a version, which an empty
    network-config does not have, it takes no name and no network from the seed."""
    meta = yaml.safe_load(boot.get("/nocloud/meta-data", on_all_but_404, must=True))
    network = boot.get("/nocloud/network-config", on_all_but_404, must=True)
    user_data = boot.get("/nocloud/user-data", on_all_but_404)
    ethernets = (yaml.safe_load(network) or {"version": 2, "ethernets": {}})["ethernets"]
    return {
        **talos_name(meta["local-hostname"]),
        "uuid": meta["instance-id"],
        "user_data": user_data,
        "region": meta.get("region", ""),
        "addresses": [each for one in ethernets.values() for each in one.get("addresses", ())],
    }


def talos_name(hostname: str) -> Facts:
    """Check a name by Talos' rule (resources/network/hostname_spec.go), or its network fails."""
    assert 0 < len(hostname.partition(".")[0]) <= 63
    assert len(hostname) <= 253
    return {"hostname": hostname}


def talos_aws(boot: Boot) -> Facts:
    """Talos 1.14, platform/aws/metadata.go, by the AWS SDK for Go, which repeats on 5xx."""
    boot.take_token()
    tree = "/latest/meta-data"
    for name in ("instance-life-cycle", "public-ipv4", "local-hostname", "public-hostname"):
        boot.get(f"{tree}/{name}")
    names = boot.get(f"{tree}/tags/instance").split()
    boot.get(f"{tree}/network/interfaces/macs/")
    return {
        **talos_name(boot.get(f"{tree}/hostname")),
        "type": boot.get(f"{tree}/instance-type"),
        "ec2_id": boot.get(f"{tree}/instance-id"),
        "region": boot.get(f"{tree}/placement/region"),
        "zone": boot.get(f"{tree}/placement/availability-zone"),
        "tags": {name: boot.get(f"{tree}/tags/instance/{name}", must=True) for name in names},
        "user_data": boot.get("/latest/user-data"),
    }


def ignition(boot: Boot) -> Facts:
    """Ignition 2.26, internal/providers/openstack/openstack.go: a 404 is an empty configuration,
    a 5xx repeated for ever (internal/resource/http.go)."""
    return {"user_data": boot.get("/openstack/latest/user_data")}


def ignition_aws(boot: Boot) -> Facts:
    """Ignition 2.26, internal/providers/aws/aws.go: user-data of one version."""
    boot.take_token()
    region = json.loads(boot.get("/latest/dynamic/instance-identity/document"))["region"]
    return {"region": region, "user_data": boot.get("/2019-10-01/user-data")}


def afterburn(boot: Boot) -> Facts:
    """Afterburn 5.10, src/providers/openstack/network.rs: ten tries, but a 404 is taken at once
    (src/retry/client.rs)."""
    tree = "/latest/meta-data"
    meta = json.loads(boot.get("/openstack/2012-08-10/meta_data.json", on_all_but_404))
    return {
        "uuid": meta["uuid"],
        **of_afterburn(boot, tree),
        "ec2_id": boot.get(f"{tree}/instance-id", on_all_but_404),
    }


def afterburn_aws(boot: Boot) -> Facts:
    """Afterburn 5.10, src/providers/aws/mod.rs: the same rules, and one version."""
    boot.take_token(on_all_but_404)
    version = "/2021-01-03"
    for name in ("ipv6", "placement/availability-zone-id", "public-hostname"):
        boot.get(f"{version}/meta-data/{name}", on_all_but_404)
    identity = json.loads(boot.get(f"{version}/dynamic/instance-identity/document", on_all_but_404))
    zone = boot.get(f"{version}/meta-data/placement/availability-zone", on_all_but_404)
    return {
        **of_afterburn(boot, f"{version}/meta-data"),
        "zone": zone,
        "region": identity["region"],
    }


def of_afterburn(boot: Boot, tree: str) -> Facts:
    """Return what both read. It refuses a listing of keys with a line of other than two parts."""
    boot.get(f"{tree}/public-ipv4", on_all_but_404)
    return {
        "hostname": boot.get(f"{tree}/hostname", on_all_but_404),
        "type": boot.get(f"{tree}/instance-type", on_all_but_404),
        "local_ipv4": boot.get(f"{tree}/local-ipv4", on_all_but_404),
        "keys": boot.keys(f"{tree}/public-keys", on_all_but_404, form=r"([^=\n]+=[^=\n]+\n?)*"),
    }


def facter(boot: Boot) -> Facts:
    """Facter 4.11, lib/facter/resolvers/ec2.rb: the whole tree, each path once; what is not 200 is
    empty (lib/facter/util/resolvers/http.rb)."""
    boot.take_token(seconds="100")

    def crawl(folder: str) -> Facts:
        names = [re.sub(r"^(\d+)=.*$", r"\1/", one) for one in boot.get(folder).splitlines()]
        return {
            name.rstrip("/"): crawl(f"{folder}{name}")
            if name.endswith("/")
            else boot.get(f"{folder}{name}", must=True).strip()
            for name in names
        }

    tree = crawl("/latest/meta-data/")
    return {
        "ec2_id": tree["instance-id"],
        "hostname": tree["hostname"],
        "keys": [each["openssh-key"] for each in tree.get("public-keys", {}).values()],
        "zone": tree["placement"]["availability-zone"],
        "tags": tree.get("tags", {}).get("instance", {}),
        "user_data": boot.get("/latest/user-data/"),
    }


def one(key: str) -> list[str]:
    """Return the first key, if there is any: of a client that reads no more."""
    return [key] if key else []


CLIENTS = (cirros, nixos, freebsd, talos, talos_nocloud, ignition, afterburn)
WITH_TOKEN = (nixos_ec2, freebsd_token, talos_aws, ignition_aws, afterburn_aws, facter)
"""Those that take a token, and send it."""
FIRST_KEY = (nixos, nixos_ec2, freebsd, freebsd_token)
"""Those that read one key."""


def test_clients_get_all_that_they_ask_for_and_repeat_nothing() -> None:
    for members, userdata, facts in RECORDS:
        runs = [(client, TokenMode.OPTIONAL) for client in (*CLIENTS, *WITH_TOKEN)]
        runs += [(client, TokenMode.REQUIRED) for client in WITH_TOKEN]
        for client, mode in runs:
            with named(members["hostname"], client.__name__, mode):
                boot = Boot(members, userdata, mode)
                found = client(boot)
                assert boot.repeated == []
                expected = {name: facts[name] for name in found}
                if client in FIRST_KEY:
                    expected["keys"] = facts["keys"][:1]
                assert found == expected


def test_a_request_that_a_client_would_repeat_is_noticed() -> None:
    for members, client, repeated in (
        ({"id": INSTANCE}, cirros, "GET /2009-04-04/meta-data/instance-id: 200"),
        (None, nixos_ec2, "PUT /latest/api/token: 404"),
    ):
        boot = Boot(members, None, TokenMode.OPTIONAL)
        client(boot)
        assert boot.repeated[0].startswith(repeated)
    boot = Boot(BARE, None, TokenMode.REQUIRED)
    boot.get("/latest/user-data", on_all_but_404)
    assert boot.repeated == ["GET /latest/user-data: 401 ''"]
