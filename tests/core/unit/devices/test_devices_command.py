"""``dfmeta devices`` should print, store and write documents, or say in one line why not."""

import gc
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dfmeta.cli.ctl import cli
from dfmeta.store.db.repository import Repository
from tests.core.unit.devices.documents import DATA, load
from tests.harness.domains import status, write

A = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
B = "7a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
MAC = "52:54:00:aa:00:01"
NIC = {"type": "nic", "bus": "pci", "address": "0000:00:03.0", "mac": MAC, "tags": ["lan"]}

Run = Callable[..., Result]


def domain(instance: str = A, *, name: str = "web", slot: int = 3) -> str:
    address = f"<address type='pci' bus='0x00' slot='0x0{slot}' function='0x0'/>"
    nic = f"<interface type='bridge'><mac address='{MAC}'/>{address}</interface>"
    return f"<domain><name>{name}</name><uuid>{instance}</uuid><devices>{nic}</devices></domain>"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    paths = (tmp_path / "run", tmp_path / "etc")
    for path in paths:
        path.mkdir()
    return paths


@pytest.fixture
def run(tmp_path: Path, folders: tuple[Path, Path]) -> Run:
    config = tmp_path / "dfmeta.conf"
    config.write_text(
        f"[df_metadata]\nlibvirt_xml_path = {folders[0]},{folders[1]}\n"
        f"[store]\nconnection = sqlite:///{tmp_path}/store.db\n"
    )

    def invoke(command: str, *args: str, stdin: str | None = None) -> Result:
        line = ["devices", command, "--config-file", str(config), *args]
        return CliRunner().invoke(cli, line, input=stdin)

    return invoke


