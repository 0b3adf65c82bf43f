"""dfmeta-cni should attach containers of a VM with Open vSwitch, and leave nothing behind."""

from __future__ import annotations

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

from dfmeta.guest import cni
from tests.harness.attach_api import Handler, says, sends, waits
from tests.harness.netns import Namespace, spawn, tx_off
from tests.harness.poll import PATIENCE, wait_for
from tests.harness.program import Program
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
    with Namespace("one") as one, Namespace("two") as two:
        for container, there in (("c1", one), ("c2", two)):
            status, result = vm.call("ADD", container, path(there))
            assert status == 0, result
            own = result["interfaces"][0]
            assert own["name"] == "eth0"
            assert own["sandbox"] == path(there)
            assert own["mtu"] == 1500
            assert own["mac"] in there.ip("link show eth0")
            assert result["ips"][0]["address"] in there.ip("addr show eth0")
            routes = there.ip("route show")
            assert "default via 10.20.255.254 dev eth0" in routes
            assert "169.254.169.254 dev eth0 proto static scope link" in routes
            assert vm.call("CHECK", container, path(there), prevResult=result) == (0, None)
            tx_off(there, "eth0")
        two_address = result["ips"][0]["address"].partition("/")[0]
        with two.open_socket() as listener:
            listener.bind((two_address, 8080))
            listener.listen()
            one.connect(two_address, 8080).close()
        for container, there in (("c1", one), ("c2", two)):
            assert vm.call("DEL", container, path(there)) == (0, None)
            assert "eth0" not in there.ip("link show")
            assert vm.call("DEL", container, path(there)) == (0, None)
    assert vm.traces() == NOTHING
    assert vm.service.attachments == {}
    assert set(vm.service.gone) == {"link=gone"}


def test_the_body_has_what_the_runtime_said(vm: Vm, netns: Namespace) -> None:
    runtime = {"mac": "02:AA:00:00:00:01", "ips": ["10.20.7.7/16"]}
    status, result = vm.call("ADD", "c1", path(netns), runtimeConfig=runtime)
    assert status == 0, result
    (body,) = [one for one in vm.service.bodies if one]
    assert body.pop("boot_id") == cni._content(cni.BOOT_ID) != ""
    assert body == {
        "network": "pods",
        "owner": "cluster",
        "mac": "02:aa:00:00:00:01",
        "ip": "10.20.7.7",
        "labels": {"K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": "web-0"},
    }
    assert "02:aa:00:00:00:01" in netns.ip("link show eth0")
    # One connection: token and request.
    assert [one for one, _path in vm.service.requests] == ["PUT", "PUT"]
    vm.call("DEL", "c1")


@pytest.mark.parametrize("version", cni.VERSIONS)
def test_the_result_has_the_form_of_the_version(vm: Vm, netns: Namespace, version: str) -> None:
    before = {
        "interfaces": [{"name": "lo"}],
        "ips": [],
        "routes": [{"dst": "192.0.2.0/24"}],
        "dns": {},
    }
    status, result = vm.call("ADD", "c1", path(netns), cniVersion=version, prevResult=before)
    assert status == 0, result
    assert result["cniVersion"] == version
    assert [one["name"] for one in result["interfaces"]][:2] == ["lo", "eth0"]
    assert ("mtu" in result["interfaces"][1]) == (version == "1.1.0")
    (ip,) = result["ips"]
    assert ip["interface"] == 1
    assert ip.get("version") == ("4" if version < "1" else None)
    assert result["routes"][0] == {"dst": "192.0.2.0/24"}
    assert result["dns"] == {"nameservers": ["192.0.2.53"]}
    vm.call("DEL", "c1", path(netns))


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
    assert (status, error["code"]) == (1, cni.CONFIGURATION)
    assert "metadataRoute" in error["details"]
    assert "eth2" not in netns.ip("link show")
    assert {ifname for _c, ifname in vm.service.attachments} == {"eth0", "eth1"}
    for ifname in ("eth0", "eth1"):
        assert vm.call("DEL", "c1", "", ifname=ifname) == (0, None)


def test_a_device_that_is_there_is_refused_before_the_host_is_asked(
    vm: Vm, netns: Namespace
) -> None:
    netns.ip("link add eth0 type veth peer name other")
    status, error = vm.call("ADD", "c1", path(netns))
    assert (status, error["code"]) == (1, cni.ENVIRONMENT)
    assert not vm.service.requests
    assert "eth0" in netns.ip("link show")


