"""dfmeta-cni should attach containers of a VM with Open vSwitch, and leave nothing behind."""

import itertools
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dfmeta.guest.cni import VERSIONS, Code, cnm, host_api
from dfmeta.guest.cni import cni as verbs
from tests.harness import cni_file
from tests.harness.netns import Namespace, spawn, tx_off
from tests.harness.poll import wait_for
from tests.harness.program import Program
from tests.host.e2e.attach_api import Handler, says, sends
from tests.host.e2e.cni_vm import BRIDGE, PARENT_MAC, Vm, path

NOTHING: tuple[list[str], list[str]] = ([], [])
_containers = itertools.count(1)


@pytest.fixture(scope="module")
def machine() -> Iterator[Vm]:
    with Vm() as made:
        yield made


@pytest.fixture
def vm(machine: Vm) -> Iterator[Vm]:
    yield machine
    machine.service.reset()
    for port in machine.traces()[0]:
        machine.switch.vsctl("--if-exists", "del-port", port)
    assert machine.traces()[1] == []


@pytest.fixture
def netns() -> Iterator[Namespace]:
    with Namespace("pod") as made:
        yield made


def name() -> str:
    return f"pod{next(_containers)}"


def gives_token(handler: Handler) -> bool:
    """Give a token as the service does, so that the next fault answers the request."""
    handler.token = "token"
    handler.answer(200, "token")
    return True


def test_two_containers_reach_each_other_and_del_leaves_nothing(vm: Vm) -> None:
    with Namespace("one") as namespace, Namespace("two") as two:
        for container, present in (("c1", namespace), ("c2", two)):
            status, result = vm.call("ADD", container, path(present))
            assert status == 0, result
            own = result["interfaces"][0]
            assert own["name"] == "eth0"
            assert own["sandbox"] == path(present)
            assert own["mtu"] == 1500
            assert own["mac"] in present.ip("link show eth0")
            assert result["ips"][0]["address"] in present.ip("addr show eth0")
            routes = present.ip("route show")
            assert "default via 10.20.255.254 dev eth0" in routes
            assert "169.254.169.254 dev eth0 proto static scope link" in routes
            assert vm.call("CHECK", container, path(present), prevResult=result) == (0, None)
            tx_off(present, "eth0")
        two_address = result["ips"][0]["address"].partition("/")[0]
        with two.open_socket() as listener:
            listener.bind((two_address, 8080))
            listener.listen()
            namespace.connect(two_address, 8080).close()
        for container, present in (("c1", namespace), ("c2", two)):
            assert vm.call("DEL", container, path(present)) == (0, None)
            assert "eth0" not in present.ip("link show")
            assert vm.call("DEL", container, path(present)) == (0, None)
    assert vm.traces() == NOTHING
    assert vm.service.attachments == {}
    assert set(vm.service.gone) == {"link=gone"}


def test_the_body_has_what_the_runtime_said(vm: Vm, netns: Namespace) -> None:
    runtime = {"mac": "02:AA:00:00:00:01", "ips": ["10.20.7.7/16"]}
    status, result = vm.call("ADD", "c1", path(netns), runtimeConfig=runtime)
    assert status == 0, result
    (body,) = [body for body in vm.service.bodies if body]
    assert body.pop("boot_id") == Path(host_api.BOOT_ID).read_text(encoding="ascii").strip()
    assert body == {
        "network": "pods",
        "owner": "cluster",
        "mac": "02:aa:00:00:00:01",
        "ip": "10.20.7.7",
        "labels": {"K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": "web-0"},
    }
    assert "02:aa:00:00:00:01" in netns.ip("link show eth0")
    # One connection: token and request.
    assert [method for method, _path in vm.service.requests] == ["PUT", "PUT"]
    vm.call("DEL", "c1")


def test_the_result_has_the_form_of_the_version(vm: Vm, netns: Namespace) -> None:
    before = {
        "interfaces": [{"name": "lo"}],
        "ips": [],
        "routes": [{"dst": "192.0.2.0/24"}],
        "dns": {},
    }
    for version in VERSIONS:
        status, result = vm.call("ADD", "c1", path(netns), cniVersion=version, prevResult=before)
        assert (status, result["cniVersion"]) == (0, version), result
        assert [interface["name"] for interface in result["interfaces"]][:2] == ["lo", "eth0"], (
            version
        )
        assert ("mtu" in result["interfaces"][1]) == (version == "1.1.0")
        (ip,) = result["ips"]
        assert ip["interface"] == 1, version
        assert ip.get("version") == ("4" if version < "1" else None)
        assert result["routes"][0] == {"dst": "192.0.2.0/24"}, version
        assert result["dns"] == {"nameservers": ["192.0.2.53"]}, version
        vm.call("DEL", "c1", path(netns))


