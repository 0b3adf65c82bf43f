"""``dfmeta doctor`` on what the daemon asks of others, each of them broken one way.

One host with a daemon that has been stopped serves them all: doctor asks by itself.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness import neutron as neutron_harness
from tests.harness.certificates import Authority
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import uuid_of
from tests.harness.neutron import Neutron
from tests.harness.nova import RecordingNova
from tests.harness.nova_tree import Instance
from tests.harness.ovs import BRIDGE
from tests.harness.poll import wait_for
from tests.host.e2e.support import (
    META_DATA,
    NOVA_OPTIONS,
    PROJECT,
    asks_own,
    project_ids,
    put_nova,
)
from tests.host.e2e.test_doctor_options import reload
from tests.host.e2e.test_next_hops import with_neutron as neutron_options
from tests.host.e2e.ward import Line, Ward, examine, nova_options, only, shared_ward, status_of

pytestmark = pytest.mark.early

OLD = b"HTTP/1.1 404 Gone\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n"


ward = shared_ward


# Nova


NOVAS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...], str]] = {
    "another secret": (
        {"secret": "another"},
        {},
        ("403", "_secret here differs", "[neutron] metadata_proxy_shared_secret"),
        "systemctl reload dfmeta-agent",
    ),
    "does not look": (
        {},
        {"status": 404},
        ("[neutron] service_metadata_proxy is off",),
        "service_metadata_proxy true",
    ),
    "drops headers": ({}, {"status": 400}, ("400", "drops dfmeta's headers"), "curl -s http://"),
    "no metadata": ({}, {"status": 302}, ("302", "program listens there"), "nova_metadata_port"),
    "fails": ({}, {"status": 503}, ("has failed (503)",), "journalctl -u nova-api-metadata"),
    "slow": ({}, {"delay": 20.0}, ("has not answered within 3 s",), "its log"),
    "closes": ({}, {"close": True}, ("closed the connection without an answer",), "its log"),
    "speaks something else": ({}, {"raw": b"SSH-2.0\r\n\r\n"}, ("not valid HTTP",), "curl -sv"),
    "has no such instance": ({}, {}, ("has no instance", "in project"), "openstack server show"),
}


def test_each_nova_host_has_a_line_that_says_what_is_wrong_with_it(
    ward: Ward, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        tls = Authority(tmp_path).issue("127.0.0.1")
        ports = {name: 8800 + number for number, name in enumerate(NOVAS)}
        for name, (how, fault, _words, _remedy) in NOVAS.items():
            namespace = ward.host.namespace
            server = stack.enter_context(RecordingNova(namespace, port=ports[name], **how))
            if fault:
                server.fault(**fault)
        stack.enter_context(RecordingNova(ward.host.namespace, port=8790, certificate=tls))
        hosts = (*map(str, ports.values()), "8790", "9", "nowhere.invalid")
        found = ward.lines(nova_options(*hosts))
    lines = [line for line in found if line["check"] == "nova"]
    assert len(lines) == len(hosts)
    by_port = dict(zip(hosts, lines, strict=True))
    for name, (_how, _fault, words, remedy) in NOVAS.items():
        line = by_port[str(ports[name])]
        assert line["status"] == "wrong"
        assert f"127.0.0.1:{ports[name]}" in line["text"]
        for word in words:
            assert word in line["text"], name
        assert remedy in line["remedy"], name
    assert "it speaks TLS" in by_port["8790"]["text"]
    assert "nova_metadata_protocol = https" in by_port["8790"]["remedy"]
    assert "connection refused" in by_port["9"]["text"]
    assert "cannot be resolved" in by_port["nowhere.invalid"]["text"]


def test_a_nova_that_takes_the_signature_is_ok_for_a_real_instance_and_a_made_up_one(
    ward: Ward,
) -> None:
    with RecordingNova(ward.host.namespace) as nova:
        instance = uuid_of("instance served")
        nova.put(Instance(instance_id=instance, project_id=PROJECT, hostname="served"))
        found = ward.lines(nova_options("8775"))
        assert "accepts dfmeta's signature" in only(found, "nova", "ok")["text"]
        assert only(found, "local-ports", "ok")
        assert [one.instance_id for one in nova.requests()] == [instance]
        # A Nova's own clock counts as one who agrees.
        assert "agrees with Nova at" in only(found, "clock", "ok")["text"]
        nova.clear()
        nova.fault(raw=OLD)
        line = only(ward.lines(nova_options("8775")), "clock", "wrong")
        assert "this host's clock and that of Nova at 127.0.0.1:8775 are" in line["text"]
        assert "this host's is ahead" in line["text"]
        assert "timedatectl" in line["remedy"]
        nova.mend()
        nova.clear()
        # On another bridge there is no guest to ask about.
        options = nova_options("8775")
        options["df_metadata"]["integration_bridge"] = "br-none"
        found = [line for line in ward.lines(options) if line["check"] == "nova"]
        assert [line["status"] for line in found] == ["ok"]
        signed, unsigned = nova.requests()
        assert (signed.status, unsigned.status) == (404, 400)
        assert unsigned.instance_id is None


def test_nova_over_tls(ward: Ward, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    pairs = {
        8801: authority.issue("127.0.0.1"),
        8802: stranger.issue("127.0.0.1"),
        8803: authority.issue("elsewhere.example.org"),
        8804: authority.issue("127.0.0.1", expired=True),
    }
    with ExitStack() as stack:
        namespace = ward.host.namespace
        for port, pair in pairs.items():
            nova = stack.enter_context(RecordingNova(namespace, port=port, certificate=pair))
            nova.fault(status=200)
        stack.enter_context(RecordingNova(namespace, port=8805))
        options = nova_options(
            *map(str, pairs),
            "8805",
            nova_metadata_protocol="https",
            auth_ca_cert=authority.certificate,
        )
        found = ward.lines(options)
    good, foreign, misnamed, expired, plain = (one for one in found if one["check"] == "nova")
    assert good["status"] == "ok"
    assert "TLS: CERTIFICATE_VERIFY_FAILED" in foreign["text"]
    assert "auth_ca_cert" in foreign["remedy"]
    assert "nova_metadata_host" in misnamed["remedy"]
    assert "set the clock" in expired["remedy"]
    assert "nova_metadata_protocol = http" in plain["remedy"]


def test_novas_that_drop_all_are_given_up(ward: Ward) -> None:
    # 192.0.2.0/24 (RFC 5737) leads nowhere: nobody is at the other end of the cable.
    ward.host.namespace.ip("link add dead0 type veth peer name dead1")
    try:
        ward.host.namespace.ip("addr add 192.0.2.1/24 dev dead0")
        ward.host.namespace.ip("link set dead0 up")
        ward.host.namespace.ip("link set dead1 up")
        ward.host.namespace.ip("neigh replace 192.0.2.9 lladdr 02:00:00:00:00:09 dev dead0")
        done = ward.lines(nova_options("192.0.2.9:1", "192.0.2.9:2"))
    finally:
        ward.host.namespace.ip("link del dead0")
    dead = [line for line in done if line["check"] == "nova"]
    assert [line["status"] for line in dead] == ["wrong", "wrong"]
    assert all("the connection timed out" in line["text"] for line in dead)


def test_too_few_ports_for_connections_to_nova(ward: Ward) -> None:
    names = ("net.ipv4.ip_local_port_range",)
    before = ward.host.namespace.run(["sysctl", "-n", *names]).stdout.strip()
    ward.host.namespace.sysctl(**{names[0]: "50000 50100"})
    try:
        line = ward.wrong("local-ports", nova_options("9"))
        assert "allows 101 ports" in line["text"]
        assert 'sysctl -w net.ipv4.ip_local_port_range="32768 60999"' in line["remedy"]
    finally:
        ward.host.namespace.sysctl(**{names[0]: before})


def test_a_guest_of_nova_whose_project_is_not_known(
    make_agent: MakeAgent, make_guest: MakeGuest, tmp_path: Path
) -> None:
    guest, agent = make_guest(), make_agent(nova_options("9"))
    line = only(examine(agent, tmp_path), "ports", "wrong")
    assert f"no project is known for {guest.port}, and Nova needs it to answer" in line["text"]
    assert f"ovs-vsctl set Interface {guest.port} external_ids:project-id=" in line["remedy"]
    guest.set_external_ids(project_id=PROJECT)
    wait_for(lambda: status_of(examine(agent, tmp_path), "ports") == {"ok"}, "the project")


def test_guests_of_nova_in_a_wrong_project_and_without_one(
    make_agent: MakeAgent, make_guest: MakeGuest, nova: RecordingNova, tmp_path: Path
) -> None:
    good, moved = (make_guest(name, ids=project_ids(name)) for name in ("good", "moved"))
    stranger = make_guest("stranger")
    for guest in (good, moved):
        put_nova(nova, guest)
    moved.set_external_ids(project_id="0" * 32)
    agent = make_agent(NOVA_OPTIONS)
    # Nobody has asked yet, and doctor asks Nova itself.
    line = only(examine(agent, tmp_path), "nova-guests", "wrong")
    assert "for 1 of 2 queried guests, of 2 with a project" in line["text"]
    assert f"{moved.port} (instance {moved.instance_id}, project {'0' * 32})" in line["text"]
    assert f"`openstack server show {moved.instance_id} -c project_id`" in line["remedy"]

    asks_own(good)
    # A list of versions is everybody's, and no metadata.
    assert moved.curl("/").status == 200
    assert moved.curl(META_DATA).status == 404
    # Only the request that waits in vain is to wait for a short time.
    agent.configure({"df_metadata": {"hold_timeout": 0.4}})
    reload(agent)
    assert stranger.curl("/latest/meta-data/").status == 503
    agent.configure({"df_metadata": {"hold_timeout": None}})
    reload(agent)
    found = examine(agent, tmp_path)
    guests = [line for line in found if line["check"] == "guests"]
    assert [line["status"] for line in guests] == ["wrong", "wrong"]
    by_port = {
        name: line
        for line in guests
        for name in (moved.port, stranger.port)
        if f"{name} (since" in line["text"]
    }
    assert "get 404 (Nova has no such instance in its project)" in by_port[moved.port]["text"]
    assert moved.instance_id in by_port[moved.port]["remedy"]
    assert "get 503 (its project is not known)" in by_port[stranger.port]["text"]
    command = f"`ovs-vsctl set Interface {stranger.port} external_ids:project-id="
    assert command in by_port[stranger.port]["remedy"]
    assert command in only(found, "ports", "wrong")["remedy"]
    # The one that fails is the one that each host is asked about first.
    assert f"no instance {moved.instance_id} in project" in only(found, "nova", "wrong")["text"]

    rows = {row["port"]: row for row in agent.admin("/ports").json()}
    assert rows[stranger.port]["state"] == "no project"
    assert rows[moved.port]["last_failure"]["failing"]
    failing = agent.ctl("ports", "--failing").stdout.splitlines()[1:]
    assert sorted(line.split()[0] for line in failing) == sorted([moved.port, stranger.port])
    trace = agent.ctl("trace", stranger.port, check=False)
    assert trace.returncode == 1
    assert "Stops at the proxy (no project): no identity source gives its project" in trace.stdout
    trace = agent.ctl("trace", moved.port)
    assert "the guest gets an answer, and fails: 404 (Nova has no such instance" in trace.stdout

    moved.set_external_ids(project_id=PROJECT)
    stranger.set_external_ids(project_id=PROJECT)
    nova.put(Instance(instance_id=stranger.instance_id, project_id=PROJECT, hostname="stranger"))
    wait_for(lambda: moved.curl(META_DATA).status == 200, "the project to be Nova's")
    wait_for(lambda: stranger.curl(META_DATA).status == 200, "the project to be known")
    found = examine(agent, tmp_path)
    assert status_of(found, "guests") == status_of(found, "nova-guests") == {"ok"}
    assert "each of 3 queried guests" in only(found, "nova-guests", "ok")["text"]


# Identity sources


def test_neutron_takes_the_account_or_not(ward: Ward) -> None:
    away = ward.wrong("source-neutron", neutron_options())
    assert "Neutron cannot be queried" in away["text"]
    assert "openstack endpoint list" in away["remedy"]
    with Neutron(ward.host.namespace) as neutron:
        found = ward.lines(neutron_options())
        text = only(found, "source-neutron", "ok")["text"]
        assert text == "Neutron accepts the account in [neutron]"
        assert only(found, "clock", "wrong" if unsynchronised(found) else "ok")
        line = ward.wrong("source-neutron", neutron_options(password="other"))
        assert "refuses the account in [neutron] (401)" in line["text"]
        assert "openstack token issue" in line["remedy"]
        neutron.fault(status=403)
        line = ward.wrong("source-neutron", neutron_options())
        assert "may not list ports (403)" in line["text"]
        assert "openstack role add" in line["remedy"]
        neutron.fault(delay=20.0)
        line = ward.wrong("source-neutron", neutron_options())
        assert "Neutron cannot be queried" in line["text"]
    line = ward.wrong("source-neutron", neutron_options(auth_type="nonsense"))
    assert "[neutron] auth_type" in line["text"]


def unsynchronised(found: list[Line]) -> bool:
    return any("STA_UNSYNC" in line["text"] for line in found)


def test_ports_that_neutron_does_not_show_or_has_elsewhere(ward: Ward) -> None:
    port_id, instance = uuid_of("port of nova"), uuid_of("of nova")
    name = f"tap{port_id[:11]}"
    ids = [f"external_ids:iface-id={port_id}", f"external_ids:vm-uuid={instance}"]
    ids.append("external_ids:attached-mac=fa:16:3e:00:11:22")
    ward.host.vsctl("add-port", BRIDGE, name, "--", "set", "Interface", name, *ids)
    try:
        with Neutron(ward.host.namespace) as neutron:
            line = ward.wrong("source-neutron", neutron_options())
            assert f"sees none of this host's ports ({name})" in line["text"]
            assert f"openstack port show {port_id}" in line["remedy"]
            neutron.put(neutron_harness.port(port_id, instance, PROJECT, host="elsewhere"))
            line = ward.wrong("source-neutron", neutron_options())
            assert "on elsewhere, and [neutron] host is compute-1" in line["text"]
            assert "set [neutron] host = elsewhere" in line["remedy"]
            neutron.put(neutron_harness.port(port_id, instance, PROJECT))
            found = ward.lines(neutron_options())
            assert "shows it 1 of this host's ports" in only(found, "source-neutron", "ok")["text"]
    finally:
        ward.host.vsctl("del-port", name)


def test_libvirt_is_not_there_or_its_files_cannot_be_read(ward: Ward, tmp_path: Path) -> None:
    folder = tmp_path / "qemu"

    def options() -> dict[str, dict[str, object]]:
        return {"df_metadata": {"libvirt_xml_path": folder}}

    line = ward.wrong("source-libvirt", options())
    assert f"none of libvirt's directories exists: {folder}" in line["text"]
    folder.mkdir()
    domain = f"<domain><name>a</name><uuid>{uuid_of('a')}</uuid></domain>"
    (folder / "a.xml").write_text(domain)
    found = ward.lines(options())
    assert "1 domains of libvirt can be read, 0" in only(found, "source-libvirt", "ok")["text"]
    (folder / "b.xml").write_text("<domain><name>b</name>")
    line = ward.wrong("source-libvirt", options())
    assert "1 of libvirt's files are skipped" in line["text"]
    assert f"xmllint --noout {folder}/b.xml" in line["remedy"]


# The store


@pytest.fixture
def database(ward: Ward) -> Iterator[Path]:
    """The stopped daemon's database, which is put back."""
    path = ward.agent.state_path / "store.db"
    content = path.read_bytes()
    yield path
    for name in ward.agent.state_path.glob("store.db*"):
        name.unlink()
    path.write_bytes(content)
    path.chmod(0o600)


