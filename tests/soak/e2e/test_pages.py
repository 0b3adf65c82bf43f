"""The commands of pages that have but a few are typed as they stand, on a host that serves a guest.

Pages with a story of their own have modules of their own: tests/core/docs/typed.py names them all.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.core.docs.typed import chapter, page, untyped
from tests.harness import domains as libvirt
from tests.harness import netns
from tests.harness.console import blocks
from tests.harness.guest import EC2_6, OPENSTACK6, Guest, Ids, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.shell import Shell
from tests.host.e2e.support import KEY, put

WEB1 = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
PUSHED = "67fe638b-87b3-4fde-b191-1effb94b3c19"
CENTRAL = "192.0.2.10"
DISK = (
    "<disk type='file'><source file='/var/lib/libvirt/images/web1.qcow2'/>"
    "<target dev='vda' bus='virtio'/><serial>disk-vol-2352423</serial></disk>"
)
NIC = "<interface type='network'><mac address='52:54:00:aa:00:01'/></interface>"


@pytest.fixture(scope="module")
def whole_host() -> Iterator[Shell]:
    """A host with a guest, ``web1``, whose record is in the host's store."""
    with ExitStack() as stack:
        switch = stack.enter_context(OpenvSwitch())
        switch.namespace.ip(f"address add {CENTRAL}/32 dev lo")
        shell = Shell(stack, switch)
        running = shell.folder / "libvirt"
        running.mkdir()
        text = libvirt.definition(WEB1, domain="web1")
        text = text.replace("<devices>", f"<devices>{DISK}{NIC}")
        libvirt.write(running, "web1", libvirt.status(text))
        shell.agent.configure({"df_metadata": {"libvirt_xml_path": running}})
        guest = stack.enter_context(Guest(switch, "web1", ids=Ids(vm_uuid=WEB1)))
        shell.guests["web1"] = guest
        shell.names |= {"PORT": guest.port, "INSTANCE": WEB1}
        yield shell


@pytest.fixture
def host(whole_host: Shell) -> Shell:
    """The host with its daemon, which a page may have stopped."""
    if not whole_host.agent.running:
        whole_host.agent.start()
    put(whole_host.agent, whole_host.guests["web1"])
    whole_host.typed.clear()
    return whole_host


def types(host: Shell, name: str) -> str:
    """What the commands of a page print."""
    printed = host.type_all(page(name))
    assert untyped(name, host.typed) == []
    return printed


def test_the_readme_makes_a_port_a_guests_and_gives_it_a_record(host: Shell) -> None:
    (host.folder / "source/id.pub").write_text(f"{KEY}\n")
    ids = Ids(iface_id="", vm_uuid="", attached_mac=False)
    with Guest(host.switch, "another", address="10.0.0.9/24", ids=ids, plug=False) as guest:
        rename = (f"link set {guest.port} down", f"link set {guest.port} name vnet0")
        host.switch.namespace.ip(*rename, "link set vnet0 up")
        guest.port = "vnet0"
        guest.plug()
        types(host, "README")
        reply = guest.curl("/latest/meta-data/local-hostname")
        assert (reply.status, reply.text) == (200, "web")


def test_the_doctor_finds_nothing_wrong(host: Shell) -> None:
    assert ", 0 wrong" in types(host, "doctor").splitlines()[-1]


def test_the_switch_prints_our_flows(host: Shell) -> None:
    assert "priority=300" in types(host, "pipeline")


def test_a_guest_gets_next_hops_and_loses_them(host: Shell) -> None:
    assert "10.0.0.2=fa:16:3e:00:00:02 10.0.1.2" in types(host, "meta-ip")


def test_a_subport_gets_an_instance_and_loses_it_and_a_vm_a_trunk(host: Shell) -> None:
    port = host.guests["web1"].port
    host.switch.vsctl("set", "Interface", port, f"external_ids:iface-id={uuid_of('web1')}")
    printed = types(host, "trunks")
    host.switch.vsctl("remove", "Interface", port, "external_ids", "iface-id")
    assert "VID 100: instance" in printed
    assert "VID 100: deleted" in printed
    assert port in host.switch.ports(BRIDGE)
    assert not any(word.startswith("tbr-") for word in host.switch.vsctl("list-br").split())


def test_devices_get_their_roles_and_a_guest_loses_the_program(host: Shell) -> None:
    drive = host.folder / "srv/drives/web1"
    drive.mkdir(parents=True)
    host.type_all(page("devices").partition("\nRemoval\n")[0])
    tagged = json.loads((drive / "openstack/latest/meta_data.json").read_text())["devices"]
    assert [device["tags"] for device in tagged if device["type"] == "disk"] == [["root"]]
    shown = host.guests["web1"].curl("/openstack/latest/meta_data.json").text
    assert {tag for device in json.loads(shown)["devices"] for tag in device["tags"]} == {
        *("nfvfunc1", "oracledb")
    }
    host.agent.stop()
    left = [
        host.folder / "etc/udev/rules.d/90-dfmeta-tags.rules",
        host.folder / "var/lib/cloud/scripts/per-boot/50-dfmeta-tag-devices",
    ]
    for path in left:
        path.parent.mkdir(parents=True)
        path.touch()
    host.type_all(chapter("devices", "Removal"))
    assert not any(path.exists() for path in (*left, host.agent.state_path))
    assert untyped("devices", host.typed) == []