def test_podman_gets_a_device_and_its_addresses(vm: Vm, netns: Namespace) -> None:
    container = "0123456789abcdef" * 4
    assert vm.plugin("create")[0] == 0
    address, mac = "10.20.7.7", "02:AA:00:00:00:01"
    status, block = vm.plugin("setup", path(netns), container, static_ips=[address], static_mac=mac)
    subnets = [{"ipnet": f"{address}/16", "gateway": "10.20.255.254"}]
    assert (status, block) == (
        0,
        {
            "interfaces": {"eth0": {"mac_address": mac.lower(), "subnets": subnets}},
            "dns_server_ips": ["192.0.2.53"],
            "dns_search_domains": [],
        },
    )
    (body,) = [body for body in vm.service.bodies if body]
    assert (body["owner"], body["labels"]) == ("podman", {"K8S_POD_NAME": "web-0"})
    assert list(vm.service.attachments) == [(container, "eth0")]
    assert f"inet {address}/16" in netns.ip("addr show eth0")
    assert mac.lower() in netns.ip("link show eth0")
    assert "169.254.169.254 dev eth0 proto static scope link" in netns.ip("route show")
    assert vm.plugin("setup", path(netns), container)[1]["error"].startswith("the container has")
    for _again in range(2):
        assert vm.plugin("teardown", path(netns), container) == (0, None)
        assert vm.traces() == NOTHING
        assert vm.service.attachments == {}
    # The namespace is gone, or the host refuses what netavark asks for.
    assert vm.plugin("teardown", "/run/netns/none", container) == (0, None)
    vm.service.faults.append(says(404, {"error": "some", "message": "The host\x1b said so."}))
    status, answer = vm.plugin("setup", path(netns), container)
    assert (status, answer.keys()) == (1, {"error"})
    assert "(404)" in answer["error"]
    assert answer["error"].isprintable()


def test_routes_can_be_left_out(vm: Vm, netns: Namespace) -> None:
    keys = {"defaultRoute": False, "metadataRoute": False, "mtu": 1400}
    status, result = vm.call("ADD", "c1", path(netns), **keys)
    assert status == 0
    assert result["routes"] == []
    assert netns.ip("route show").split()[0] == "10.20.0.0/16"
    assert "mtu 1400" in netns.ip("link show eth0")
    # A second device with the same routes.
    assert vm.call("ADD", "c1", path(netns), ifname="eth1")[0] == 0
    status, error = vm.call("ADD", "c1", path(netns), ifname="eth2")
    assert (status, error["code"]) == (1, Code.CONFIGURATION)
    assert "metadataRoute" in error["details"]
    assert "eth2" not in netns.ip("link show")
    assert {ifname for _c, ifname in vm.service.attachments} == {"eth0", "eth1"}
    for ifname in ("eth0", "eth1"):
        assert vm.call("DEL", "c1", "", ifname=ifname) == (0, None)


def test_a_vid_that_another_port_has_is_avoided_three_times(vm: Vm, netns: Namespace) -> None:
    # The port of a container before a reboot is replaced.
    mark = "external_ids:dfmeta-cni=gone/eth0"
    vm.switch.vsctl("add-port", BRIDGE, "dfc0", "tag=100", mark, wait=False)
    assert vm.call("ADD", "c1", path(netns))[0] == 0
    assert "dfc0" not in vm.switch.ports(BRIDGE)
    assert vm.service.attachments["c1", "eth0"]["vid"] == 100
    vm.call("DEL", "c1", path(netns))
    busy = {f"busy{vid}": vid for vid in (100, 101, 102)}
    try:
        for number, (port, vid) in enumerate(busy.items(), 1):
            vm.service.reset()
            tag = (f"tag={vid}", "--", "set", "Interface", port)
            vm.switch.vsctl("add-port", BRIDGE, port, *tag, "type=internal")
            status, answer = vm.call("ADD", "c1", path(netns))
            if number == len(busy):
                assert (status, answer["code"]) == (1, Code.LATER)
                assert vm.service.attachments == {}
                return
            assert vm.service.attachments["c1", "eth0"]["vid"] == vid + 1, answer
            assert vm.service.bodies[-1]["avoid"] == [*busy.values()][:number]
            vm.call("DEL", "c1", path(netns))
    finally:
        for port in busy:
            vm.switch.vsctl("--if-exists", "del-port", port)


