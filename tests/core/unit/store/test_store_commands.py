"""``dfmeta store`` should do what it says, say what it did, and lose nothing over a mistake."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dfmeta.cli import common
from dfmeta.cli.ctl import cli
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.support import KEY, Run, database_file, refusal
from tests.core.unit.support import succeeded

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
    found = get()
    assert found["hostname"] == "web1"
    assert found["meta"] == {"a": "1", "b": "2"}
    assert (found["project_id"], found["availability_zone"]) == ("p1", "z")
    again = run("put", instance_id, "--hostname", "web1")
    assert succeeded(again) == f"{instance_id}: nothing to change\n"
    assert "tag devices" in succeeded(run("put", instance_id, "--tag-devices"))
    assert json.loads(succeeded(run("get", instance_id, "--document")))["tag_devices"] is True
    assert "tag devices" in succeeded(run("put", instance_id, "--no-tag-devices"))
    assert "tag_devices" not in json.loads(succeeded(run("get", instance_id, "--document")))
    assert succeeded(run("put", OTHER, "--hostname", "")) == f"{OTHER}: created, empty\n"


def test_a_put_without_a_part_is_refused(run: Run, instance_id: str) -> None:
    for target in (instance_id, "--default"):
        result = run("put", target)
        assert (result.exit_code, result.stdout) == (2, ""), target
        assert "no part of the record is given" in result.stderr, target
        assert run("get", target).exit_code == 1, target


def test_an_empty_value_removes(run: Run, get: Get, instance_id: str) -> None:
    names = ("--hostname", "--name", "--availability-zone", "--project")
    given = [part for name in names for part in (name, "x")]
    empty = [part for name in names for part in (name, "")]
    run("put", instance_id, *given, "--ssh-key", KEY, "--user-data", "-", stdin=b"u")
    removed = run("put", instance_id, *empty, "--ssh-key", "", "--user-data", "")
    assert succeeded(removed).startswith(f"{instance_id}: changed hostname, name")
    found = get()
    stamps = {"id", "created_at", "updated_at"}
    values = [value for key, value in found.items() if key not in stamps]
    assert all(value in (None, False, []) for value in values)


def test_keys_come_as_text_and_from_files(
    run: Run, get: Get, instance_id: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys.pub"
    file.write_text(f"# two\n{KEY} a\n{KEY} b\n")
    assert "ssh keys" in succeeded(
        run("put", instance_id, "--ssh-key", f"@{file}", "--ssh-key", f"{KEY} c")
    )
    assert get()["ssh_keys"] == [f"{KEY} a", f"{KEY} b", f"{KEY} c"]
    succeeded(run("put", instance_id, "--ssh-key", KEY))
    assert get()["ssh_keys"] == [KEY]


def test_a_record_s_word_on_tokens_is_put_shown_and_taken_back(
    run: Run, get: Get, instance_id: str
) -> None:
    run("put", instance_id, "--meta", "a=b")
    assert get()["http_tokens"] is None
    for mode in ("off", "optional", "required"):
        changed = run("put", instance_id, "--http-tokens", mode)
        assert succeeded(changed) == f"{instance_id}: changed http tokens\n"
        assert get()["http_tokens"] == mode
    succeeded(run("put", instance_id, "--name", "web"))
    assert get()["http_tokens"] == "required", "what is not named stays"
    assert "http tokens" in succeeded(run("get", instance_id))
    succeeded(run("put", instance_id, "--http-tokens", "default"))
    assert get()["http_tokens"] is None


def test_userdata_is_bytes_in_and_out(run: Run, instance_id: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 300
    (tmp_path / "user-data").write_bytes(content)
    for source, stdin in ((str(tmp_path / "user-data"), b""), ("-", content[::-1])):
        succeeded(run("put", instance_id, "--user-data", source, stdin=stdin))
        assert run("get", instance_id, "--user-data").stdout_bytes == (stdin or content), source


def test_a_mistake_is_one_line_and_loses_nothing(run: Run, instance_id: str) -> None:
    for arguments, named in [
        (["--hostname", "a_b"], "--hostname = 'a_b'"),
        (["--name", "a\nb"], "--name = 'a\\nb'"),
        (["--project", "\x1b"], "--project = "),
        (["--availability-zone", "x" * 256], "--availability-zone = "),
        (["--ssh-key", "nonsense"], "--ssh-key = 'nonsense'"),
        (["--ssh-key", "@/nonexistent/key"], "--ssh-key = '/nonexistent/key'"),
        (["--meta", "novalue"], "--meta = 'novalue'"),
        (["--http-tokens", "Required"], "--http-tokens = 'Required'"),
        (["--http-tokens", ""], "--http-tokens = ''"),
        (["--user-data", "/nonexistent/file"], "--user-data = '/nonexistent/file'"),
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
        assert refusal(run(command, OTHER), 1) == (
            f"dfmeta: store: no record of {OTHER}. dfmeta store list lists the records "
            "[no-record]\n"
        )
    run("put", instance_id, "--meta", "a=b")
    for part in ("user-data", "password"):
        assert refusal(run("get", instance_id, f"--{part}"), 1) == (
            f"dfmeta: store: {instance_id} has no {part}. dfmeta store get without that option "
            "shows the record [no-record]\n"
        )
    both = run("get", instance_id, "--user-data", "--password")
    assert both.exit_code == 2
    assert "--user-data, --password and --document exclude each other" in both.stderr


def test_list_in_a_pipe_is_aligned_and_whole(run: Run, url: str, instance_id: str) -> None:
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
    rows = json.loads(succeeded(run("list", "--format", "json")))
    assert rows[0].pop("updated_at")
    assert rows[0] == {
        "id": OTHER,
        "hostname": None,
        "name": None,
        "project_id": None,
        "ssh_keys": 0,
        "userdata_bytes": 3,
        "password_set": False,
    }
    with sqlite3.connect(database_file(url)) as connection:
        connection.execute("UPDATE records SET metadata = '[' WHERE id = ?", (OTHER,))
    connection.close()
    listed = succeeded(run("list"))
    assert "(broken document)" in listed
    assert "h" * 63 in listed


@pytest.mark.parametrize("whom", ["an instance", "--default", "--default-host"])
def test_what_delete_prints_puts_the_record_back(
    run: Run, instance_id: str, tmp_path: Path, whom: str
) -> None:
    target = {"an instance": [instance_id], "--default-host": ["--default-host", "kvm 1"]}.get(
        whom, [whom]
    )
    own = ["--hostname", "web", "--project", "p", "--address", "10.0.0.9", "--address", "fd00::/64"]
    options = ["--meta", "a=1", "--http-tokens", "off", "--user-data", "-", "--ssh-key", KEY]
    succeeded(run("put", *target, *options, *(own if whom == "an instance" else []), stdin=b"\xff"))

    def shown() -> tuple[dict[str, object], bytes]:
        (found,) = json.loads(succeeded(run("get", *target, "--format", "json")))
        stamps = {"created_at", "updated_at"}
        kept = {name: value for name, value in found.items() if name not in stamps}
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


def test_delete_keeps_a_copy_where_it_is_told_or_none(
    run: Run, instance_id: str, tmp_path: Path
) -> None:
    run("put", instance_id, "--meta", "a=b")
    assert succeeded(run("delete", instance_id, "--copy", "")) == f"{instance_id}: deleted\n"
    run("put", instance_id, "--meta", "a=b")
    (tmp_path / "file").write_text("")
    refused = run("delete", instance_id, "--copy", str(tmp_path / "file"))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "the copy cannot be written" in refused.stderr
    assert "Nothing was deleted" in refused.stderr
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
    missing = ["store", "list", "--config-file", str(tmp_path / "missing.conf")]
    result = CliRunner().invoke(cli, missing)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "missing.conf" in result.stderr.splitlines()[-1]
    assert CliRunner().invoke(cli, ["nonsense"]).exit_code == 2


def test_a_later_file_overrides_an_earlier_one(config: Path, run: Run, tmp_path: Path) -> None:
    later = tmp_path / "later.conf"
    later.write_text(f"[store]\nconnection = sqlite:///{tmp_path}/other.db\n")
    succeeded(run("put", OTHER, "--meta", "a=b", "--config-file", str(later)))
    assert (tmp_path / "other.db").exists()
    assert OTHER not in succeeded(run("list"))


def test_a_cell_is_one_line_without_control_characters() -> None:
    for value, text in [
        (None, "-"),
        ("", "-"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        ([], "-"),
        (["a", "b"], "a, b"),
        ({"k": "v", "n": None}, "k=v, n=-"),
        ({}, "-"),
        ("\x1b[2J\n", "\\x1b[2J\\n"),
        ({"\x1b": "v"}, "\\x1b=v"),
        ("é", "é"),
    ]:
        assert common.cell_text(value) == text, value


def test_a_body_of_the_api_is_no_document(run: Run, instance_id: str, tmp_path: Path) -> None:
    for userdata in [{}, {"userdata": "x", "http_tokens": "off"}]:
        file = tmp_path / "body.json"
        body = {"id": instance_id, "ipAddresses": [], "metadata": {"hostname": "h"}, **userdata}
        file.write_text(json.dumps(body))
        result = run("put", instance_id, "--json", str(file))
        assert result.exit_code == 2, userdata
        assert "it is a body of the admin API" in result.stderr, userdata
        file.write_text(json.dumps({**body, "hostname": "of a document"}))
        succeeded(run("put", instance_id, "--json", str(file)))