def test_a_guest_asks_over_ipv6_and_gets_a_record_for_it(host: Shell) -> None:
    guest = host.guests["web1"]
    guest.add_address6("fd12:3456::5/64")
    (host.folder / "source/user-data").write_text("#!/bin/sh\n")
    (record,) = [block for block in blocks(page("ipv6-only")) if block.caption == "web6.json"]
    host.read(record)
    printed = types(host, "ipv6-only")
    assert printed.count("web1.example.org") == 2
    assert not re.search(r" ipv6 ", printed)
    for service in (OPENSTACK6, EC2_6):
        reply = guest.curl("/latest/meta-data/local-hostname", host=service)
        assert reply.text == "web6.example.org"
    shown = guest.curl("/nocloud/network-config", host=EC2_6)
    assert yaml.safe_load(shown.body) == json.loads(record.text)["network_config"]


def test_records_and_devices_are_pushed(host: Shell) -> None:
    answers = types(host, "store-api")
    assert "error" not in answers
    assert "instance-metadata-example-01" in answers
    record = host.run(f"dfmeta store get {PUSHED} --document")
    assert json.loads(record) == {"hostname": "instance-metadata-example-01", "devices": []}


def test_a_host_goes_back_and_a_central_store_takes_hollows_records(host: Shell) -> None:
    config = host.folder / "etc/dfmeta/dfmeta-store.conf"
    config.write_text(
        f"[df_metadata]\nadmin_listen = {CENTRAL}:9697\nstate_path = {host.folder}/store\n"
        f"[store]\nguest_listen = {CENTRAL}:80\ntoken_file = {host.folder}/tokens\n"
    )
    host.names |= {"FILE": "/etc/dfmeta/dfmeta-store.conf", "ID": PUSHED}
    tokens = host.type_all(chapter("store-central", "Access"))
    assert "deploy" in tokens
    printed = host.run("dfmeta token create --config-file FILE --scope read --name reader")
    (host.variables["TOKEN"],) = re.findall(r"\bdfm_[\w-]+", printed)
    line = {"id": PUSHED, "ipAddresses": ["10.1.2.3"], "metadata": {"hostname": "moved"}}
    (host.folder / "source/records.jsonl").write_text(f"{json.dumps(line)}\n")
    ready = ["curl", "-sf", f"http://{CENTRAL}:9697/healthz/readiness"]
    process = host.background("dfmeta-store --config-file /etc/dfmeta/dfmeta-store.conf")
    try:
        inside = host.switch.namespace
        wait_for(lambda: inside.run(ready, check=False).returncode == 0, "dfmeta-store")
        answers = types(host, "migrate")
        assert "The path leads to the proxy and back." in answers
        assert WEB1 in answers
        assert "imported: 0 seeds, 1 lines" in answers
        assert re.search(r'\\?"hostname\\?": ?\\?"moved', answers), answers
    finally:
        netns.end(process)
        del host.names["FILE"], host.names["ID"]
    assert host.switch.ports() == [host.guests["web1"].port]
    assert untyped("store-central", host.typed) == []


def test_guests_of_kvm_get_their_records(host: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    known, source = host.places(), host.folder / "source"
    monkeypatch.setattr(host, "places", lambda: {**known, "/proc": "/proc"})
    (source / "seeds/web1").mkdir(parents=True)
    for name, text in {
        "key.pub": f"{KEY}\n",
        "user-data": "#!/bin/sh\n",
        "vendor-data": "#cloud-config\n{}\n",
        "network-config": "version: 2\n",
        "web3.json": '{"hostname": "web3"}',
        "seeds/web1/meta-data": "instance-id: iid-1\nlocal-hostname: moved\n",
        "seeds/web1/user-data": "#!/bin/sh\n",
        "records.jsonl": json.dumps({"id": PUSHED, "metadata": {"hostname": "imported"}}),
    }.items():
        (source / name).write_text(text)
    host.names["web2"] = name = f"{netns.PREFIX}{os.getpid()}-web2"
    container = netns.spawn(["unshare", "--net", "sleep", "infinity"])
    inside, outside = (Path(f"/proc/{pid}/ns/net") for pid in (container.pid, "self"))
    wait_for(lambda: inside.readlink() != outside.readlink(), "the container's namespace")
    host.variables["pid"] = str(container.pid)
    try:
        printed = types(host, "store-kvm")
        assert name in printed
        url = "http://169.254.169.254/latest/meta-data/local-hostname"
        assert netns.run(["nsenter", f"--net={inside}", "curl", "-s", url]).stdout == "web3"
    finally:
        netns.end(container)
        netns.run(["ip", "netns", "del", name], check=False)
        del host.names["web2"], host.variables["pid"]
        for port in ("tap2", "tap3"):
            host.switch.vsctl("--if-exists", "del-port", port)
    assert "imported: 1 seeds, 1 lines" in printed
    reply = host.guests["web1"].curl("/latest/meta-data/local-hostname")
    assert (reply.status, reply.text) == (200, "moved")