FAILED: tuple[tuple[dict[str, object], int, str], ...] = (
    ({"network": "wide"}, Code.MTU, "9000"),
    ({"bridge": "missing"}, Code.CONFIGURATION, "missing"),
    ({"db": "unix:/nothing"}, Code.IO, "/nothing"),
    ({"endpoint": "169.254.169.254:81", "timeout": 1}, Code.LATER, "away"),
)
"""Keys of a configuration → the code of the error, and a word of it."""
REFUSALS = {
    400: Code.CONFIGURATION,
    404: Code.REFUSED,
    409: Code.CONFLICT,
    429: Code.LATER,
    507: Code.EXHAUSTED,
}
"""Status of the host → the code of the error."""
GARBAGE = (
    b"SSH-2.0-x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\ntoken",
    b"x" * (host_api.MAX_REPLY + 70000),
)
WRONG: tuple[dict[str, object], ...] = (
    {"vid": 4095},
    {"mac": "x"},
    {"ips": [{"address": "10.0.0.1/33"}]},
    {"ips": [{"address": "10.0.0.1/8", "gateway": "x"}]},
    {"routes": [{"dst": "x"}]},
    {"parent_mac": "x"},
)
"""Members of an attachment that cannot be."""


def test_an_add_that_fails_has_its_code_and_leaves_nothing(vm: Vm, netns: Namespace) -> None:
    for keys, code, word in FAILED:
        status, error = vm.call("ADD", "c1", path(netns), **keys)
        assert (status, error["code"]) == (1, code), (keys, error)
        assert word in error["msg"], keys
        assert error["details"], keys
        assert vm.service.attachments == {}, keys
    for refusal, code in REFUSALS.items():
        document = {"error": "some", "message": "The host said so."}
        vm.service.faults.append(says(refusal, document, Retry_After="100"))
        status, error = vm.call("ADD", "c1", path(netns))
        assert (status, error["code"]) == (1, code), (refusal, error)
        assert str(refusal) in error["msg"]
        assert error["details"].startswith("The host said so. "), refusal
    for raw in GARBAGE:
        vm.service.faults.append(sends(raw))
        status, error = vm.call("ADD", "c1", path(netns))
        assert (status, error["code"]) == (1, Code.DECODE), raw[:80]
    for change in WRONG:
        attachment = {"vid": 100, "mac": PARENT_MAC, "ips": [{"address": "10.0.0.1/8"}], **change}
        vm.service.faults.extend([gives_token, says(201, attachment)])
        status, error = vm.call("ADD", "c1", path(netns))
        assert (status, error["code"]) == (1, Code.DECODE), change
        # What cannot be used is given back.
        given_back = ("DELETE", "/dfmeta/v1/attachments/c1/eth0?link=gone")
        assert vm.service.requests[-1] == given_back, change
    assert vm.traces() == NOTHING
    assert "eth0" not in netns.ip("link show")
    requests = len(vm.service.requests)
    netns.ip("link add eth0 type veth peer name other")
    status, error = vm.call("ADD", "c1", path(netns))
    assert (status, error["code"]) == (1, Code.ENVIRONMENT)
    assert len(vm.service.requests) == requests, "the host is not asked in vain"
    assert "eth0" in netns.ip("link show")


def test_del_of_an_old_sandbox_does_not_touch_the_new_one(vm: Vm, netns: Namespace) -> None:
    assert vm.call("ADD", "old", path(netns))[0] == 0
    netns.ip("link del eth0")
    assert vm.call("ADD", "new", path(netns))[0] == 0
    assert vm.call("DEL", "old", path(netns)) == (0, None)
    assert "eth0" in netns.ip("link show")
    assert [container for container, _i in vm.service.attachments] == ["new"]
    # With VLAN devices: that one is a veth, and not the attachment's.
    assert vm.call("DEL", "old", path(netns), link="vlan") == (0, None)
    assert "eth0" in netns.ip("link show")
    vm.call("DEL", "new", path(netns))