def set_schema(path: Path, revision: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))


def test_a_database_of_a_newer_or_an_older_dfmeta(ward: Ward, database: Path) -> None:
    before = sorted(ward.agent.state_path.iterdir())
    assert "this dfmeta's own" in only(ward.lines(), "store-schema", "ok")["text"]
    assert sorted(ward.agent.state_path.iterdir()) == before
    set_schema(database, "9999")
    line = ward.wrong("store-schema")
    assert "the schema is 9999, made by a newer dfmeta" in line["text"]
    assert "`dfmeta store schema --to 0004`" in line["remedy"]
    set_schema(database, "0002")
    line = only(ward.lines(), "store-schema", "ok")
    assert "has schema 0002; dfmeta-agent migrates it to 0004 at its start" in line["text"]


def test_a_database_that_others_may_read_that_is_none_or_is_gone(
    ward: Ward, database: Path
) -> None:
    database.chmod(0o644)
    line = ward.wrong("store-files")
    assert f"`chmod 600 {database}`" in line["remedy"]
    database.chmod(0o600)
    database.write_bytes(b"not a database, " * 500)
    line = ward.wrong("store")
    assert f"{database} cannot be read: file is not a database" in line["text"]
    assert "integrity_check" in line["remedy"]
    database.unlink()
    assert "does not exist yet" in only(ward.lines(), "store", "ok")["text"]
    assert not database.exists()
    database.mkdir()
    assert "not a regular file" in ward.wrong("store")["text"]
    database.rmdir()