def test_a_taken_vid_is_avoided(vm: Vm, netns: Namespace) -> None:
    vm.switch.vsctl(
        "add-port", BRIDGE, "busy", "tag=100", "--", "set", "Interface", "busy", "type=internal"
    )
    try:
        assert vm.call("ADD", "c1", path(netns))[0] == 0
        assert vm.service.attachments["c1", "eth0"]["vid"] == 101
        assert vm.service.bodies[-1]["avoid"] == [100]
    finally:
        vm.switch.vsctl("del-port", "busy")
    vm.call("DEL", "c1")


def test_after_three_taken_vids_it_gives_up(vm: Vm, netns: Namespace) -> None:
    for vid in (100, 101, 102):
        vm.switch.vsctl(
            "add-port",
            BRIDGE,
            f"busy{vid}",
            f"tag={vid}",
            "--",
            "set",
            "Interface",
            f"busy{vid}",
            "type=internal",
        )
    try:
        status, error = vm.call("ADD", "c1", path(netns))
        assert (status, error["code"]) == (1, cni.LATER)
        assert vm.service.attachments == {}
        assert len(vm.service.bodies) == 4
    finally:
        for vid in (100, 101, 102):
            vm.switch.vsctl("del-port", f"busy{vid}")


def test_the_port_of_a_container_before_a_reboot_is_replaced(vm: Vm, netns: Namespace) -> None:
    old = vm.switch
    old.vsctl(
        "add-port", BRIDGE, "dfc0", "tag=100", "external_ids:dfmeta-cni=gone/eth0", wait=False
    )
    assert vm.call("ADD", "c1", path(netns))[0] == 0
    assert "dfc0" not in old.ports(BRIDGE)
    assert vm.service.attachments["c1", "eth0"]["vid"] == 100
    vm.call("DEL", "c1")


@pytest.mark.parametrize(
    ("keys", "code", "word"),
    [
        ({"network": "wide"}, cni.MTU, "9000"),
        ({"mtu": 1501}, cni.CONFIGURATION, "1500"),
        ({"bridge": "missing"}, cni.CONFIGURATION, "missing"),
        ({"db": "unix:/nothing"}, cni.IO, "/nothing"),
        ({"parent": "nic9"}, cni.CONFIGURATION, "nic9"),
        ({"network": "unknown"}, cni.CONFIGURATION, "422"),
        ({"endpoint": "169.254.169.254:81", "timeout": 1}, cni.LATER, "away"),
    ],
)
def test_a_failed_add_leaves_nothing(
    vm: Vm, netns: Namespace, keys: dict[str, object], code: int, word: str
) -> None:
    status, error = vm.call("ADD", "c1", path(netns), **keys)
    assert (status, error["code"]) == (1, code), error
    assert word in error["msg"]
    assert error["details"]
    assert vm.service.attachments == {}
    assert vm.traces() == NOTHING
    assert "eth0" not in netns.ip("link show")


def test_a_kernel_without_vlan_devices_is_told_and_undone(vm: Vm, netns: Namespace) -> None:
    status, error = vm.call("ADD", "c1", path(netns), link="vlan", bridge=None)
    assert (status, error["code"]) == (1, cni.IO)
    assert "8021q" in error["details"]
    assert vm.service.attachments == {}
    assert vm.call("DEL", "c1", path(netns), link="vlan") == (0, None)
    assert vm.service.gone[-1] == "link=gone"
    assert vm.call("DEL", "c1", "", link="vlan") == (0, None)
    assert vm.service.gone[-1] == ""
    assert vm.call("DEL", "c1", "/run/netns/none", link="vlan") == (0, None)
    assert vm.service.gone[-1] == ""