@pytest.mark.parametrize("place", ["service", "device", "port"])
def test_del_after_a_killed_add_leaves_nothing(vm: Vm, netns: Namespace, place: str) -> None:
    """The kill comes before the answer, before the veth's port, and after it."""
    reached = {
        "service": lambda: bool(vm.service.attachments),
        "device": lambda: bool(vm.traces()[1]),
        "port": lambda: bool(vm.traces()[0]),
    }[place]
    process = vm.start("ADD", "c1", path(netns))
    wait_for(reached, f"the ADD to reach its {place}", interval=0.001)
    process.kill()
    process.communicate()
    assert vm.call("DEL", "c1", path(netns)) == (0, None)
    assert vm.traces() == NOTHING
    assert vm.service.attachments == {}
    assert "eth0" not in netns.ip("link show")
    assert vm.call("ADD", "c1", path(netns))[0] == 0
    assert vm.call("DEL", "c1", path(netns)) == (0, None)


def test_a_busy_or_failing_service_is_asked_again(vm: Vm, netns: Namespace) -> None:
    vm.service.faults.extend(
        [
            says(503, {"error": "x", "message": "x"}, Retry_After="1"),
            gives_token,
            says(401, {"error": "token", "message": "x"}),
            sends(b""),
            gives_token,
            says(429, {"error": "rate", "message": "x"}, Retry_After="0"),
        ]
    )
    assert vm.call("ADD", "c1", path(netns))[0] == 0
    vm.call("DEL", "c1")


def test_a_host_that_is_away_is_code_11(vm: Vm, netns: Namespace) -> None:
    away = {"endpoint": "[::1]:1", "timeout": 1}
    result = {"interfaces": [{"name": "eth0", "sandbox": "x", "mac": PARENT_MAC}]}
    assert vm.call("DEL", "c1", path(netns), **away)[1]["code"] == Code.LATER
    assert vm.call("CHECK", "c1", path(netns), prevResult=result, **away)[1]["code"] == Code.LATER
    lists = {"cni.dev/valid-attachments": []}
    assert vm.call("GC", **lists, **away)[1]["code"] == Code.LATER
    assert vm.call("STATUS", **away)[1]["code"] == Code.UNAVAILABLE


def test_check_names_each_difference(vm: Vm, netns: Namespace) -> None:
    _status, result = vm.call("ADD", "c1", path(netns))

    def code() -> tuple[int, str]:
        _status, error = vm.call("CHECK", "c1", path(netns), prevResult=result)
        return error["code"], error["msg"]

    port = verbs.outer_name("c1", "eth0")
    vm.switch.vsctl("set", "Port", port, "tag=7")
    assert code() == (Code.DIFFERENT, "the port in Open vSwitch is not in VLAN 100")
    vm.switch.vsctl("set", "Port", port, "tag=100")
    vm.inside.ip(f"link set {port} down")
    assert code() == (Code.DIFFERENT, f"the VM's end {port} of eth0 is gone or down")
    vm.inside.ip(f"link set {port} up")
    routes = netns.ip("route show").splitlines()
    for route in routes:
        if "scope link" not in route or "169.254" in route:
            netns.ip(f"route del {route}")
            assert code()[0] == Code.DIFFERENT, route
            netns.ip(f"route add {route}")
    assert vm.call("CHECK", "c1", path(netns), prevResult=result) == (0, None)
    netns.ip("addr flush dev eth0")
    assert code() == (Code.DIFFERENT, "the container has not the address '10.20.0.100/16'")
    netns.ip("link set eth0 down")
    assert code() == (Code.DIFFERENT, "eth0 is down")
    netns.ip("link set eth0 up")
    netns.ip("link set eth0 address 02:00:00:00:00:09")
    assert code()[0] == Code.DIFFERENT
    netns.ip("link del eth0")
    assert code() == (Code.DIFFERENT, "there is no device eth0")
    assert vm.call("CHECK", "c1", "/run/netns/no", prevResult=result)[1]["code"] == Code.ENVIRONMENT
    assert vm.call("CHECK", "c1", path(netns))[1]["code"] == Code.CONFIGURATION
    attachment = vm.service.attachments["c1", "eth0"]
    for state in ("wanted", "made"):
        attachment["state"] = state
        assert code()[0] == Code.LATER, state
    vm.call("DEL", "c1")
    assert code()[0] == Code.UNKNOWN