def test_postgresql_is_away_or_of_a_newer_dfmeta(ward: Ward, postgres_url: str) -> None:
    def options(url: str) -> dict[str, dict[str, object]]:
        return {"store": {"connection": url}}

    found = ward.lines(options(postgres_url))
    assert only(found, "store", "ok")["text"].startswith("postgresql://")
    assert "the database is empty" in only(found, "store-schema", "ok")["text"]
    assert status_of(found, "store-files") == set()
    url = "postgresql://dfmeta:hidden-word@127.0.0.1:1/store"
    line = ward.wrong("store", options(url))
    assert "PostgreSQL does not answer: postgresql://dfmeta:***@127.0.0.1:1/store" in line["text"]
    assert "refused" in line["text"]
    assert "hidden-word" not in json.dumps(line)
    assert "pg_isready" in line["remedy"]


@pytest.mark.parametrize(
    ("fault", "text", "remedy"),
    [
        ({"status": 401}, "token of lookups (401)", "dfmeta token create --scope read"),
        ({"status": 403}, "it has no right to read (403)", "[store] lookup_scopes"),
        ({"status": 500}, "answers 500", "/healthz"),
        ({"raw": b"nonsense\r\n\r\n"}, "does not speak HTTP", "/healthz"),
        ({"delay": 20.0}, "cannot be queried: no answer", "/healthz"),
    ],
    ids=["401", "403", "500", "nonsense", "slow"],
)
def test_the_store_that_ours_asks(
    ward: Ward, fault: dict[str, Any], text: str, remedy: str
) -> None:
    options = {"store": {"lookup_base_url": "http://127.0.0.1:8777"}}
    with RecordingNova(ward.host.namespace, port=8777) as upstream:
        upstream.fault(**fault)
        line = ward.wrong("lookup", options)
        assert text in line["text"]
        assert remedy in line["remedy"]


