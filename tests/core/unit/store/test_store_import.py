"""An import should take all that is right, name what is not, and write no record by half."""

import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import pytest

from dfmeta.cli import store_import
from dfmeta.store.api.checks import Seed
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.support import KEY, Run
from tests.core.unit.support import OTHER_INSTANCE
from tests.harness import domains as libvirt


def write_seed(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", "-")).write_text(text)
    return folder


def write_lines(file: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("".join(f"{text}\n" for text in texts))
    return file


def records(url: str) -> dict[str, dict[str, object]]:
    with Repository(url) as repository:
        by_id = {}
        for summary in repository.list():
            record = repository.get(summary.id)
            assert record is not None
            document = json.loads(record.metadata or "null")
            addresses = repository.addresses(summary.id)
            by_id[record.id] = {"is": document, "userdata": record.userdata, "at": addresses}
    return by_id


# Seeds


def test_a_folder_of_seeds_is_a_record_for_each(
    run: Run, url: str, tmp_path: Path, domains: Path, instance_id: str
) -> None:
    libvirt.write(domains, "web1", libvirt.definition(instance_id, domain="web1"))
    seeds = tmp_path / "seeds"
    meta_data = "instance-id: iid-1\nlocal-hostname: www\n"
    write_seed(seeds / "web1", meta_data=meta_data, user_data="u", vendor_data="#cloud-config\n")
    write_seed(seeds / OTHER_INSTANCE.upper(), meta_data=f"instance-id: {OTHER_INSTANCE}\nodd: 1\n")
    (seeds / ".git").mkdir()
    (seeds / "README").write_text("not a seed")
    result = run("import", str(seeds))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        (
            f"{seeds}/{OTHER_INSTANCE.upper()}: {OTHER_INSTANCE}, by its directory's name: empty; "
            "left out: odd"
        ),
        f"{seeds}/web1: {instance_id}, by its directory's name: hostname, vendor data, user-data",
        "imported: 2 seeds, 0 lines",
    ]
    stored = records(url)
    # The guest knows itself by the id: it is not to take itself for a new one.
    document = {"hostname": "www", "vendor_data": "#cloud-config\n", "id": "iid-1"}
    assert stored[instance_id] == {"is": document, "userdata": b"u", "at": ()}
    assert stored[OTHER_INSTANCE] == {"is": {}, "userdata": None, "at": ()}


def test_seed_folder_names_its_instance(run: Run, tmp_path: Path, domains: Path) -> None:
    for meta_data, why in [
        ("instance-id: web1\n", "its instance-id"),
        ("instance-id: iid-1\nlocal-hostname: web1\n", "its local-hostname"),
    ]:
        libvirt.write(domains, "web1", libvirt.definition(OTHER_INSTANCE, domain="web1"))
        seed = write_seed(tmp_path / "seed", meta_data=meta_data)
        result = run("import", str(seed))
        assert (result.exit_code, result.stderr) == (0, ""), meta_data
        assert result.stdout.startswith(f"{seed}: {OTHER_INSTANCE}, by {why}: "), meta_data


def test_a_folder_may_have_the_name_of_a_record(run: Run, url: str, tmp_path: Path) -> None:
    seed = write_seed(tmp_path / "web9", meta_data="local-hostname: a\n")
    missing = run("import", str(seed))
    assert missing.exit_code == 1
    assert "or of a record: name the directory after the instance" in missing.stderr
    run("put", OTHER_INSTANCE, "--name", "web9")
    for words in (("--dry-run", str(seed)), (str(seed),)):
        result = run("import", *words)
        assert (result.exit_code, result.stderr) == (0, "")
        assert f"{OTHER_INSTANCE}, by the record of its directory's name: hostname" in result.stdout
    (stored,) = records(url).values()
    assert stored["is"] == {"hostname": "a", "name": "web9"}
    run("put", "7a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10", "--name", "web9")
    assert "2 records have the name web9" in run("import", str(seed)).stderr


def test_seed_replaces_a_record_but_for_other_members(run: Run, url: str, tmp_path: Path) -> None:
    run("put", OTHER_INSTANCE, "--meta", "a=1", "--user-data", "-", stdin=b"before")
    run("put", OTHER_INSTANCE, "--address", "10.0.0.1")
    run("import", str(write_seed(tmp_path / OTHER_INSTANCE, meta_data="local-hostname: a\n")))
    (record,) = records(url).values()
    assert record == {"is": {"hostname": "a"}, "userdata": None, "at": ("10.0.0.1/32",)}


def test_what_is_wrong_with_seeds_is_named_and_the_rest_goes_on(
    run: Run, url: str, tmp_path: Path, domains: Path, instance_id: str
) -> None:
    libvirt.write(domains, "web1", libvirt.definition(instance_id, domain="web1"))
    seeds = tmp_path / "seeds"
    write_seed(seeds / "a-nobody", meta_data="local-hostname: nobody\n")
    write_seed(seeds / "b-broken", meta_data="a: [", user_data="secret")
    write_seed(seeds / "c-empty")
    write_seed(seeds / "d-other" / "nested", meta_data="")
    write_seed(seeds / "web1", meta_data="", user_data="u")
    write_seed(seeds / "x-again", meta_data="local-hostname: web1\n")
    write_seed(seeds / "y" / OTHER_INSTANCE, meta_data=f"instance-id: {instance_id}\n")
    (seeds / "z").mkdir()
    (seeds / "z" / "user-data").mkdir()
    result = run("import", str(seeds), str(seeds / "y"), str(tmp_path / "missing"), str(domains))
    assert result.exit_code == 1
    causes = [line.removeprefix(f"dfmeta: {seeds}/") for line in result.stderr.splitlines()]
    assert causes[0].startswith("a-nobody: neither its directory's name nor its instance-id")
    assert causes[1].startswith("b-broken: meta-data: it is not YAML")
    assert causes[2].startswith("c-empty: it is not a seed: it has neither meta-data nor user-data")
    assert causes[3].startswith("d-other: it is not a seed")
    assert causes[4] == f"x-again: {seeds}/web1 is for instance {instance_id} too"
    assert causes[5].startswith("y: it is not a seed")
    assert causes[6] == "z/user-data: Is a directory"
    text = f"y/{OTHER_INSTANCE}: its directory's name is of instance {OTHER_INSTANCE}, its"
    assert causes[7].startswith(text)
    assert causes[8] == f"dfmeta: {tmp_path}/missing: No such file or directory"
    assert causes[9].startswith(f"dfmeta: {domains}: it contains no seed")
    assert causes[10].startswith("dfmeta: store: 10 items not imported. ")
    assert "secret" not in result.stderr
    assert result.stdout.splitlines()[-1] == "imported: 1 seeds, 0 lines"
    assert list(records(url)) == [instance_id]


def test_a_seed_cannot_contain_files_of_another_user(
    run: Run, url: str, tmp_path: Path, instance_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ours").write_text("secret")
    seed = write_seed(tmp_path / "seeds" / instance_id, meta_data="local-hostname: a\n")
    (tmp_path / "link").symlink_to(seed)
    taken = run("import", str(tmp_path / "link"))
    assert (taken.exit_code, taken.stderr) == (0, ""), "by the directory's own name"
    assert records(url)[instance_id]["is"] == {"hostname": "a"}
    run("delete", instance_id)
    for make in (lambda file: file.symlink_to(tmp_path / "ours"), os.mkfifo):
        make(seed / "vendor-data")
        result = run("import", str(tmp_path / "seeds"))
        assert result.exit_code == 1
        assert "secret" not in result.output
        assert records(url) == {}
        (seed / "vendor-data").unlink()
    ours = write_seed(tmp_path / "not-theirs", meta_data="", user_data="secret")
    link = tmp_path / "more" / "web1"
    link.parent.mkdir()
    link.symlink_to(ours)
    parse = store_import.parse_seed

    def parse_late(files: Mapping[str, bytes]) -> Seed:
        link.unlink()
        link.symlink_to(seed)
        return parse(files)

    monkeypatch.setattr(store_import, "parse_seed", parse_late)
    result = run("import", str(tmp_path / "more"))
    assert result.exit_code == 1
    assert f"{link}: neither its directory's name nor its instance-id" in result.stderr
    assert records(url) == {}, "a link that changes meanwhile"


# Lines


def test_an_old_line_is_counted_and_a_long_one_passed_over(
    run: Run, config: Path, tmp_path: Path, instance_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        {"id": instance_id, "metadata": {"updated_at": f"2026-01-0{day}T00:00:00Z"}}
        for day in (2, 1, 3)
    ]
    file = write_lines(tmp_path / "records.jsonl", *lines, {**lines[0], "x": "x" * 250})
    monkeypatch.setattr(store_import, "LINE_MAX", 200)
    result = run("import", str(file))
    expected = "imported: 0 seeds, 3 lines, 1 of them older than the store's records\n"
    assert result.stdout == expected
    assert result.stderr.startswith(f"dfmeta: {file}:4: it has more than 200 bytes\n")
    config.write_text(f"[store]\nconnection = sqlite:///{tmp_path}\n")
    result = run("import", str(file))
    assert result.exit_code == 1
    assert "not a regular file" in result.stderr, "a database that fails ends the import"
    assert "imported" not in result.stdout


def test_malformed_keys_are_counted(run: Run, tmp_path: Path, instance_id: str) -> None:
    odd = {"ssh_keys": ["web1", KEY], "public_keys": {"a": "b"}}
    file = write_lines(tmp_path / "records.jsonl", {"id": instance_id, "metadata": odd})
    result = run("import", str(file))
    assert (result.exit_code, result.stdout) == (
        0,
        "imported: 0 seeds, 1 lines; left out: 2 of their keys, which are none\n",
    )


def test_wrong_line_has_its_number(run: Run, url: str, tmp_path: Path, instance_id: str) -> None:
    file = write_lines(
        tmp_path / "records.jsonl",
        {"id": instance_id, "metadata": {"n": 1}},
        "{",
        {"id": "web1", "metadata": {}},
        {"id": OTHER_INSTANCE, "userdata": 7},
        {"id": OTHER_INSTANCE, "metadata": {"n": 2}},
    )
    result = run("import", str(file))
    assert result.exit_code == 1
    *causes, last = result.stderr.splitlines()
    assert [cause.partition(": it")[0] for cause in causes] == [
        f"dfmeta: {file}:{number}" for number in (2, 3, 4)
    ]
    assert last.startswith("dfmeta: store: 3 items not imported. ")
    assert result.stdout == "imported: 0 seeds, 2 lines\n"
    assert [record["is"] for record in records(url).values()] == [{"n": 2}, {"n": 1}]


def test_refused_line_costs_itself(run: Run, url: str, tmp_path: Path, instance_id: str) -> None:
    run("put", OTHER_INSTANCE, "--meta", "a=b")
    with Repository(url) as repository:
        repository.delete(instance_id)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute(
            f"CREATE TRIGGER t BEFORE UPDATE ON records WHEN NEW.id = '{OTHER_INSTANCE}'"
            " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )
    connection.close()
    others = [f"00000000-0000-0000-0000-{number:012}" for number in range(150)]
    lines = [
        {"id": instance, "metadata": {}, "userdata": "u"} for instance in [*others, OTHER_INSTANCE]
    ]
    file = write_lines(tmp_path / "records.jsonl", *lines)
    result = run("import", str(file))
    assert result.exit_code == 1
    (refused,) = [line for line in result.stderr.splitlines() if "not this one" in line]
    assert refused.startswith(f"dfmeta: {file}:151: ")
    assert result.stdout == "imported: 0 seeds, 150 lines\n"
    stored = records(url)
    assert len(stored) == 151
    assert stored[OTHER_INSTANCE]["userdata"] is None, "neither half of it"


def test_dry_run_writes_nothing(run: Run, url: str, tmp_path: Path, instance_id: str) -> None:
    seed = write_seed(tmp_path / instance_id, meta_data="local-hostname: a\n")
    file = write_lines(tmp_path / "r.jsonl", {"id": instance_id, "metadata": {}}, "{")
    result = run("import", "--dry-run", str(seed), str(file))
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{seed}: {instance_id}, by its directory's name: hostname",
        "would be imported: 1 seeds, 1 lines",
    ]
    assert f"{file}:2: " in result.stderr
    assert not Path(url.removeprefix("sqlite:///")).exists()