def test_del_of_an_old_sandbox_does_not_touch_the_new_one(vm: Vm, netns: Namespace) -> None:
    assert vm.call("ADD", "old", path(netns))[0] == 0
    netns.ip("link del eth0")
    assert vm.call("ADD", "new", path(netns))[0] == 0
    assert vm.call("DEL", "old", path(netns)) == (0, None)
    assert "eth0" in netns.ip("link show")
    assert [one for one, _i in vm.service.attachments] == ["new"]
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


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, cni.CONFIGURATION),
        (403, cni.REFUSED),
        (404, cni.REFUSED),
        (409, cni.CONFLICT),
        (413, cni.CONFIGURATION),
        (422, cni.CONFIGURATION),
        (429, cni.LATER),
        (500, cni.LATER),
        (503, cni.LATER),
        (507, cni.EXHAUSTED),
    ],
)
def test_a_refusal_of_the_host_has_its_code(
    vm: Vm, netns: Namespace, status: int, code: int
) -> None:
    document = {"error": "some", "message": "The host said so."}
    vm.service.faults.append(says(status, document, Retry_After="100"))
    done, error = vm.call("ADD", "c1", path(netns))
    assert (done, error["code"]) == (1, code)
    assert str(status) in error["msg"]
    assert error["details"].startswith("The host said so. ")
    assert vm.traces() == NOTHING


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\ntoken",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na\nb",
        b"x" * (cni.MAX_HEAD + 70000),
    ],
)
def test_garbage_is_code_6(vm: Vm, netns: Namespace, raw: bytes) -> None:
    vm.service.faults.append(sends(raw))
    status, error = vm.call("ADD", "c1", path(netns))
    assert (status, error["code"]) == (1, cni.DECODE)


@pytest.mark.parametrize(
    "change",
    [
        {"vid": 4095},
        {"vid": True},
        {"mac": "x"},
        {"mtu": "1500"},
        {"ips": []},
        {"ips": [{"address": "10.0.0.1/33"}]},
        {"ips": [{"address": "10.0.0.1/8", "gateway": "x"}]},
        {"routes": [{"dst": "x"}]},
        {"dns": [1]},
        {"parent_mac": "x"},
    ],
)
def test_a_wrong_answer_is_code_6_and_given_back(
    vm: Vm, netns: Namespace, change: dict[str, object]
) -> None:
    one = {"vid": 100, "mac": PARENT_MAC, "ips": [{"address": "10.0.0.1/8"}], **change}
    vm.service.faults.extend([gives_token, says(201, one)])
    status, error = vm.call("ADD", "c1", path(netns))
    assert (status, error["code"]) == (1, cni.DECODE)
    assert vm.service.requests[-1] == ("DELETE", "/dfmeta/v1/attachments/c1/eth0?link=gone")


def test_a_slow_service_is_waited_for_within_the_timeout(vm: Vm, netns: Namespace) -> None:
    vm.service.faults.append(waits(0.5))
    assert vm.call("ADD", "c1", path(netns))[0] == 0
    vm.call("DEL", "c1")
    vm.service.faults.append(waits(3))
    status, error = vm.call("ADD", "c1", path(netns), timeout=1)
    assert (status, error["code"]) == (1, cni.LATER)


def test_a_host_that_is_away_is_code_11(vm: Vm, netns: Namespace) -> None:
    away = {"endpoint": "[::1]:1", "timeout": 1}
    result = {"interfaces": [{"name": "eth0", "sandbox": "x", "mac": PARENT_MAC}]}
    assert vm.call("DEL", "c1", path(netns), **away)[1]["code"] == cni.LATER
    assert vm.call("CHECK", "c1", path(netns), prevResult=result, **away)[1]["code"] == cni.LATER
    lists = {"cni.dev/valid-attachments": []}
    assert vm.call("GC", **lists, **away)[1]["code"] == cni.LATER
    assert vm.call("STATUS", **away)[1]["code"] == cni.UNAVAILABLE


def test_del_succeeds_where_attachments_are_no_longer_allowed(vm: Vm) -> None:
    vm.service.faults.append(says(404, {"error": "not_found", "message": "x"}))
    assert vm.call("DEL", "c1") == (0, None)


