"""Commands should find the record that is meant, by UUID or name, or say why they do not."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from dfmeta.store.db.repository import Repository
from tests.core.unit.support import OTHER_INSTANCE, succeeded
from tests.harness import domains as libvirt
from tests.host.e2e.support import KEY

Run = Callable[..., Result]


def failed(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    return result.stderr


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
    run: Run, domains: Path, instance_id: str
) -> None:
    run("put", instance_id, "--name", "my db")
    run("put", OTHER_INSTANCE, "--name", "another")
    assert shown(run, "my db")["id"] == instance_id
    libvirt.write(domains, "db", libvirt.definition(OTHER_INSTANCE, domain="my db"))
    assert shown(run, "my db")["id"] == OTHER_INSTANCE, "libvirt's word comes first"


@pytest.mark.parametrize("name", ["web2", "", "6f1c2b5e3a444a559d0e7a1f0c9b1d01", "-"])
def test_a_name_that_nobody_has_is_an_error_with_a_remedy(run: Run, web1: str, name: str) -> None:
    for command in ("get", "put", "delete"):
        said = failed(run(command, "--", name))
        assert said.startswith(f"dfmeta: INSTANCE = {name!r} is wrong: it is not a UUID with ")
        assert "Give the UUID as virsh domuuid" in said
    assert succeeded(run("list", "--format", "json")) == "[]\n", "and nothing was made"


def test_of_two_that_have_the_name_none_is_taken(run: Run, domains: Path, instance_id: str) -> None:
    for record_id in (instance_id, OTHER_INSTANCE):
        run("put", record_id, "--name", "twin")
    said = failed(run("get", "twin"))
    assert "2 records have that name" in said
    assert instance_id in said
    assert OTHER_INSTANCE in said
    for number, record_id in enumerate((instance_id, OTHER_INSTANCE)):
        libvirt.write(domains, str(number), libvirt.definition(record_id, domain="twin"))
    assert "2 libvirt domains have that name" in failed(run("get", "twin"))


def test_a_domain_that_cannot_be_read_is_named(run: Run, domains: Path) -> None:
    libvirt.write(domains, "web1", "<domain>")
    assert "web1.xml: not a libvirt domain" in failed(run("get", "web1"))


def test_a_broken_record_hides_no_name(run: Run, url: str, instance_id: str) -> None:
    run("put", OTHER_INSTANCE, "--meta", "a=b")
    run("put", instance_id, "--name", "web")
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE records SET metadata = '[' WHERE id = ?", (OTHER_INSTANCE,))
    connection.close()
    assert shown(run, "web")["id"] == instance_id


# Defaults


@pytest.mark.parametrize(
    ("options", "record_id"),
    [
        (["--default"], "default:*"),
        (["--default-host", "KVM1"], "default:host:kvm1"),
        (["--default-project", "p1"], "default:project:p1"),
    ],
)
def test_defaults_stand_in_the_place_of_an_instance(
    run: Run, options: list[str], record_id: str
) -> None:
    put = succeeded(run("put", *options, "--meta", "a=1", "--user-data", "-", stdin=b"u"))
    assert put == f"{record_id}: created, with meta, user-data\n"
    assert shown(run, *options)["meta"] == {"a": "1"}
    assert run("get", *options, "--user-data").stdout_bytes == b"u"
    assert succeeded(run("list", "--format", "json")) == "[]\n"
    (listed,) = json.loads(succeeded(run("list", "--default", "--format", "json")))
    assert listed["id"] == record_id
    assert f"{record_id}: deleted\n" in succeeded(run("delete", *options))
    missing = run("get", *options)
    assert missing.exit_code == 1
    assert "dfmeta store list --default lists the defaults" in missing.stderr


def test_what_is_one_instances_own_is_no_default(run: Run, tmp_path: Path) -> None:
    document = tmp_path / "document"
    document.write_text('{"hostname": "web"}')
    for option, value in (
        ("--hostname", "web"),
        ("--address", "10.0.0.1"),
        ("--project", "p"),
        ("--json", str(document)),
    ):
        said = failed(run("put", "--default", option, value))
        assert said.startswith(f"dfmeta: {option} = ")
        assert "Leave it out" in said
    assert succeeded(run("list", "--default", "--format", "json")) == "[]\n"
    succeeded(run("put", "--default", "--hostname", "", "--project", ""))


def test_there_is_one_target(run: Run, instance_id: str) -> None:
    for arguments in ([], [instance_id, "--default"], ["--default", "--default-host", "a"]):
        result = run("get", *arguments)
        assert result.exit_code == 2
        assert "give one of INSTANCE, --default, --default-host" in result.stderr


@pytest.mark.parametrize("option", ["--default-host", "--default-project"])
def test_an_empty_name_has_no_defaults(run: Run, option: str) -> None:
    for name in ("", " "):
        assert failed(run("put", option, name)).startswith(f"dfmeta: {option} = ")


# What a put takes


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
    assert "--address = 'x'" in failed(run("put", instance_id, "--address", "x"))


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
        assert f"{option} = '{file}'" in failed(run("put", instance_id, option, file))


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
    assert "--json = '-'" in failed(run("put", instance_id, "--json", "-", stdin=b"[]"))


def test_standard_input_is_read_once(run: Run, instance_id: str) -> None:
    result = run("put", instance_id, "--json", "-", "--user-data", "-", stdin=b"{}")
    assert result.exit_code == 2
    assert "standard input can be read once" in result.stderr


@pytest.fixture
def defaults_on(config: Path) -> None:
    """The daemon uses defaults."""
    config.write_text(f"{config.read_text()}defaults = True\n")


@pytest.mark.usefixtures("defaults_on")
def test_a_put_says_what_the_instance_loses_of_its_defaults(
    run: Run, domains: Path, instance_id: str
) -> None:
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


@pytest.mark.usefixtures("defaults_on")
def test_a_put_that_has_all_of_the_defaults_takes_nothing_away(run: Run, instance_id: str) -> None:
    succeeded(run("put", "--default", "--ssh-key", KEY))
    succeeded(run("put", instance_id, "--ssh-key", f"{KEY} mine"))


def test_where_defaults_are_not_used_none_are_lost(run: Run, instance_id: str) -> None:
    succeeded(run("put", "--default", "--ssh-key", KEY))
    succeeded(run("put", instance_id, "--hostname", "db"))
