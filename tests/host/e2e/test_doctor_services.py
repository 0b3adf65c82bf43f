"""``dfmeta doctor`` on services that the daemon uses, on its process and the system around it.

One host with a daemon that has been stopped serves them all: doctor asks by itself.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness import neutron as neutron_harness
from tests.harness.agent import Agent, ini, program
from tests.harness.certificates import Authority
from tests.harness.guest import Guest, uuid_of
from tests.harness.neutron import PASSWORD, Neutron
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.nova_tree import Instance
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.host.e2e.support import NOVA_OPTIONS, PROJECT, project_ids

OLD = b"HTTP/1.1 404 Gone\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n"
PORT_RANGE = "net.ipv4.ip_local_port_range"

Line = dict[str, Any]
Options = dict[str, dict[str, object]]


@dataclass(frozen=True)
class Ward:
    """A host whose daemon has been stopped in good order, and its doctor."""

    host: OpenvSwitch
    agent: Agent
    folder: Path

    def lines(self, options: Options) -> list[Line]:
        """Every line of doctor's, with *options* in a file that comes after the daemon's own."""
        more = self.agent.folder / "more.conf"
        more.write_text(ini(options))
        more.chmod(0o600)
        command = [*program("dfmeta"), "doctor", "--format", "json", "--root", str(self.folder)]
        command += ["--config-file", str(self.agent.config_file), "--config-file", str(more)]
        done = self.host.namespace.run(command, check=False)
        assert done.stderr == ""
        result: list[Line] = json.loads(done.stdout)
        assert done.returncode == int(any(line["status"] == "wrong" for line in result))
        assert all(bool(line["remedy"]) == (line["status"] == "wrong") for line in result)
        assert SECRET not in done.stdout
        assert PASSWORD not in done.stdout
        return result


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    """Provide the ward of the module, with a guest that has been served."""
    ids = project_ids("served")
    with OpenvSwitch() as host, Agent(host) as agent, Guest(host, "served", ids=ids):
        agent.start()
        agent.stop()
        yield Ward(host, agent, tmp_path_factory.mktemp("root"))


def only(found: list[Line], check: str, status: str) -> Line:
    """The one line of that check."""
    (line,) = [line for line in found if line["check"] == check]
    assert line["status"] == status, line
    return line


def nova_options(*hosts: str) -> Options:
    """Options of a daemon with those hosts of Nova; a number is a port of this one."""
    default: dict[str, object] = dict(NOVA_OPTIONS["DEFAULT"])
    where = ",".join(f"127.0.0.1:{host}" if host.isdigit() else host for host in hosts)
    return {
        "DEFAULT": {**default, "nova_metadata_host": where},
        "df_metadata": dict(NOVA_OPTIONS["df_metadata"]),
    }


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
        result = ward.lines(
            merged(
                nova_options(*hosts),
                with_neutron(password="other"),
                {"df_metadata": {"libvirt_xml_path": libvirt}},
            )
        )
    lines = [line for line in result if line["check"] == "nova"]
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
        line = only(result, check, "wrong")
        assert word in line["text"]
        assert remedy in line["remedy"]


def test_answering_services_are_ok_but_for_a_clock_and_a_port(ward: Ward, tmp_path: Path) -> None:
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
        lines = ward.lines(options)
        assert "accepts dfmeta's signature" in only(lines, "nova", "ok")["text"]
        assert [response.instance_id for response in nova.requests()] == [instance]
        text = only(lines, "source-neutron", "ok")["text"]
        assert text == "Neutron accepts the account in [neutron]"
        assert "1 domains of libvirt can be read, 0" in only(lines, "source-libvirt", "ok")["text"]
        # A Nova's own clock counts as one that agrees.
        assert "agrees with Nova at" in only(lines, "clock", "ok")["text"]
        ward.host.vsctl("add-port", BRIDGE, name, "--", "set", "Interface", name, *ids)
        nova.fault(raw=OLD)
        neutron.put(neutron_harness.port(port_id, uuid_of("of nova"), PROJECT, host="elsewhere"))
        try:
            lines = ward.lines(options)
        finally:
            ward.host.vsctl("del-port", name)
    line = only(lines, "clock", "wrong")
    assert "this host's clock and that of Nova at 127.0.0.1:8775 are" in line["text"]
    line = only(lines, "source-neutron", "wrong")
    assert "on elsewhere, and [neutron] host is compute-1" in line["text"]
    assert "set [neutron] host = elsewhere" in line["remedy"]