def test_gc_removes_what_no_list_names(vm: Vm) -> None:
    with Namespace("one") as namespace, Namespace("two") as two:
        for container, present in (("c1", namespace), ("c2", two)):
            assert vm.call("ADD", container, path(present))[0] == 0
        assert vm.call("GC") == (0, None)
        assert len(vm.service.attachments) == 2
        listed = [{"containerID": "c1", "ifname": "eth0"}]
        two.ip("link del eth0")
        lists = {"cni.dev/valid-attachments": listed, "cni.dev/attachments": listed}
        assert vm.call("GC", owner="other", **lists) == (0, None)
        assert len(vm.service.attachments) == 2
        assert vm.call("GC", **lists) == (0, None)
        assert list(vm.service.attachments) == [("c1", "eth0")]
        assert vm.traces()[0] == [verbs.outer_name("c1", "eth0")]
        # The older key alone counts as well.
        assert vm.call("GC", **{"cni.dev/attachments": listed}) == (0, None)
        assert list(vm.service.attachments) == [("c1", "eth0")]
        wrong = {"cni.dev/valid-attachments": [{"containerID": 1}]}
        assert vm.call("GC", **wrong)[1]["code"] == Code.CONFIGURATION
        vm.call("DEL", "c1")


def test_status(vm: Vm) -> None:
    assert vm.call("STATUS") == (0, None)
    assert vm.call("STATUS", network="unknown")[1]["code"] == Code.UNAVAILABLE
    vm.service.free = 0
    assert vm.call("STATUS")[1]["code"] == Code.SHORT
    vm.service.ready = False
    assert vm.call("STATUS")[1]["code"] == Code.UNAVAILABLE
    vm.service.faults.append(says(404, None))
    assert vm.call("STATUS")[1]["code"] == Code.UNAVAILABLE
    # Attachments are no longer allowed, and a container has to end all the same.
    vm.service.faults.append(says(404, {"error": "not_found", "message": "x"}))
    assert vm.call("DEL", "c1") == (0, None)


def options(vm: Vm, **more: str) -> dict[str, object]:
    """Return the options of a network as dockerd sends them: all values are text."""
    plain = {"network": "pods", "link": "ovs", "bridge": BRIDGE, "timeout": "10"}
    database = {"db": vm.switch.ovsdb_connection}
    return {"com.docker.network.generic": {**plain, **database, **more}}