def test_the_store_that_ours_asks_answers_with_our_token_or_is_away(
    ward: Ward, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("the-token\n")
    token.chmod(0o600)
    options: dict[str, dict[str, object]] = {
        "store": {"lookup_base_url": "http://127.0.0.1:8777", "lookup_token_file": token}
    }
    assert "cannot be queried: connection refused" in ward.wrong("lookup", options)["text"]
    with RecordingNova(ward.host.namespace, port=8777) as upstream:
        upstream.fault(raw=OLD)
        found = ward.lines(options)
        assert only(found, "lookup", "ok")
        assert "that of http://127.0.0.1:8777" in only(found, "clock", "wrong")["text"]
        (asked,) = upstream.requests()
        assert asked.header("Authorization") == "Bearer the-token"
    token.chmod(0o644)
    assert "other users may read or change it" in ward.wrong("lookup", options)["text"]
    exposed = only(ward.lines(options), "secret-files", "wrong")
    assert f"`chmod o-rwx {token}`" in exposed["remedy"]


def test_a_token_file_that_is_of_no_use(ward: Ward, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    options: dict[str, dict[str, object]] = {"store": {"token_file": path}}
    assert "does not exist: no client can use" in ward.wrong("tokens", options)["text"]
    ward.agent.configure(options)
    ward.agent.ctl("token", "create", "--scope", "read")
    assert "has 1 valid tokens" in only(ward.lines(options), "tokens", "ok")["text"]
    path.chmod(0o644)
    line = ward.wrong("tokens", options)
    assert "other users may read or write it (mode 0644)" in line["text"]
    assert f"chmod 600 {path}" in line["remedy"]
    path.chmod(0o600)
    path.write_text(path.read_text().replace("}", ', "expires": "2020-01-01T00:00:00Z"}'))
    assert "has no valid token (1 old)" in ward.wrong("tokens", options)["text"]
    ward.agent.configure({"store": {"token_file": None}})
