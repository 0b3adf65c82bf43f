"""``dfmeta store`` should do what it says to the record that is meant, and lose nothing."""

import json
import shlex
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dfmeta.cli import common
from dfmeta.cli.ctl import cli
from dfmeta.store.db import HEAD
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.support import KEY, Run, database_file, refusal
from tests.core.unit.support import OTHER_INSTANCE, succeeded
from tests.harness import domains as libvirt

OTHER = "00000000-0000-0000-0000-000000000002"
Get = Callable[[], dict[str, object]]


@pytest.fixture
def get(run: Run, instance_id: str) -> Get:
    def get() -> dict[str, object]:
        (row,) = json.loads(run("get", instance_id, "--format", "json").stdout)
        return dict(row)

    return get


def test_put_creates_then_changes_only_what_is_named(run: Run, get: Get, instance_id: str) -> None:
    created = run("put", instance_id, "--hostname", "web1", "--meta", "a=1", "--project", "p1")
    assert succeeded(created) == f"{instance_id}: created, with hostname, meta, project\n"
    changed = run("put", instance_id.upper(), "--meta", "b=2", "--availability-zone", "z")
    assert succeeded(changed) == f"{instance_id}: changed availability zone, meta\n"
    record = get()
    assert record["hostname"] == "web1"
    assert record["meta"] == {"a": "1", "b": "2"}
    assert (record["project_id"], record["availability_zone"]) == ("p1", "z")
    again = run("put", instance_id, "--hostname", "web1")
    assert succeeded(again) == f"{instance_id}: nothing to change\n"
    assert "tag devices" in succeeded(run("put", instance_id, "--tag-devices"))
    assert json.loads(succeeded(run("get", instance_id, "--document")))["tag_devices"] is True
    assert "tag devices" in succeeded(run("put", instance_id, "--no-tag-devices"))
    assert "tag_devices" not in json.loads(succeeded(run("get", instance_id, "--document")))
    assert succeeded(run("put", OTHER, "--hostname", "")) == f"{OTHER}: created, empty\n"


def test_a_put_without_a_part_is_refused(run: Run, instance_id: str) -> None:
    result = run("put", instance_id)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no part of the record is given" in result.stderr
    assert run("get", instance_id).exit_code == 1


def test_empty_text_removes_a_value(run: Run, get: Get, instance_id: str, tmp_path: Path) -> None:
    names = ("--hostname", "--name", "--availability-zone", "--project")
    given = [part for name in names for part in (name, "x")]
    empty = [part for name in names for part in (name, "")]
    file = tmp_path / "keys.pub"
    file.write_text(f"# two\n{KEY} a\n{KEY} b\n")
    run("put", instance_id, *given, "--user-data", str(file), "--http-tokens", "required")
    run("put", instance_id, "--ssh-key", f"@{file}", "--ssh-key", f"{KEY} c")
    assert get()["ssh_keys"] == [f"{KEY} a", f"{KEY} b", f"{KEY} c"]
    assert get()["http_tokens"] == "required", "what is not named stays"
    assert run("get", instance_id, "--user-data").stdout_bytes == file.read_bytes()
    parts = ("--ssh-key", "", "--user-data", "", "--http-tokens", "default")
    removed = run("put", instance_id, *empty, *parts)
    assert succeeded(removed).startswith(f"{instance_id}: changed hostname, name")
    record = get()
    stamps = {"id", "created_at", "updated_at"}
    values = [value for key, value in record.items() if key not in stamps]
    assert all(value in (None, False, []) for value in values)


