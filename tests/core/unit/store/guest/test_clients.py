"""Clients that cannot run here should get what they ask for, and repeat no request.

Each is written after its source, which it names: its requests in their order, the answers that it
takes at once, and those after which it pauses and asks again. Clients that can be installed by name
run themselves: tests/host/e2e/test_clients.py and tests/soak/e2e/test_clients.py.
"""

import hashlib
import json
import re
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
    "instance_tags": {"role": "web"},
}
FULL |= Facts(plan="c3", facility="da11", metro="da", network=STATIC, network_config=STATIC)
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
OF_FULL |= Facts(type="c3", zone="da11", region="da", tags={"role": "web"}, local_ipv4="10.0.0.5")
RECORDS: tuple[tuple[Facts, bytes | None, Facts], ...] = (
    # Document, user-data, and facts; the first is what "dfmeta store put --hostname x" makes.
    (BARE, None, OF_ALL | {"hostname": "x", "addresses": []}),
    (FULL, SCRIPT, OF_ALL | OF_FULL),
    (WITH_CERTIFICATE, b"", OF_ALL | {"hostname": "w", "keys": [KEY], "local_ipv4": "10.0.0.5"}),
)


CURLS = {408, 429, 500, 502, 503, 504}
"""Statuses after which ``curl --retry`` pauses (curl(1))."""
ANY = r"(?s:.*)"
SERVERS = {*range(500, 600)}
ALL_BUT_404 = {*range(100, 600)} - {200, 404}


class OneRecord(StoreBackend):
    """The store, of one record."""

    def open(self, request: GuestRequest, identity: Identity, *_terms: object) -> View:
        return self.view(request, identity, self.record)


class Boot:
    """A client's requests.

    :ivar retried: the statuses after which the client pauses and asks again.
    :ivar repeated: the requests that it would repeat.
    """

    def __init__(self, members: Facts | None, userdata: bytes | None, mode: TokenMode) -> None:
        no_database: Any = None
        backend = OneRecord(no_database)
        backend.record = record_of(members, userdata=userdata) if members is not None else None
        self._world = World(http_tokens=mode)
        self._world.application.replace(backend, self._world.application._settings)
        self._headers: dict[str, str] = {}
        self.retried = SERVERS
        self.repeated: list[str] = []

    def get(
        self, path: str, form: str = ANY, *, must: bool = False, method: str = "GET", **more: str
    ) -> str:
        """Request a path; the answer is empty for one that does not exist.

        :param form: what an answer has to be, or the request is repeated.
        :param must: any status but 200 has the request repeated.
        """
        given = self._world.ask(path, method, **self._headers, **more)
        text = given.body.decode() if given.status == 200 else ""
        fits = re.fullmatch(form, text) if given.status == 200 else not must
        if given.status in self.retried or not fits:
            self.repeated.append(f"{method} {path}: {given.status} {text!r}")
        return text

    def take_token(self, seconds: str = "21600") -> None:
        """Take a token, and send it with each request that follows."""
        ttl = {"x_aws_ec2_metadata_token_ttl_seconds": seconds}
        token = self.get("/latest/api/token", must=True, method="PUT", **ttl)
        self._headers["x_aws_ec2_metadata_token"] = token

    def items(self, tree: str, *facts: str, more: str = "") -> Facts:
        """Return facts from items of EC2's tree.

        :param more: items that no fact here is about.
        """
        names = {"type": "instance-type", "local_ipv4": "local-ipv4", "ec2_id": "instance-id"}
        names |= {"zone": "placement/availability-zone", "region": "placement/region"}
        for name in more.split():
            self.get(f"{tree}/{name}")
        return {fact: self.get(f"{tree}/{names.get(fact, fact)}") for fact in facts}

    def first_key(self, version: str) -> list[str]:
        """Return the first key, if there is any."""
        key = self.get(f"/{version}/meta-data/public-keys/0/openssh-key")
        return [key] if key else []

    def keys(self, tree: str, form: str = ANY) -> list[str]:
        """Return the keys of a listing with lines ``0=name``."""
        lines = self.get(f"{tree}/public-keys", form).splitlines()
        numbers = [line.partition("=")[0] for line in lines]
        return [
            self.get(f"{tree}/public-keys/{number}/openssh-key", must=True) for number in numbers
        ]


