"""Commands should find the record that is meant, by UUID or name, or say why they do not."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from dfmeta.store.db.database import schema_of
from dfmeta.store.db.repository import Repository
from dfmeta.store.db.schema import HEAD
from tests.core.unit.store.support import KEY, Run, database_file, refusal
from tests.core.unit.support import OTHER_INSTANCE, succeeded
from tests.harness import domains as libvirt

BROKEN = "00000000-0000-0000-0000-000000000002"


def shown(run: Run, *arguments: str) -> dict[str, object]:
    (found,) = json.loads(succeeded(run("get", *arguments, "--format", "json")))
    return dict(found)


@pytest.fixture
def web1(domains: Path, instance_id: str) -> str:
    """A libvirt domain that runs, as a definition and as a status; its name."""
    for name, text in (("web1", str), ("web1-running", libvirt.status)):
        definition = libvirt.definition(instance_id, domain="web1")
        libvirt.write(domains, name, text(definition))
    return "web1"


def test_an_instance_is_found_by_its_domains_name(run: Run, web1: str, instance_id: str) -> None:
    put = succeeded(run("put", web1, "--hostname", "h"))
    assert put == f"{instance_id} (web1): created, with hostname\n"
    assert shown(run, web1)["id"] == instance_id
    assert shown(run, instance_id)["hostname"] == "h"
    assert f"{instance_id} (web1): deleted\n" in succeeded(run("delete", web1))


def test_an_instance_is_found_by_its_records_name(
    run: Run, url: str, domains: Path, instance_id: str
) -> None:
    run("put", instance_id, "--name", "my db")
    run("put", OTHER_INSTANCE, "--name", "another")
    run("put", BROKEN, "--meta", "a=b")
    with sqlite3.connect(database_file(url)) as connection:
        connection.execute("UPDATE records SET metadata = '[' WHERE id = ?", (BROKEN,))
    connection.close()
    assert shown(run, "my db")["id"] == instance_id, "beside a broken record"
    libvirt.write(domains, "db", libvirt.definition(OTHER_INSTANCE, domain="my db"))
    assert shown(run, "my db")["id"] == OTHER_INSTANCE, "libvirt's word comes first"


def test_a_name_that_nobody_has_is_an_error_with_a_remedy(run: Run, web1: str) -> None:
    for name in ["web2", "", "6f1c2b5e3a444a559d0e7a1f0c9b1d01", "-"]:
        for command in ("get", "put", "delete"):
            said = refusal(run(command, "--", name))
            assert said.startswith(
                f"dfmeta: INSTANCE = {name!r} is wrong: it is not a UUID with "
            ), name
            assert "Give the UUID as virsh domuuid" in said, name
        assert succeeded(run("list", "--format", "json")) == "[]\n", "and nothing was made"


def test_of_two_that_have_the_name_none_is_taken(run: Run, domains: Path, instance_id: str) -> None:
    for record_id in (instance_id, OTHER_INSTANCE):
        run("put", record_id, "--name", "twin")
    said = refusal(run("get", "twin"))
    assert "2 records have that name" in said
    assert instance_id in said
    assert OTHER_INSTANCE in said
    for number, record_id in enumerate((instance_id, OTHER_INSTANCE)):
        libvirt.write(domains, str(number), libvirt.definition(record_id, domain="twin"))
    assert "2 libvirt domains have that name" in refusal(run("get", "twin"))
    libvirt.write(domains, "web1", "<domain>")
    assert "web1.xml: not a libvirt domain" in refusal(run("get", "web1"))
    for arguments in ([], [instance_id, "--default"], ["--default", "--default-host", "a"]):
        result = run("get", *arguments)
        assert result.exit_code == 2, arguments
        assert "give one of INSTANCE, --default, --default-host" in result.stderr, arguments
    for option in ("--default-host", "--default-project"):
        for name in ("", " "):
            assert refusal(run("put", option, name)).startswith(f"dfmeta: {option} = ")


def test_defaults_stand_in_the_place_of_an_instance(run: Run) -> None:
    for options, record_id in [
        (["--default"], "default:*"),
        (["--default-host", "KVM1"], "default:host:kvm1"),
        (["--default-project", "p1"], "default:project:p1"),
    ]:
        put = succeeded(run("put", *options, "--meta", "a=1", "--user-data", "-", stdin=b"u"))
        assert put == f"{record_id}: created, with meta, user-data\n", options
        assert shown(run, *options)["meta"] == {"a": "1"}, options
        assert run("get", *options, "--user-data").stdout_bytes == b"u", options
        assert succeeded(run("list", "--format", "json")) == "[]\n", options
        (listed,) = json.loads(succeeded(run("list", "--default", "--format", "json")))
        assert listed["id"] == record_id, options
        assert f"{record_id}: deleted\n" in succeeded(run("delete", *options)), options
        missing = run("get", *options)
        assert missing.exit_code == 1, options
        assert "dfmeta store list --default lists the defaults" in missing.stderr, options


def test_what_is_one_instances_own_is_no_default(run: Run, tmp_path: Path) -> None:
    document = tmp_path / "document"
    document.write_text('{"hostname": "web"}')
    for option, value in (
        ("--hostname", "web"),
        ("--address", "10.0.0.1"),
        ("--project", "p"),
        ("--json", str(document)),
    ):
        said = refusal(run("put", "--default", option, value))
        assert said.startswith(f"dfmeta: {option} = ")
        assert "Leave it out" in said
    assert succeeded(run("list", "--default", "--format", "json")) == "[]\n"
    succeeded(run("put", "--default", "--hostname", "", "--project", ""))


def test_addresses_are_all_there_are(run: Run, url: str, instance_id: str) -> None:
    put = run("put", instance_id, "--address", "10.1.2.3/28", "--address", "2001:db8::9")
    assert succeeded(put) == f"{instance_id}: created, with addresses\n"
    assert shown(run, instance_id)["addresses"] == ["10.1.2.0/28", "2001:db8::9/128"]
    succeeded(run("put", instance_id, "--name", "web"))
    assert len(shown(run, instance_id)["addresses"]) == 2, "what is not named stays"  # type: ignore[arg-type]  # a list
    moved = run("put", OTHER_INSTANCE, "--address", "2001:db8::9")
    assert succeeded(moved) == f"{OTHER_INSTANCE}: created, with addresses\n"
    assert shown(run, instance_id)["addresses"] == ["10.1.2.0/28"]
    assert "changed addresses" in succeeded(run("put", instance_id, "--address", ""))
    with Repository(url) as repository:
        assert repository.addresses(instance_id) == ()
    assert "--address = 'x'" in refusal(run("put", instance_id, "--address", "x"))


def test_vendor_data_and_the_network_config_come_from_files(
    run: Run, tmp_path: Path, instance_id: str
) -> None:
    vendor, network = tmp_path / "vendor", tmp_path / "network"
    vendor.write_text("#cloud-config\npackages: [vim]\n")
    network.write_text("version: 2\n")
    files = ("--vendor-data", str(vendor), "--network-config", str(network))
    put = succeeded(run("put", instance_id, *files))
    assert put == f"{instance_id}: created, with vendor data, network config\n"
    found = shown(run, instance_id)
    assert found["vendor_data"] == "#cloud-config\npackages: [vim]\n"
    assert found["network_config"] == "version: 2\n"
    removed = run("put", instance_id, "--vendor-data", "", "--network-config", "")
    assert "changed vendor data, network config" in succeeded(removed)
    vendor.write_text("packages: [vim]\n")
    network.write_text("- no mapping\n")
    for option, file in (files[:2], files[2:]):
        assert f"{option} = '{file}'" in refusal(run("put", instance_id, option, file))


def test_a_whole_document_replaces_and_the_other_options_change_it(
    run: Run, instance_id: str
) -> None:
    run("put", instance_id, "--meta", "a=1", "--availability-zone", "z", "--project", "p")
    document = b'{"hostname": "h", "meta": {"b": 2}, "odd": [null]}'
    succeeded(run("put", instance_id, "--json", "-", "--hostname", "web", stdin=document))
    written = json.loads(succeeded(run("get", instance_id, "--document")))
    assert written == {"hostname": "web", "meta": {"b": 2}, "odd": [None]}
    assert shown(run, instance_id)["project_id"] == "p", "it is not of the document"
    again = run("put", instance_id, "--json", "-", stdin=json.dumps(written).encode())
    assert succeeded(again) == f"{instance_id}: nothing to change\n"
    assert "--json = '-'" in refusal(run("put", instance_id, "--json", "-", stdin=b"[]"))
    twice = run("put", instance_id, "--json", "-", "--user-data", "-", stdin=b"{}")
    assert twice.exit_code == 2
    assert "standard input can be read once" in twice.stderr


def test_a_put_names_the_parts_of_the_defaults_that_it_ends(
    run: Run, domains: Path, config: Path, instance_id: str
) -> None:
    other = (OTHER_INSTANCE, "--ssh-key", f"{KEY} mine")
    succeeded(run("put", "--default", "--ssh-key", KEY))
    succeeded(run("put", *other[:1], "--hostname", "db"))
    run("delete", OTHER_INSTANCE)
    config.write_text(f"{config.read_text()}defaults = True\n")
    succeeded(run("put", *other))
    text = libvirt.definition(instance_id, domain="web1", project="p1", name="web1")
    libvirt.write(domains, "web1", text)
    succeeded(run("put", "--default", "--ssh-key", KEY, "--user-data", "-", stdin=b"u"))
    succeeded(run("put", "--default-project", "p1", "--meta", "a=1"))
    first = run("put", "web1", "--hostname", "db")
    assert first.exit_code == 0
    assert first.stdout == f"{instance_id} (web1): created, with hostname\n"
    (said,) = first.stderr.splitlines()
    assert said.startswith(f"dfmeta: {instance_id} (web1) had these from the defaults")
    assert ": name, ssh keys, meta, user-data. A record of its own" in said
    assert said.endswith(f"dfmeta store delete {instance_id}")
    again = run("put", "web1", "--meta", "b=2")
    assert (again.exit_code, again.stderr) == (0, ""), "it lives on a record of its own now"


def test_the_schema_is_shown_and_moved(run: Run, url: str) -> None:
    shown = succeeded(run("schema"))
    assert shown == f"schema none, the database is empty; this dfmeta's is {HEAD}\n"
    Repository(url).close()
    assert succeeded(run("schema")) == f"schema {HEAD}; this dfmeta's is {HEAD}\n"
    for revision in ("0001", HEAD):
        moved = succeeded(run("schema", "--to", revision))
        assert moved == f"schema {revision}; this dfmeta's is {HEAD}\n"
        assert schema_of(url) == revision
    line = refusal(run("schema", "--to", "9999"))
    assert line.startswith("dfmeta: --to = '9999' is wrong: ")
    assert "0001, 0002, 0003, 0004" in line