class Driver(Program):
    """``dfmeta-cni --docker`` in a VM, with other paths, and the calls of dockerd.

    As a managed plugin of Docker, it has not the right to enter namespaces.
    """

    def __init__(self, vm: Vm, folder: Path) -> None:
        self.path = folder / "plugins" / "dfmeta.sock"
        code = "import sys; sys.path.insert(0, sys.argv[1]); from dfmeta.guest.cni import cnm;"
        code += "server = cnm.listen(*sys.argv[2:]); print('begun', flush=True);"
        code += "server.serve_forever()"
        arguments = [str(cni_file.packed()), str(self.path), str(folder / "state")]
        rights = ["setpriv", "--bounding-set", "-sys_admin"]
        command = [*rights, sys.executable, "-I", "-S", "-c", code, *arguments]
        process = vm.inside.spawn(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        super().__init__(process, process.stdout)

    def ask(self, verb: str, **body: object) -> Any:
        """Return the answer to a call for the endpoint e1 of the network n1."""
        raw = json.dumps({"NetworkID": "n1", "EndpointID": "e1", **body})
        head = f"POST /{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(self.path))
            peer.sendall((head + raw).encode())
            with peer.makefile("rb") as answer:
                return json.loads(answer.read().partition(b"\r\n\r\n")[2])

    def call(self, name: str, **body: object) -> Any:
        """The same for a call of a network driver."""
        return self.ask(f"NetworkDriver.{name}", **body)


def test_dockerd_gets_a_device_and_its_routes(vm: Vm, tmp_path: Path) -> None:
    with Driver(vm, tmp_path) as docker:
        assert stat.S_IMODE(docker.path.stat().st_mode) == 0o600
        assert docker.ask("Plugin.Activate") == {"Implements": ["NetworkDriver"]}
        scopes = {"Scope": "local", "ConnectivityScope": "global"}
        assert docker.call("GetCapabilities") == scopes
        assert docker.call("CreateNetwork", Options=options(vm)) == {}
        made = docker.call("CreateEndpoint", Interface={"Address": "", "MacAddress": ""})
        (attachment,) = vm.service.attachments.values()
        address = {"Address": attachment["ips"][0]["address"], "MacAddress": attachment["mac"]}
        assert (made, attachment["owner"]) == ({"Interface": address}, "docker")
    # dockerd does not send the network again. The socket of the first process is replaced.
    with Driver(vm, tmp_path) as docker:
        joined = docker.call("Join", SandboxKey="/var/run/docker/netns/x")
        device = joined.pop("InterfaceName")
        assert device["DstPrefix"] == "eth"
        shown = vm.inside.ip(f"addr show {device['SrcName']}")
        assert attachment["mac"] in shown
        assert "inet " not in shown
        assert joined == {
            "Gateway": "10.20.255.254",
            "StaticRoutes": [{"Destination": verbs.METADATA, "RouteType": 1, "NextHop": ""}],
            "DisableGatewayService": True,
        }
        for name in ("ProgramExternalConnectivity", "EndpointOperInfo", "Leave"):
            assert docker.call(name) == {}
        for _again in range(2):
            assert docker.call("DeleteEndpoint") == {}
        assert vm.traces() == NOTHING
        assert vm.service.attachments == {}
        given = {"Address": "10.20.7.7/16", "MacAddress": "02:aa:00:00:00:01"}
        assert docker.call("CreateEndpoint", Interface=given) == {"Interface": {}}
        (attachment,) = vm.service.attachments.values()
        assert (attachment["ips"][0]["address"], attachment["mac"]) == tuple(given.values())
        assert docker.call("DeleteEndpoint") == {}
        for _again in range(2):
            assert docker.call("DeleteNetwork") == {}
        assert docker.call("CreateEndpoint")["Err"].startswith("the network is unknown")


def test_endpoints_that_dockerd_has_forgotten_are_deleted(vm: Vm, tmp_path: Path) -> None:
    with Driver(vm, tmp_path) as docker:
        for verb in ("CreateNetwork", "DeleteNetwork"):
            for network in ("n1", "n2"):
                assert docker.call("CreateNetwork", NetworkID=network, Options=options(vm)) == {}
                docker.call("CreateEndpoint", NetworkID=network, EndpointID=f"of-{network}")
            assert len(vm.traces()[0]) == 2
            assert docker.call(verb, Options=options(vm)) == {}
            assert [attachment["container"] for attachment in vm.service.attachments.values()] == [
                "of-n2"
            ]
            assert len(vm.traces()[0]) == 1
            assert docker.call("DeleteNetwork", NetworkID="n2") == {}
            assert vm.service.attachments == {}
        for network, more, error in (
            ("n1", {"network": ""}, "network has to be"),
            ("n1", {"mtu": "large"}, "mtu has to be"),
            ("n1", {"metadataRoute": "perhaps"}, "metadataRoute has to be"),
            ("../n1", {}, "NetworkID has not its form"),
        ):
            answer = docker.call("CreateNetwork", NetworkID=network, Options=options(vm, **more))
            assert answer["Err"].startswith(error), (network, more)
    assert [*(tmp_path / "state").iterdir()] == []


def test_the_driver_ends_at_sigterm_as_the_first_process_of_a_container() -> None:
    file = cni_file.packed()
    plugin = ["mount -t tmpfs none /run", f"exec {sys.executable} -IS {file} --docker"]
    shell = ["sh", "-euc", "\n".join(plugin)]
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    container = spawn([*unshare, *shell])
    try:
        children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
        (first,) = wait_for(lambda: children.read_text(encoding="ascii").split(), "the shell")
        wait_for(Path(f"/proc/{first}/root{cnm.DOCKER}").exists, "the driver to listen")
        os.kill(int(first), signal.SIGTERM)
        assert container.wait() == 0
    finally:
        container.kill()
        container.wait()