def cirros(boot: Boot) -> Facts:
    """CirrOS 0.6.3, src/lib/cirros/ds/ec2: 20 tries, two seconds apart, until the id begins with
    "i-"; the rest once (src/usr/bin/ec2metadata, curl --retry 3)."""
    boot.retried, tree = CURLS, "/2009-04-04/meta-data"
    boot.get(f"{tree}/instance-id", "i-.+", must=True)
    for name in boot.get(f"{tree}/block-device-mapping").split():
        boot.get(f"{tree}/block-device-mapping/{name}", must=True)
    more = "ami-launch-index public-ipv4 local-hostname public-hostname"
    return {
        **boot.items(tree, "ec2_id", "type", "local_ipv4", "hostname", "zone", more=more),
        "keys": boot.keys(tree),
        "user_data": boot.get("/2009-04-04/user-data"),
    }


def nixos(boot: Boot, version: str = "1.0") -> Facts:
    """NixOS, nixos/modules/virtualisation/openstack-metadata-fetcher.nix: wget, which takes any
    status at once; a file that is missing is left out."""
    return {
        **boot.items(f"/{version}/meta-data", "hostname", more="ami-manifest-path"),
        "user_data": boot.get(f"/{version}/user-data"),
        "keys": boot.first_key(version),
    }


def nixos_ec2(boot: Boot) -> Facts:
    """NixOS, ec2-metadata-fetcher.sh: a token and the instance-id, ten tries a second apart, until
    both are there; the rest with curl --retry."""
    boot.retried = CURLS
    boot.take_token("600")
    boot.get("/latest/meta-data/instance-id", must=True)
    return nixos(boot, "latest")


def freebsd(boot: Boot) -> Facts:
    """FreeBSD, sysutils/ec2-scripts' ec2_fetchkey without tokens, in images to this day."""
    return {"keys": boot.first_key("1.0")}


def freebsd_token(boot: Boot) -> Facts:
    """The same of today, by net/aws-ec2-imdsv2-get, and ec2_configinit."""
    boot.take_token()
    return {"keys": boot.first_key("latest"), "user_data": boot.get("/latest/user-data")}


def talos(boot: Boot) -> Facts:
    """Talos 1.14, platform/openstack/metadata.go and openstack.go; pkg/download/download.go asks
    for three minutes again, after a 404 as well where the caller does not except it."""
    boot.retried, tree = ALL_BUT_404, "/openstack/latest"
    meta = json.loads(boot.get(f"{tree}/meta_data.json", must=True))
    network = json.loads(boot.get(f"{tree}/network_data.json", must=True))
    user_data = boot.get(f"{tree}/user_data")
    boot.get("/latest/meta-data/public-ipv4")
    boot.get("/latest/meta-data/instance-type", must=True)
    links = {link["id"]: link for link in network["links"]}
    for link in links.values():
        assert link["type"] in ("phy", "bond", "vlan")
        assert link["type"] != "bond" or link["bond_xmit_hash_policy"]
    for member in network["networks"]:
        assert member["link"] in links
        assert member["type"] in ("ipv4", "ipv6", "ipv4_dhcp", "ipv6_dhcp", "ipv6_slaac")
    return {
        "hostname": meta["hostname"],
        **boot.items("/latest/meta-data", "type"),
        "uuid": meta["uuid"],
        "user_data": user_data,
        "zone": meta["availability_zone"] or "",
        "addresses": [
            # A netmask of either family (platform/internal/address/address.go).
            f"{member['ip_address']}/{int(ip_address(member['netmask'])).bit_count()}"
            for member in network["networks"]
            if "ip_address" in member
        ],
    }


def talos_nocloud(boot: Boot) -> Facts:
    """Talos 1.14, platform/nocloud/metadata.go: the same rules. Without a version, which an empty
    network-config does not have, it takes no name and no network, and reads the seed again."""
    boot.retried = ALL_BUT_404
    meta = yaml.safe_load(boot.get("/nocloud/meta-data", must=True))
    network = yaml.safe_load(boot.get("/nocloud/network-config", must=True))
    ethernets = network["ethernets"] if network else {}
    return {
        "hostname": meta["local-hostname"],
        "uuid": meta["instance-id"],
        "user_data": boot.get("/nocloud/user-data"),
        "region": meta.get("region", ""),
        "addresses": [
            address for ethernet in ethernets.values() for address in ethernet.get("addresses", ())
        ],
    }