def test_check_names_each_difference(vm: Vm, netns: Namespace) -> None:
    _status, result = vm.call("ADD", "c1", path(netns))

    def code() -> tuple[int, str]:
        _status, error = vm.call("CHECK", "c1", path(netns), prevResult=result)
        return error["code"], error["msg"]

    port = cni.outer_name("c1", "eth0")
    vm.switch.vsctl("set", "Port", port, "tag=7")
    assert code() == (cni.DIFFERENT, "the port in Open vSwitch is not in VLAN 100")
    netns.ip("addr flush dev eth0")
    vm.switch.vsctl("set", "Port", port, "tag=100")
    assert code() == (cni.DIFFERENT, "eth0 has not the address 10.20.0.100/16")
    netns.ip("link set eth0 address 02:00:00:00:00:09")
    assert code()[0] == cni.DIFFERENT
    netns.ip("link del eth0")
    assert code() == (cni.DIFFERENT, "there is no device eth0")
    assert vm.call("CHECK", "c1", "/run/netns/no", prevResult=result)[1]["code"] == cni.ENVIRONMENT
    assert vm.call("CHECK", "c1", path(netns))[1]["code"] == cni.CONFIGURATION
    vm.call("DEL", "c1")
    assert code()[0] == cni.UNKNOWN


def test_check_while_the_host_makes_the_port_is_code_11(vm: Vm, netns: Namespace) -> None:
    _status, result = vm.call("ADD", "c1", path(netns))
    one = vm.service.attachments["c1", "eth0"]
    for state, wrong in (("wanted", cni.LATER), ("made", cni.LATER), ("active", None)):
        one["state"] = state
        _status, error = vm.call("CHECK", "c1", path(netns), prevResult=result)
        assert (error and error["code"]) == wrong, error
    vm.service.faults.append(says(503, {"error": "driver", "message": "x"}, Retry_After="100"))
    _status, error = vm.call("CHECK", "c1", path(netns), prevResult=result)
    assert error["code"] == cni.LATER
    vm.call("DEL", "c1", path(netns))


def test_gc_removes_what_no_list_names(vm: Vm) -> None:
    with Namespace("one") as one, Namespace("two") as two:
        for container, there in (("c1", one), ("c2", two)):
            assert vm.call("ADD", container, path(there))[0] == 0
        assert vm.call("GC") == (0, None)
        assert len(vm.service.attachments) == 2
        listed = [{"containerID": "c1", "ifname": "eth0"}]
        two.ip("link del eth0")
        lists = {"cni.dev/valid-attachments": listed, "cni.dev/attachments": listed}
        assert vm.call("GC", owner="other", **lists) == (0, None)
        assert len(vm.service.attachments) == 2
        assert vm.call("GC", **lists) == (0, None)
        assert list(vm.service.attachments) == [("c1", "eth0")]
        assert vm.traces()[0] == [cni.outer_name("c1", "eth0")]
        # The older key alone counts as well.
        assert vm.call("GC", **{"cni.dev/attachments": listed}) == (0, None)
        assert list(vm.service.attachments) == [("c1", "eth0")]
        wrong = {"cni.dev/valid-attachments": [{"containerID": 1}]}
        assert vm.call("GC", **wrong)[1]["code"] == cni.CONFIGURATION
        vm.call("DEL", "c1")


def test_status(vm: Vm) -> None:
    assert vm.call("STATUS") == (0, None)
    assert vm.call("STATUS", network="unknown")[1]["code"] == cni.UNAVAILABLE
    vm.service.free = 0
    assert vm.call("STATUS")[1]["code"] == cni.SHORT
    vm.service.ready = False
    assert vm.call("STATUS")[1]["code"] == cni.UNAVAILABLE
    vm.service.faults.append(says(404, None))
    assert vm.call("STATUS")[1]["code"] == cni.UNAVAILABLE