def printed(result: Result) -> Any:
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def refused(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("dfmeta: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_a_domain_is_found_by_name_uuid_or_file(run: Run, folders: tuple[Path, Path]) -> None:
    path = write(folders[1], "web", domain())
    write(folders[1], "other", domain(B, name="other"))
    (folders[1] / "broken.xml").write_text("<domain>")
    for name in ("web", A, A.upper(), str(path)):
        result = run("from-libvirt", name, "--tag", f"nic:{MAC}=lan")
        assert printed(result) == {"devices": [NIC]}, name
    # A domain that runs counts before one that is defined.
    write(folders[0], "web", status(domain(slot=9)))
    assert printed(run("from-libvirt", "web"))["devices"][0]["address"] == "0000:00:09.0"


def test_a_domain_that_is_not_there_is_one_line(run: Run, folders: tuple[Path, Path]) -> None:
    assert "no such domain" in refused(run("from-libvirt", "web"))
    assert "No such file" in refused(run("from-libvirt", "./web.xml"))
    assert "not a libvirt domain" in refused(run("from-libvirt", "-", stdin="<x/>"))
    write(folders[0], "a", domain(A))
    write(folders[1], "b", domain(B))
    assert "several domains" in refused(run("from-libvirt", "web"))


def test_wrong_rule_is_one_line_that_names_it_and_stores_nothing(run: Run, tmp_path: Path) -> None:
    for rule in ("nic:x=lan", "nonsense", f"nic:{MAC}=a/b"):
        result = run("from-libvirt", "-", "--tag", rule, "--store", stdin=domain())
        assert f"--tag '{rule}'" in refused(result)
    with Repository(f"sqlite:///{tmp_path}/store.db") as repository:
        assert repository.get(A) is None


def test_store_puts_devices_into_the_record_and_keeps_the_rest(run: Run, tmp_path: Path) -> None:
    with Repository(f"sqlite:///{tmp_path}/store.db") as repository:
        repository.put(A, document={"hostname": "web", "devices": [{"type": "gone"}]})
        result = run("from-libvirt", "-", "--tag", f"nic:{MAC}=lan", "--store", stdin=domain())
        assert (result.exit_code, result.stderr) == (0, f"{A}: changed\n")
        record = repository.get(A)
    assert json.loads(result.stdout) == {"devices": [NIC]}
    assert record is not None
    assert json.loads(record.metadata or "") == {"hostname": "web", "devices": [NIC]}


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """A config drive's folder with versions of Nova's."""
    folder = tmp_path / "drive"
    for version in ("2015-10-15", "2016-06-30", "2017-02-22", "2018-08-27", "latest", "content"):
        path = folder / "openstack" / version / "meta_data.json"
        path.parent.mkdir(parents=True)
        path.write_text('{"uuid": "u",  "n": 1.50}\n')
    (folder / "openstack/latest/user_data").write_text("x")
    return folder


def versions(folder: Path) -> dict[str, Any]:
    paths = sorted(folder.glob("openstack/*/meta_data.json"))
    return {path.parent.name: json.loads(path.read_text()).get("devices") for path in paths}


def test_each_version_that_has_devices_gets_what_it_tells(run: Run, drive: Path) -> None:
    name = str(DATA / "nova-meta_data.json")
    result = run("write-config-drive", str(drive), "--file", name)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("written") == 4
    documents = versions(drive)
    assert documents["latest"] == load("nova-meta_data")["devices"]
    assert documents["2018-08-27"] == load("nova-2018-08-27")["devices"]
    assert "vf_trusted" not in json.dumps(documents["2017-02-22"])
    assert "vlan" in json.dumps(documents["2017-02-22"])
    assert "vlan" not in json.dumps(documents["2016-06-30"])
    assert documents["2015-10-15"] is documents["content"] is None


def test_latest_that_is_a_link_is_written_as_its_dated_name_has_it(run: Run, drive: Path) -> None:
    latest = drive / "openstack/latest"
    shutil.rmtree(latest)
    for version, vlan in (("2016-06-30", False), ("2017-02-22", True)):
        latest.unlink(missing_ok=True)
        latest.symlink_to(version)
        result = run("write-config-drive", str(drive), "--file", str(DATA / "nova-meta_data.json"))
        assert (result.exit_code, result.stdout.count("written")) == (0, 3)
        assert latest.is_symlink()
        assert ("vlan" in json.dumps(versions(drive)[version])) is vlan
        assert "vf_trusted" not in json.dumps(versions(drive)["latest"])


def test_nothing_else_of_a_config_drive_changes(run: Run, drive: Path) -> None:
    path = drive / "openstack/latest/meta_data.json"
    path.chmod(0o600)
    before = {file: file.read_bytes() for file in drive.rglob("*") if file.is_file()}
    for _ in range(2):
        result = run("write-config-drive", str(drive), "--file", "-", stdin='{"devices": []}')
        assert result.exit_code == 0
    after = {file: file.read_bytes() for file in drive.rglob("*") if file.is_file()}
    assert after.keys() == before.keys()
    assert path.read_text() == '{"uuid": "u",  "n": 1.50, "devices": []}\n'
    assert path.stat().st_mode & 0o777 == 0o600
    old = drive / "openstack/2015-10-15/meta_data.json"
    assert after[old] == before[old]


def test_an_empty_folder_becomes_a_config_drive_of_the_domain(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    (tmp_path / "web.xml").write_text(domain())
    line = ("--domain", str(tmp_path / "web.xml"), "--tag", f"nic:{MAC}=lan")
    assert run("write-config-drive", str(folder), *line).exit_code == 0
    written = folder / "openstack/latest/meta_data.json"
    assert json.loads(written.read_text()) == {"uuid": A, "devices": [NIC]}


def test_one_broken_file_leaves_all_as_they_were(run: Run, drive: Path) -> None:
    broken = drive / "openstack/latest/meta_data.json"
    broken.write_text("[")
    before = {path: path.read_bytes() for path in drive.rglob("*") if path.is_file()}
    line = refused(run("write-config-drive", str(drive), "--file", "-", stdin='{"devices": []}'))
    assert str(broken) in line
    assert {path: path.read_bytes() for path in drive.rglob("*") if path.is_file()} == before


@pytest.fixture
def without_collection() -> Iterator[None]:
    """Collect no garbage: at the depth of a nested document that of other tests cannot be freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collection")
def test_wrong_documents_and_folders_are_one_line(run: Run, tmp_path: Path, drive: Path) -> None:
    def line(text: str, folder: Path = drive) -> str:
        return refused(run("write-config-drive", str(folder), "--file", "-", stdin=text))

    for text, cause in (
        ("{", "not JSON"),
        ('{"devices": [], "devices": []}', "same name"),
        ("[" * 100_000, "nested too deeply"),
        (" " * (16 << 20) + "{}", "more than 16777216 bytes"),
        ("{}", "has no devices"),
        ('{"devices": [{}]}', "devices[0]: has no type"),
    ):
        assert cause in line(text)
    assert "no such directory" in line('{"devices": []}', tmp_path / "missing")
    for words in ((), ("--domain", "a", "--file", "b"), ("--file", "b", "--tag", "nic:a=b")):
        assert run("write-config-drive", str(drive), *words).exit_code == 2