def talos_aws(boot: Boot) -> Facts:
    """Talos 1.14, platform/aws/metadata.go, by the AWS SDK for Go, which repeats on 5xx."""
    boot.take_token()
    tree, more = "/latest/meta-data", "instance-life-cycle public-ipv4 network/interfaces/macs/"
    names = boot.get(f"{tree}/tags/instance").split()
    return {
        **boot.items(tree, "hostname", "type", "ec2_id", "region", "zone", more=more),
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
    boot.retried = ALL_BUT_404
    uuid = json.loads(boot.get("/openstack/2012-08-10/meta_data.json"))["uuid"]
    return {"uuid": uuid, **of_afterburn(boot, "/latest/meta-data")}


def afterburn_aws(boot: Boot) -> Facts:
    """Afterburn 5.10, src/providers/aws/mod.rs: the same rules, and one version."""
    boot.retried = ALL_BUT_404
    boot.take_token()
    region = json.loads(boot.get("/2021-01-03/dynamic/instance-identity/document"))["region"]
    tree, more = "/2021-01-03/meta-data", "ipv6 placement/availability-zone-id public-hostname"
    return {"region": region, **boot.items(tree, "zone", more=more), **of_afterburn(boot, tree)}


def of_afterburn(boot: Boot, tree: str) -> Facts:
    """Return what both read. It refuses a listing of keys with a line of other than two parts."""
    keys = boot.keys(tree, r"([^=\n]+=[^=\n]+\n?)*")
    facts = ("hostname", "type", "local_ipv4", "ec2_id")
    return {"keys": keys, **boot.items(tree, *facts, more="public-ipv4")}


def facter(boot: Boot) -> Facts:
    """Facter 4.11, lib/facter/resolvers/ec2.rb: the whole tree, each path once; what is not 200 is
    empty (lib/facter/util/resolvers/http.rb)."""
    boot.take_token("100")

    def crawl(folder: str) -> Facts:
        names = [re.sub(r"^(\d+)=.*$", r"\1/", line) for line in boot.get(folder).splitlines()]
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
        "keys": [key["openssh-key"] for key in tree.get("public-keys", {}).values()],
        "zone": tree["placement"]["availability-zone"],
        "tags": tree.get("tags", {}).get("instance", {}),
        "user_data": boot.get("/latest/user-data/"),
    }


CLIENTS = (cirros, nixos, freebsd, talos, talos_nocloud, ignition, afterburn)
WITH_TOKEN = (nixos_ec2, freebsd_token, talos_aws, ignition_aws, afterburn_aws, facter)
"""Those that take a token, and send it."""
FIRST_KEY = (nixos, nixos_ec2, freebsd, freebsd_token)


def test_clients_get_all_that_they_ask_for_and_repeat_nothing() -> None:
    for members, userdata, facts in RECORDS:
        runs = [(client, TokenMode.OPTIONAL) for client in (*CLIENTS, *WITH_TOKEN)]
        runs += [(client, TokenMode.REQUIRED) for client in WITH_TOKEN]
        for client, mode in runs:
            with named(members["hostname"], client.__name__, mode):
                boot = Boot(members, userdata, mode)
                result = client(boot)
                assert boot.repeated == []
                expected = {name: facts[name] for name in result}
                if client in FIRST_KEY:
                    expected["keys"] = facts["keys"][:1]
                assert result == expected
                # Or Talos takes no network (resources/network/hostname_spec.go).
                assert re.fullmatch(r"[^.]{1,63}(\..{,189})?", facts["hostname"])


def test_a_request_that_a_client_would_repeat_is_noticed() -> None:
    boot = Boot({"id": INSTANCE}, None, TokenMode.OPTIONAL)
    cirros(boot)
    assert boot.repeated == [f"GET /2009-04-04/meta-data/instance-id: 200 {INSTANCE!r}"]
    boot = Boot(BARE, None, TokenMode.REQUIRED)
    boot.retried = ALL_BUT_404
    boot.get("/latest/user-data")
    assert boot.repeated == ["GET /latest/user-data: 401 ''"]