def test_a_mistake_is_one_line_and_loses_nothing(run: Run, instance_id: str) -> None:
    for arguments, named in [
        (["--hostname", "a_b"], "--hostname = 'a_b'"),
        (["--name", "a\nb"], "--name = 'a\\nb'"),
        (["--project", "\x1b"], "--project = "),
        (["--availability-zone", "x" * 256], "--availability-zone = "),
        (["--ssh-key", "@/nonexistent/key"], "--ssh-key = '/nonexistent/key'"),
        (["--meta", "novalue"], "--meta = 'novalue'"),
        (["--http-tokens", "Required"], "--http-tokens = 'Required'"),
        (["--user-data", "/"], "--user-data = '/'"),
        (["--user-data", "a\0b"], "--user-data = "),
        (["--ssh-key", f"{KEY}\n{KEY}"], "it has a line break in it"),
    ]:
        run("put", instance_id, "--name", "before", "--user-data", "-", stdin=b"before")
        before = run("get", instance_id).stdout
        result = run("put", instance_id, "--name", "after", *arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert result.stderr.startswith("dfmeta: "), arguments
        assert result.stderr.count("\n") == 1, arguments
        assert named in result.stderr, arguments
        assert run("get", instance_id).stdout == before, arguments


def test_get_prints_the_password_only_when_asked(run: Run, url: str, instance_id: str) -> None:
    run("put", instance_id, "--user-data", "-", stdin=b"hush-userdata")
    with Repository(url) as repository:
        repository.set_password(instance_id, b"hush\xff")
    for fmt in ("table", "json"):
        shown = succeeded(run("get", instance_id, "--format", fmt))
        assert "hush" not in shown
    assert "yes" in run("get", instance_id).stdout
    assert run("get", instance_id, "--password").stdout_bytes == b"hush\xff"
    assert "hush" not in succeeded(run("list")) + succeeded(run("list", "--format", "json"))


def test_a_record_or_part_that_is_absent_is_exit_status_1(run: Run, instance_id: str) -> None:
    for command in ("get", "delete"):
        line = refusal(run(command, OTHER), 1)
        assert line.startswith(f"dfmeta: store: no record of {OTHER}. ")
    run("put", instance_id, "--meta", "a=b")
    for part in ("user-data", "password"):
        line = refusal(run("get", instance_id, f"--{part}"), 1)
        assert line.startswith(f"dfmeta: store: {instance_id} has no {part}. ")
    assert run("get", instance_id, "--user-data", "--password").exit_code == 2


def test_list_in_a_pipe_is_aligned_and_whole(run: Run, instance_id: str) -> None:
    assert succeeded(run("list")).split() == [
        "ID", "HOSTNAME", "NAME", "PROJECT", "KEYS", "USER-DATA", "PASSWORD", "UPDATED"
    ]  # fmt: skip
    run("put", instance_id, "--hostname", "h" * 63, "--name", "[bold]x" * 30, "--ssh-key", KEY)
    run("put", OTHER, "--user-data", "-", stdin=b"123")
    heading, first, second = succeeded(run("list")).splitlines()
    assert first.startswith(OTHER)
    assert second.startswith(instance_id)
    assert "h" * 63 in second
    assert "[bold]x" * 30 in second
    assert heading.index("UPDATED") == first.index("20") == second.index("20")
    row = json.loads(succeeded(run("list", "--format", "json")))[0]
    assert (row["id"], row["ssh_keys"], row["userdata_bytes"]) == (OTHER, 0, 3)


@pytest.mark.parametrize("whom", ["an instance", "--default", "--default-host"])
def test_deletes_output_restores(run: Run, instance_id: str, tmp_path: Path, whom: str) -> None:
    target = {"an instance": [instance_id], "--default-host": ["--default-host", "kvm 1"]}.get(
        whom, [whom]
    )
    record = [
        "--hostname",
        "web",
        "--project",
        "p",
        "--address",
        "10.0.0.9",
        "--address",
        "fd00::/64",
    ]
    options = ["--meta", "a=1", "--http-tokens", "off", "--user-data", "-", "--ssh-key", KEY]
    succeeded(
        run("put", *target, *options, *(record if whom == "an instance" else []), stdin=b"\xff")
    )

    def shown() -> tuple[dict[str, object], bytes]:
        (row,) = json.loads(succeeded(run("get", *target, "--format", "json")))
        stamps = {"created_at", "updated_at"}
        kept = {name: value for name, value in row.items() if name not in stamps}
        return kept, run("get", *target, "--user-data").stdout_bytes

    before = shown()
    _deleted, back = succeeded(run("delete", *target)).splitlines()
    assert run("get", *target).exit_code == 1
    words = shlex.split(back.partition("To restore it: dfmeta ")[2])
    succeeded(CliRunner().invoke(cli, words))
    assert shown() == before
    files = [*(tmp_path / "state/deleted").iterdir()]
    assert len(files) == 2
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert (tmp_path / "state/deleted").stat().st_mode & 0o777 == 0o700
    # The next time it has no user-data: an earlier one's is not to stand for it.
    succeeded(run("put", *target, "--user-data", ""))
    assert "--user-data" not in succeeded(run("delete", *target))
    assert len([*(tmp_path / "state/deleted").iterdir()]) == 1


def test_delete_keeps_a_copy_where_wanted(run: Run, instance_id: str, tmp_path: Path) -> None:
    run("put", instance_id, "--meta", "a=b")
    assert succeeded(run("delete", instance_id, "--copy", "")) == f"{instance_id}: deleted\n"
    run("put", instance_id, "--meta", "a=b")
    (tmp_path / "file").write_text("")
    refused = refusal(run("delete", instance_id, "--copy", str(tmp_path / "file")), 1)
    assert "the copy cannot be written" in refused
    succeeded(run("get", instance_id))
    assert f"{tmp_path}/there/" in succeeded(
        run("delete", instance_id, "--copy", str(tmp_path / "there"))
    )
    assert not (tmp_path / "state/deleted").exists()


def test_an_unusable_configuration_is_one_line(config: Path, run: Run, tmp_path: Path) -> None:
    config.write_text("[store]\nconnection = mysql://u:hush@h/d\n")
    line = refusal(run("list"))
    assert line.startswith("dfmeta: option [store] connection = ")
    assert "hush" not in line
    missing = run("list", "--config-file", str(tmp_path / "missing.conf"))
    assert (missing.exit_code, missing.stdout) == (2, "")


def test_a_cell_is_one_line_without_control_characters() -> None:
    for value, text in [
        ("", "-"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        ([], "-"),
        (["a", "b"], "a, b"),
        ({"\x1b": "v", "n": None}, "\\x1b=v, n=-"),
        ("\x1b[2Jé\n", "\\x1b[2Jé\\n"),
    ]:
        assert common.cell_text(value) == text, value


def test_a_body_of_the_api_is_no_document(run: Run, instance_id: str, tmp_path: Path) -> None:
    file = tmp_path / "body.json"
    body = {"id": instance_id, "ipAddresses": [], "metadata": {}, "userdata": "x"}
    file.write_text(json.dumps(body))
    result = run("put", instance_id, "--json", str(file))
    assert result.exit_code == 2
    assert "it is a body of the admin API" in result.stderr
    file.write_text(json.dumps({**body, "hostname": "of a document"}))
    succeeded(run("put", instance_id, "--json", str(file)))


# The record that is meant


def shown(run: Run, *arguments: str) -> dict[str, object]:
    (row,) = json.loads(succeeded(run("get", *arguments, "--format", "json")))
    return dict(row)


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


def test_records_name_is_accepted(run: Run, url: str, domains: Path, instance_id: str) -> None:
    run("put", instance_id, "--name", "my db")
    run("put", OTHER_INSTANCE, "--name", "another")
    run("put", OTHER, "--meta", "a=b")
    with sqlite3.connect(database_file(url)) as connection:
        connection.execute("UPDATE records SET metadata = '[' WHERE id = ?", (OTHER,))
    connection.close()
    assert shown(run, "my db")["id"] == instance_id, "beside a broken record"
    libvirt.write(domains, "db", libvirt.definition(OTHER_INSTANCE, domain="my db"))
    assert shown(run, "my db")["id"] == OTHER_INSTANCE, "libvirt's word comes first"


def test_an_unknown_name_is_an_error_with_a_remedy(run: Run, web1: str) -> None:
    for name in ["web2", "", "6f1c2b5e3a444a559d0e7a1f0c9b1d01"]:
        for command in ("get", "put", "delete"):
            text = refusal(run(command, "--", name))
            assert text.startswith(f"dfmeta: INSTANCE = {name!r} is wrong: "), name
            assert "Give the UUID as virsh domuuid" in text, name


def test_of_two_that_have_the_name_none_is_taken(run: Run, domains: Path, instance_id: str) -> None:
    for record_id in (instance_id, OTHER_INSTANCE):
        run("put", record_id, "--name", "twin")
    text = refusal(run("get", "twin"))
    assert "2 records have that name" in text
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
        assert refusal(run("put", option, " ")).startswith(f"dfmeta: {option} = ")


def test_defaults_stand_in_the_place_of_an_instance(run: Run) -> None:
    for options, record_id in [
        (["--default"], "default:*"),
        (["--default-host", "KVM1"], "default:host:kvm1"),
        (["--default-project", "p1"], "default:project:p1"),
    ]:
        put = succeeded(run("put", *options, "--meta", "a=1"))
        assert put == f"{record_id}: created, with meta\n", options
        assert shown(run, *options)["meta"] == {"a": "1"}, options
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
        text = refusal(run("put", "--default", option, value))
        assert text.startswith(f"dfmeta: {option} = ")
        assert "Leave it out" in text
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


def test_files_give_vendor_data_and_network(run: Run, tmp_path: Path, instance_id: str) -> None:
    vendor, network = tmp_path / "vendor", tmp_path / "network"
    vendor.write_text("#cloud-config\npackages: [vim]\n")
    network.write_text("version: 2\n")
    files = ("--vendor-data", str(vendor), "--network-config", str(network))
    put = succeeded(run("put", instance_id, *files))
    assert put == f"{instance_id}: created, with vendor data, network config\n"
    record = shown(run, instance_id)
    assert record["vendor_data"] == "#cloud-config\npackages: [vim]\n"
    assert record["network_config"] == "version: 2\n"
    vendor.write_text("packages: [vim]\n")
    network.write_text("- no mapping\n")
    for option, file in (files[:2], files[2:]):
        assert f"{option} = '{file}'" in refusal(run("put", instance_id, option, file))


def test_document_replaces_and_other_options_change_it(run: Run, instance_id: str) -> None:
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


def test_put_names_ended_defaults(run: Run, domains: Path, config: Path, instance_id: str) -> None:
    config.write_text(f"{config.read_text()}defaults = True\n")
    succeeded(run("put", "--default", "--ssh-key", KEY))
    succeeded(run("put", OTHER_INSTANCE, "--ssh-key", f"{KEY} mine"))
    text = libvirt.definition(instance_id, domain="web1", project="p1", name="web1")
    libvirt.write(domains, "web1", text)
    succeeded(run("put", "--default", "--ssh-key", KEY, "--user-data", "-", stdin=b"u"))
    succeeded(run("put", "--default-project", "p1", "--meta", "a=1"))
    first = run("put", "web1", "--hostname", "db")
    assert first.exit_code == 0
    (message,) = first.stderr.splitlines()
    assert message.startswith(f"dfmeta: {instance_id} (web1) had these from the defaults")
    assert ": name, ssh keys, meta, user-data. A record of its own" in message
    again = run("put", "web1", "--meta", "b=2")
    assert (again.exit_code, again.stderr) == (0, ""), "it lives on a record of its own now"


def test_the_schema_is_shown(run: Run, url: str) -> None:
    shown = succeeded(run("schema"))
    assert shown == f"schema none, the database is empty; this dfmeta's is {HEAD}\n"
    Repository(url).close()
    assert succeeded(run("schema")) == f"schema {HEAD}; this dfmeta's is {HEAD}\n"