def test_the_kernel_takes_the_messages_with_another_kind(vm: Vm, netns: Namespace) -> None:
    """The kernels of test machines have macvlan: the rest of the message is that of a VLAN."""
    with vm.inside.inside():
        here = cni.Netlink()
        parent = here.link("eth0")
    assert parent is not None
    descriptor = cni.open_netns(path(netns))
    there = cni.Netlink(descriptor)
    message = cni.device() + cni.described("net1", "02:00:00:00:00:07", 1400, descriptor)
    message += cni.attribute(5, cni._u32(parent.index))
    message += cni.kind_of("macvlan", cni.attribute(1, cni._u32(4)))
    here.make(message)
    assert here.link("net1") is None
    made = there.link("net1")
    assert made is not None
    assert (made.mac, made.mtu, made.kind) == ("02:00:00:00:00:07", 1400, "macvlan")
    with pytest.raises(FileExistsError):
        here.make(message)
    there.address(made, bytes([10, 0, 0, 1]), 24)
    there.up(made)
    there.route(made, (bytes(4), 0), bytes([10, 0, 0, 2]))
    assert "default via 10.0.0.2 dev net1" in netns.ip("route show")
    assert there.addresses(made) >= {(bytes([10, 0, 0, 1]), 24)}
    there.remove(made)
    there.remove(made)
    for one in (here, there):
        one._socket.close()


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
        code = "import sys; sys.path.insert(0, sys.argv[1]); import cni;"
        code += "server = cni.listen(*sys.argv[2:]); print('begun', flush=True);"
        code += "server.serve_forever()"
        arguments = [str(Path(cni.__file__).parent), str(self.path), str(folder / "state")]
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
        (one,) = vm.service.attachments.values()
        address = {"Address": one["ips"][0]["address"], "MacAddress": one["mac"]}
        assert (made, one["owner"]) == ({"Interface": address}, "docker")
    # dockerd does not send the network again. The socket of the first process is replaced.
    with Driver(vm, tmp_path) as docker:
        joined = docker.call("Join", SandboxKey="/var/run/docker/netns/x")
        device = joined.pop("InterfaceName")
        assert device["DstPrefix"] == "eth"
        shown = vm.inside.ip(f"addr show {device['SrcName']}")
        assert one["mac"] in shown
        assert "inet " not in shown
        assert joined == {
            "Gateway": "10.20.255.254",
            "StaticRoutes": [{"Destination": cni.METADATA, "RouteType": 1, "NextHop": ""}],
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
        (one,) = vm.service.attachments.values()
        assert (one["ips"][0]["address"], one["mac"]) == tuple(given.values())
        assert docker.call("DeleteEndpoint") == {}
        for _again in range(2):
            assert docker.call("DeleteNetwork") == {}
        assert docker.call("CreateEndpoint")["Err"].startswith("the network is unknown")


@pytest.mark.parametrize("verb", ["CreateNetwork", "DeleteNetwork"])
def test_endpoints_that_a_killed_dockerd_has_forgotten_are_deleted(
    vm: Vm, tmp_path: Path, verb: str
) -> None:
    with Driver(vm, tmp_path) as docker:
        for network in ("n1", "n2"):
            assert docker.call("CreateNetwork", NetworkID=network, Options=options(vm)) == {}
            docker.call("CreateEndpoint", NetworkID=network, EndpointID=f"of-{network}")
        assert len(vm.traces()[0]) == 2
        assert docker.call(verb, Options=options(vm)) == {}
        assert [one["container"] for one in vm.service.attachments.values()] == ["of-n2"]
        assert len(vm.traces()[0]) == 1
        assert docker.call("DeleteNetwork", NetworkID="n2") == {}
        assert vm.service.attachments == {}
        assert docker.call("DeleteNetwork") == {}
    assert [*(tmp_path / "state").iterdir()] == []


@pytest.mark.parametrize(
    ("network", "more", "error"),
    [
        ("n1", {"network": ""}, "network has to be"),
        ("n1", {"mtu": "large"}, "mtu has to be"),
        ("n1", {"metadataRoute": "perhaps"}, "metadataRoute has to be"),
        ("../n1", {}, "NetworkID has not its form"),
    ],
)
def test_a_network_of_docker_with_wrong_options_is_not_made(
    vm: Vm, tmp_path: Path, network: str, more: dict[str, str], error: str
) -> None:
    with Driver(vm, tmp_path) as docker:
        answer = docker.call("CreateNetwork", NetworkID=network, Options=options(vm, **more))
        assert answer["Err"].startswith(error)
    assert [one.name for one in tmp_path.rglob("n1*")] == []


def test_the_driver_ends_at_sigterm_as_the_first_process_of_a_container() -> None:
    plugin = ["mount -t tmpfs none /run", f"exec {sys.executable} -IS {cni.__file__} --docker"]
    shell = ["sh", "-euc", "\n".join(plugin)]
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    container = spawn([*unshare, *shell])
    try:
        children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
        (first,) = wait_for(lambda: children.read_text(encoding="ascii").split(), "the shell")
        wait_for(Path(f"/proc/{first}/root{cni.DOCKER}").exists, "the driver to listen")
        os.kill(int(first), signal.SIGTERM)
        assert container.wait(20 * PATIENCE) == 0
    finally:
        container.kill()
        container.wait()
