"""libvirt's files should be read once, each for itself; the store should name projects."""

import os
from pathlib import Path

import eventlet
import pytest

from dfmeta.errors import SourceError, StoreError
from dfmeta.model import Port
from dfmeta.runtime.throttle import FIRST_PAUSE
from dfmeta.sources import domain as module
from dfmeta.sources.domain import Domain, Folders
from dfmeta.sources.libvirt import LibvirtSource
from dfmeta.sources.records import StoreSource
from dfmeta.sources.source import Ownership, PortQuery
from dfmeta.store.db.repository import Repository
from tests.harness.domains import Interface, definition, status, write
from tests.harness.tier import CLOCK

A = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
B = "7a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
PORT = Port(name="tap0", row="r", ofport=1, iface_id="port", mac="m")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    seen: list[bytes] = []
    real = module.parse

    def parse(data: bytes) -> Domain:
        seen.append(data)
        return real(data)

    monkeypatch.setattr(module, "parse", parse)
    return seen


def run(instance: str, *, project: str = "p", name: str = "n") -> str:
    nic = Interface(dev="tap0", iface_id="port", mac="m")
    return status(definition(instance, project=project, name=name, interfaces=[nic]))


def ask(source: LibvirtSource, port: Port = PORT) -> Ownership:
    CLOCK.advance(FIRST_PAUSE)
    return source.find(PortQuery(port, CLOCK.now()))


def test_file_is_parsed_once_for_each_change(tmp_path: Path, parsed: list[bytes]) -> None:
    source = LibvirtSource(Folders([tmp_path, tmp_path / "missing"]))
    assert ask(source) == Ownership()
    write(tmp_path, "a", run(A))
    assert ask(source) == ask(source) == Ownership(A, "p", "n")
    assert len(parsed) == 1
    write(tmp_path, "a", run(B))
    assert ask(source) == Ownership(B, "p", "n")
    (tmp_path / "a.xml").unlink()
    assert ask(source) == Ownership()
    assert len(parsed) == 2


def test_a_broken_file_costs_only_itself(
    tmp_path: Path, parsed: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "0", "<domain>")
    write(tmp_path, "a", run(A))
    (tmp_path / "folder.xml").mkdir()
    (tmp_path / "gone.xml").symlink_to("/nowhere")
    os.mkfifo(tmp_path / "pipe.xml")
    (tmp_path / "other.txt").write_text("x")
    source = LibvirtSource(Folders([tmp_path]))
    assert ask(source).instance_id == A
    assert ask(source).instance_id == A
    assert len(parsed) == 2
    (line,) = [r.getMessage() for r in caplog.records]
    assert "0.xml" in line


def test_unreadable_folder_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module.os, "scandir", refuse)
    with pytest.raises(SourceError, match="Permission denied"):
        ask(LibvirtSource(Folders([tmp_path])))


def test_a_known_instance_has_the_project_of_its_definition(tmp_path: Path) -> None:
    source = LibvirtSource(Folders([tmp_path]))
    write(tmp_path, "a", definition(A, project="p"))
    port = Port(name="x", row="r", ofport=1, instance_id=A)
    assert ask(source, port).project_id == "p"
    assert ask(source) == Ownership()
    unverified = Port(name="x", row="r", ofport=1, instance_id=A, unverified=True)
    assert ask(source, unverified) == Ownership()


def test_questions_at_once_share_a_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a", run(A))
    folders = Folders([tmp_path])
    scans = []
    real = folders.scan
    monkeypatch.setattr(folders, "scan", lambda: scans.append(1) or real())
    source = LibvirtSource(folders)
    pool = eventlet.GreenPool()
    answers = list(pool.imap(lambda _: ask(source), range(200)))
    assert {answer.instance_id for answer in answers} == {A}
    assert len(scans) <= 2


QUESTION = PortQuery(Port(name="tap0", row="r", ofport=1, instance_id=A), 0.0)


def test_a_record_gives_project_and_name(tmp_path: Path) -> None:
    with Repository(f"sqlite:///{tmp_path}/store.db") as repository:
        source = StoreSource(repository.get)
        assert source.find(QUESTION) == Ownership()
        repository.put(A, document={"name": "web\n1"}, project_id="p")
        assert source.find(QUESTION) == Ownership(A, "p", "web 1")
        repository.put(A, document={"name": 5}, project_id=None)
        assert source.find(QUESTION) == Ownership(A)


class Damaged:
    project_id = "a b"
    metadata = "{"


def test_a_damaged_record_gives_what_is_left() -> None:
    assert StoreSource(lambda _id: Damaged()).find(QUESTION) == Ownership(A)


def test_a_database_that_fails_is_told() -> None:
    def fail(_id: str) -> None:
        raise StoreError(cause="locked")

    with pytest.raises(SourceError, match="locked"):
        StoreSource(fail).find(QUESTION)
