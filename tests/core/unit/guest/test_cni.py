"""dfmeta-cni should keep to the CNI specification, and send the kernel's messages."""

import ast
import contextlib
import importlib.metadata
import io
import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from dfmeta.guest import cni
from dfmeta.guest.cni import Code, devices, host_api
from dfmeta.guest.cni import cni as verbs
from dfmeta.guest.cni.devices import NetworkDevice
from dfmeta.guest.cni.host_api import CniCall, HostReply

CONFIG = {
    "cniVersion": "1.1.0",
    "name": "cluster",
    "type": "dfmeta-cni",
    "network": "pods",
    "endpoint": "127.0.0.1:1",
    "timeout": 1,
}
ENVIRONMENT = {"CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/none", "CNI_IFNAME": "eth0"}
MAC = "fa:16:3e:00:00:01"
Removal = Callable[..., tuple[int, list[int]]]


def call(
    verb: str, config: object, *words: str, env: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Run the program as a runtime does, in this process; with words as netavark does."""
    raw = config if isinstance(config, bytes) else json.dumps(config).encode()
    environ = {"CNI_COMMAND": verb, **(ENVIRONMENT if env is None else env)}
    with (
        mock.patch.dict(os.environ, environ, clear=True),
        mock.patch.object(sys, "argv", [cni.__file__, *words]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw))),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        status = cni.main()
    return status, json.loads(printed.getvalue())


def code(verb: str, config: object, *, env: dict[str, str] | None = None) -> int:
    status, error = call(verb, config, env=env)
    assert status == 1
    assert error.keys() == {"cniVersion", "code", "msg", "details"}
    assert error["msg"]
    return int(error["code"])


def test_version() -> None:
    for version in (*cni.VERSIONS, "9.0.0", None):
        status, answer = call("VERSION", {"cniVersion": version})
        assert (status, answer["supportedVersions"]) == (0, [*cni.VERSIONS])
        assert answer["cniVersion"] == (version if version in cni.VERSIONS else "1.1.0")
    assert call("VERSION", b"")[0] == 0


def test_a_version_that_has_not_the_verb_is_code_1() -> None:
    unknown: list[tuple[str, object]] = [
        *(("ADD", version_text) for version_text in ("0.1.0", "0.2.0", "2.0.0", None, 1, [])),
        *(("CHECK", "0.3.0"), ("CHECK", "0.3.1"), ("GC", "1.0.0"), ("STATUS", "1.0.0")),
    ]
    for verb, version in unknown:
        assert code(verb, {**CONFIG, "cniVersion": version}) == Code.VERSION, (verb, version)
    for supported in cni.VERSIONS:
        # An error has the version of the request.
        assert call("ADD", {**CONFIG, "cniVersion": supported})[1]["cniVersion"] == supported


def test_a_wrong_verb_or_variable_is_code_4() -> None:
    for verb in ("", "add", "PURGE"):
        assert code(verb, CONFIG) == Code.ENVIRONMENT, verb
    names = (("CNI_CONTAINERID", text) for text in ("", "../x", "x" * 129))
    interfaces = (("CNI_IFNAME", text) for text in ("", "..", "a/b", "x" * 16))
    for name, value in (*names, *interfaces):
        for verb in ("ADD", "DEL", "CHECK"):
            assert code(verb, CONFIG, env={**ENVIRONMENT, name: value}) == Code.ENVIRONMENT, value
    assert code("ADD", CONFIG) == Code.ENVIRONMENT, "the namespace is missing"
    for verb in ("ADD", "CHECK"):
        assert code(verb, CONFIG, env={**ENVIRONMENT, "CNI_NETNS": ""}) == Code.ENVIRONMENT


def test_path_that_is_no_namespace_names_none(tmp_path: Path) -> None:
    fifo, file = tmp_path / "fifo", tmp_path / "file"
    os.mkfifo(fifo)
    file.touch()
    for path in (fifo, file, tmp_path, tmp_path / "none", file / "below"):
        assert devices.open_netns(str(path)) == -1, path
    netns = devices.open_netns("/proc/self/ns/net")
    assert netns >= 0
    os.close(netns)


def test_a_text_that_is_no_object_or_too_large_is_code_6() -> None:
    for raw in (b"", b"{", b"[]", b"\xff", b"[" * 100000, b"9" * 5000):
        assert code("ADD", raw) == Code.DECODE, raw[:9]
    with pytest.raises(cni.CniError) as caught:
        cni.read_config(b" " * (cni.MAX_INPUT + 1))
    assert caught.value.code == Code.DECODE


WRONG_KEYS: dict[str, tuple[object, ...]] = {
    "network": (None, "Pods!", 1),
    "link": ("macvlan", "ovs"),
    "db": ("tcp:127.0.0.1:6640",),
    "parent": (1,),
    "owner": ("x" * 129, "a\n"),
    "defaultRoute": ("yes",),
    "metadataRoute": (1,),
    "mtu": (67, True),
    "timeout": (0, True, "20", 301),
    "endpoint": ("example.org:80", "127.0.0.1", "127.0.0.1:65536", "[::1", "999.1.1.1:80"),
    "cni.dev/attachments": ({}, [1]),
}


def test_a_wrong_key_is_code_7_and_named() -> None:
    for name, value in ((name, wrong) for name, values in WRONG_KEYS.items() for wrong in values):
        config = {key: text for key, text in {**CONFIG, name: value}.items() if text is not None}
        status, error = call("GC", config)
        assert (status, error["code"]) == (1, Code.CONFIGURATION), (name, value)
        assert (name if value != "ovs" else "bridge") in error["msg"]


def test_a_wrong_capability_or_previous_result_is_code_7() -> None:
    capabilities = [[1], {"mac": "x"}, {"mac": 1}, {"ips": "x"}]
    capabilities += [{"ips": ["::1/64"]}, {"ips": ["10.0.0.1"] * 2}]
    results = [[1], {"ips": {"a": 1}}, {"interfaces": [1]}]
    for key, values in (("runtimeConfig", capabilities), ("prevResult", results)):
        for value in values:
            runtime_call = CniCall("ADD", {**CONFIG, key: value}, dict(ENVIRONMENT))
            with pytest.raises(cni.CniError) as caught:
                _ = runtime_call.wanted() if key == "runtimeConfig" else runtime_call.previous()
            assert caught.value.code == Code.CONFIGURATION, value


def test_labels_are_few_and_short() -> None:
    pairs = ["IgnoreUnknown=1", "K8S_X", "K8S_BAD=a\nb", "K8S_LONG=" + "x" * 500]
    pairs += [f"K8S_{number}=y" for number in range(50)]
    environ = {**ENVIRONMENT, "CNI_ARGS": ";".join(pairs)}
    labels = CniCall("ADD", dict(CONFIG), environ).wanted()["labels"]
    assert len(labels) == host_api.MAX_LABELS
    assert labels["K8S_LONG"] == "x" * host_api.MAX_LABEL
    long = [f"K8S_{number}=" + "y" * 252 for number in range(5)]
    environ = {**ENVIRONMENT, "CNI_ARGS": ";".join([*long, "K8S_LAST=z"])}
    labels = CniCall("ADD", dict(CONFIG), environ).wanted()["labels"]
    assert list(labels) == ["K8S_0", "K8S_1", "K8S_2", "K8S_LAST"]
    assert labels.keys().isdisjoint({"IgnoreUnknown", "K8S_X", "K8S_BAD"})


def decoded(message: bytes) -> ifinfmsg:
    size = 16 + len(message)
    made = ifinfmsg(struct.pack("=IHHII", size, 16, 0, 1, 0) + message)
    made.decode()
    return made


def test_a_vlan_device_is_one_message() -> None:
    message = decoded(devices.vlan("eth0", MAC, 1450, netns=7, parent=3, vid=4094))
    assert message["index"] == 0
    assert message.get_attr("IFLA_IFNAME") == "eth0"
    assert message.get_attr("IFLA_ADDRESS") == MAC
    assert message.get_attr("IFLA_MTU") == 1450
    assert message.get_attr("IFLA_LINK") == 3
    assert message.get_attr("IFLA_NET_NS_FD") == 7
    info = message.get_attr("IFLA_LINKINFO")
    assert info.get_attr("IFLA_INFO_KIND") == "vlan"
    assert info.get_attr("IFLA_INFO_DATA").get_attr("IFLA_VLAN_ID") == 4094
    link = NetworkDevice(devices.vlan("eth0", MAC, 1450, netns=7, parent=3, vid=4094))
    assert (link.name, link.mac, link.mtu, link.kind, link.vid) == ("eth0", MAC, 1450, "vlan", 4094)


def test_a_veth_is_one_message() -> None:
    message = decoded(devices.veth("eth0", MAC, 1450, netns=7, outer="dfc0"))
    assert message.get_attr("IFLA_IFNAME") == "dfc0"
    assert message.get_attr("IFLA_NET_NS_FD") is None
    info = message.get_attr("IFLA_LINKINFO")
    assert info.get_attr("IFLA_INFO_KIND") == "veth"
    peer = info.get_attr("IFLA_INFO_DATA").get_attr("VETH_INFO_PEER")
    assert peer.get_attr("IFLA_IFNAME") == "eth0"
    assert peer.get_attr("IFLA_ADDRESS") == MAC
    assert peer.get_attr("IFLA_NET_NS_FD") == 7


class Devices:
    """Stands for the kernel, which has no VLAN devices where tests run."""

    def __init__(self, *links: NetworkDevice) -> None:
        self.left = [*links]

    def device(self, name: str) -> NetworkDevice | None:
        return next((link for link in self.left if link.name == name), None)

    def devices(self) -> list[NetworkDevice]:
        return [*self.left]

    def remove(self, link: NetworkDevice) -> None:
        self.left.remove(link)


def vlan(name: str = "eth0", mac: str = MAC, vid: int = 100) -> NetworkDevice:
    return NetworkDevice(devices.vlan(name, mac, 1500, netns=-1, parent=1, vid=vid))


@pytest.fixture
def removal(monkeypatch: pytest.MonkeyPatch) -> Removal:
    """Remove the device of a deleted attachment; return how many are left, and the namespaces."""

    def remove(
        link: NetworkDevice, vid: int, mac: str, *, bare: bool = False
    ) -> tuple[int, list[int]]:
        kernel, entered = Devices(link), list[int]()

        def opened(netns: int) -> Devices:
            entered.append(netns)
            return kernel

        monkeypatch.setattr(verbs, "Netlink", opened)
        runtime_call = CniCall("DEL", dict(CONFIG), dict(ENVIRONMENT))
        runtime_call.bare = bare
        verbs.remove_vlan(runtime_call, 3, vid, mac)
        return len(kernel.left), entered

    return remove


def test_only_the_attachments_own_vlan_device_is_removed(removal: Removal) -> None:
    for link, left in (
        (vlan(), 0),
        (vlan(mac="fa:16:3e:00:00:02"), 1),
        (vlan(vid=101), 1),
        (vlan("renamed"), 0),
        (NetworkDevice(devices.header() + devices.description("eth0", MAC, 1500)), 1),
    ):
        assert removal(link, 100, MAC)[0] == left, vars(link)
    # Docker's is removed without entering a namespace.
    assert removal(vlan(), 100, MAC, bare=True) == (0, [-1])
    # Without the host's answer, the previous result and the name decide.
    before = {"interfaces": [{"name": "eth0", "sandbox": "/x", "mac": MAC.upper()}]}
    mac = CniCall("DEL", {**CONFIG, "prevResult": before}, dict(ENVIRONMENT)).previous_mac()
    assert [removal(vlan(name), 0, mac)[0] for name in ("eth0", "eth1")] == [0, 1]


def answer(**members: object) -> HostReply:
    ips = [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}]
    return HostReply({"vid": 100, "mac": MAC, "ips": ips, "parent_mac": MAC, **members})


def plain(name: str, kind: str = "") -> NetworkDevice:
    message = devices.header() + devices.description(name, MAC, 1500)
    return NetworkDevice(message + (devices.link_info(kind, b"") if kind else b""))


def test_the_parent_has_the_ports_mac_and_is_not_derived() -> None:
    runtime_call = CniCall("ADD", dict(CONFIG), dict(ENVIRONMENT))
    vm: Any = Devices(plain("br0", "bridge"), plain("ens3"), vlan("ens3.5"))
    parent = verbs.find_parent(vm, runtime_call, answer())
    assert parent is not None
    assert parent.name == "ens3"
    for several in ((), (plain("ens3"), plain("ens4"))):
        vm = Devices(*several)
        with pytest.raises(cni.CniError, match="parent has to be given"):
            verbs.find_parent(vm, runtime_call, answer())


def test_routes_of_an_answer_are_taken_once() -> None:
    runtime_call = CniCall("ADD", dict(CONFIG), dict(ENVIRONMENT))
    routes = [
        {"dst": "0.0.0.0/0", "gw": "10.0.0.1"},
        {"dst": "192.0.2.0/24", "gw": "10.0.0.9"},
        {"dst": "169.254.169.254/32", "gw": "10.0.0.1"},
    ]
    assert verbs.routes_of(runtime_call, answer(routes=routes)) == [
        ("169.254.169.254/32", ""),
        ("0.0.0.0/0", "10.0.0.1"),
        ("192.0.2.0/24", "10.0.0.9"),
    ]
    less = CniCall("ADD", {**CONFIG, "defaultRoute": False, "metadataRoute": False}, ENVIRONMENT)
    assert verbs.routes_of(less, answer()) == []


NETWORK: dict[str, Any] = {
    "name": "pods",
    "id": "0" * 64,
    "driver": "dfmeta",
    "dns_enabled": True,
    "ipam_options": {},
    "options": {"network": "pods", "mtu": "1400", "metadataRoute": "false"},
    "labels": None,
}
"""A network as podman sends it."""
CHANGES: tuple[tuple[str, object, str], ...] = (
    ("subnets", [{"subnet": "10.0.0.0/8"}], "leave --subnet"),
    ("routes", [{"destination": "10.0.0.0/8"}], "leave --route out"),
    ("network_interface", "ens3", "-o parent=DEVICE"),
    ("internal", True, "-o defaultRoute=false"),
    ("ipv6_enabled", True, "leave --ipv6 out"),
    ("ipam_options", {"driver": "host-local"}, "--ipam-driver none"),
    ("options", None, "network has to be"),
    ("options", {"network": "pods", "mtu": "large"}, "mtu has to be"),
    ("options", {"network": "pods", "isolate\x1b": "true"}, "isolate? is not an option"),
)
"""Member of a network, its value → a part of the error."""


def test_podman_stores_a_network_without_addresses() -> None:
    version = importlib.metadata.version("dfmeta")
    assert call("", b"", "info") == (0, {"version": version, "api_version": "1.0.0"})
    stored = {"dns_enabled": False, "ipam_options": {"driver": "none"}}
    # The variables of CNI mean nothing to netavark's plugins.
    assert call("ADD", NETWORK, "create") == (0, {**NETWORK, **stored})
    for member, value, part in CHANGES:
        status, answer = call("", {**NETWORK, member: value}, "create")
        assert (status, answer.keys()) == (1, {"error"}), member
        assert part in answer["error"], member


def test_netavark_gets_one_error_for_input_that_it_cannot_use(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    options = {"interface_name": "eth0"}
    valid = {"container_id": "0" * 64, "network": NETWORK, "network_options": options}
    inputs: tuple[object, ...] = (
        *(b"", b"\xef\xbb\xbf{}", b"[" * 100000, b" " * (cni.MAX_INPUT + 1), [], None, {}),
        *({**valid, name: None} for name in valid),
        {**valid, "network_options": {"interface_name": "\x1b[1m"}},
        {**valid, "network": {"options": {"network": "pods", "link": "ovs", "bridge": 1}}},
    )
    cases = [
        ((verb, str(fifo)), document_text)
        for document_text in inputs
        for verb in ("setup", "teardown")
    ]
    cases += [(words, valid) for words in (("setup",), ("create", "x"), ("update",))]
    for words, document in [*cases, (("setup", str(fifo)), valid)]:
        status, answer = call("", document, *words)
        assert (status, answer.keys()) == (1, {"error"}), (words, str(document)[:80])
        assert answer["error"].isprintable()
    assert answer["error"].startswith("CNI_NETNS names no namespace")


def test_the_oldest_python_parses_the_program() -> None:
    for path in Path(cni.__file__).parent.glob("*.py"):
        assert ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
