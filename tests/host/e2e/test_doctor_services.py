"""``dfmeta doctor`` on services that the daemon uses, on its process and the system around it.

One host with a daemon that has been stopped serves them all: doctor asks by itself.
"""

from contextlib import ExitStack
from pathlib import Path

from tests.harness import neutron as neutron_harness
from tests.harness.certificates import Authority
from tests.harness.guest import uuid_of
from tests.harness.neutron import Neutron
from tests.harness.nova import RecordingNova
from tests.harness.nova_tree import Instance
from tests.harness.ovs import BRIDGE
from tests.host.e2e.support import PROJECT
from tests.host.e2e.ward import Ward, nova_options, only, shared_ward

OLD = b"HTTP/1.1 404 Gone\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n"
PORT_RANGE = "net.ipv4.ip_local_port_range"

Options = dict[str, dict[str, object]]
ward = shared_ward


def merged(*parts: Options) -> Options:
    """Options of all parts."""
    made: Options = {}
    for part in parts:
        for group, values in part.items():
            made[group] = {**made.get(group, {}), **values}
    return made


def with_neutron(**more: object) -> Options:
    return {
        "df_metadata": {"identity_sources": "ovsdb,libvirt,neutron"},
        "neutron": neutron_harness.options(**more),
    }


def test_services_that_fail_are_named_with_a_remedy(ward: Ward, tmp_path: Path) -> None:
    namespace = ward.host.namespace
    before = namespace.run(["sysctl", "-n", PORT_RANGE]).stdout.strip()
    namespace.sysctl(**{PORT_RANGE: "50000 50100"})
    hosts = ("8800", "8801", "8802", "9", "nowhere.invalid")
    libvirt = tmp_path / "qemu"
    with ExitStack() as stack:
        stack.callback(namespace.sysctl, **{PORT_RANGE: before})
        tls = Authority(tmp_path).issue("127.0.0.1")
        stack.enter_context(RecordingNova(namespace, port=8800, secret="another"))
        stack.enter_context(RecordingNova(namespace, port=8801, certificate=tls))
        stack.enter_context(RecordingNova(namespace, port=8802)).fault(close=True)
        stack.enter_context(Neutron(namespace))
        found = ward.lines(
            merged(
                nova_options(*hosts),
                with_neutron(password="other"),
                {"df_metadata": {"libvirt_xml_path": libvirt}},
            )
        )
    lines = [line for line in found if line["check"] == "nova"]
    assert {line["status"] for line in lines} == {"wrong"}
    novas = dict(zip(hosts, lines, strict=True))
    for host, word, remedy in (
        ("8800", "_secret here differs", "systemctl reload dfmeta-agent"),
        ("8801", "it speaks TLS", "nova_metadata_protocol = https"),
        ("8802", "closed the connection without an answer", "its log"),
        ("9", "connection refused", ""),
        ("nowhere.invalid", "cannot be resolved", ""),
    ):
        assert word in novas[host]["text"], host
        assert remedy in novas[host]["remedy"], host
    for check, word, remedy in (
        ("local-ports", "allows 101 ports", f'sysctl -w {PORT_RANGE}="32768 60999"'),
        ("source-neutron", "refuses the account in [neutron] (401)", "openstack token issue"),
        ("source-libvirt", f"none of libvirt's directories exists: {libvirt}", ""),
    ):
        line = only(found, check, "wrong")
        assert word in line["text"]
        assert remedy in line["remedy"]


def test_services_that_answer_are_ok_but_for_a_clock_and_a_port_elsewhere(
    ward: Ward, tmp_path: Path
) -> None:
    namespace = ward.host.namespace
    instance, port_id = uuid_of("instance served"), uuid_of("port of nova")
    name = f"tap{port_id[:11]}"
    libvirt = tmp_path / "qemu"
    libvirt.mkdir()
    domain = f"<domain><name>a</name><uuid>{uuid_of('a')}</uuid></domain>"
    (libvirt / "a.xml").write_text(domain)
    ids = [f"external_ids:iface-id={port_id}", f"external_ids:vm-uuid={uuid_of('of nova')}"]
    ids.append("external_ids:attached-mac=fa:16:3e:00:11:22")
    options = merged(
        nova_options("8775"), with_neutron(), {"df_metadata": {"libvirt_xml_path": libvirt}}
    )
    with RecordingNova(namespace) as nova, Neutron(namespace) as neutron:
        nova.put(Instance(instance_id=instance, project_id=PROJECT, hostname="served"))
        found = ward.lines(options)
        assert "accepts dfmeta's signature" in only(found, "nova", "ok")["text"]
        assert [one.instance_id for one in nova.requests()] == [instance]
        text = only(found, "source-neutron", "ok")["text"]
        assert text == "Neutron accepts the account in [neutron]"
        assert "1 domains of libvirt can be read, 0" in only(found, "source-libvirt", "ok")["text"]
        # A Nova's own clock counts as one that agrees.
        assert "agrees with Nova at" in only(found, "clock", "ok")["text"]
        ward.host.vsctl("add-port", BRIDGE, name, "--", "set", "Interface", name, *ids)
        nova.fault(raw=OLD)
        neutron.put(neutron_harness.port(port_id, uuid_of("of nova"), PROJECT, host="elsewhere"))
        try:
            found = ward.lines(options)
        finally:
            ward.host.vsctl("del-port", name)
    line = only(found, "clock", "wrong")
    assert "this host's clock and that of Nova at 127.0.0.1:8775 are" in line["text"]
    line = only(found, "source-neutron", "wrong")
    assert "on elsewhere, and [neutron] host is compute-1" in line["text"]
    assert "set [neutron] host = elsewhere" in line["remedy"]
