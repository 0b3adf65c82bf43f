"""A repository should keep what it is given, byte for byte, whichever other processes write."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfmeta.exceptions import ConfigError, StoreError
from dfmeta.store.db.record import merge_patch
from dfmeta.store.db.repository import PAGE, PAGE_TEXT, PutResult, Repository, parse_document
from tests.harness import nursery
from tests.harness.examples import examples

SAME_DATABASE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples(16),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
)


def database_file(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return value


def test_an_unknown_instance_has_no_record(repository: Repository, instance_id: str) -> None:
    assert repository.get(instance_id) is None


def test_an_id_is_found_in_any_case(repository: Repository, instance_id: str) -> None:
    repository.put(instance_id.upper(), document={"hostname": "a"})
    record = repository.get(instance_id.upper())
    assert record is not None
    assert record.id == instance_id
    assert repository.get(instance_id) == record


@SAME_DATABASE
@given(content=st.binary(max_size=3000))
def test_userdata_comes_back_byte_for_byte(
    repository: Repository, instance_id: str, content: bytes
) -> None:
    repository.put(instance_id, userdata=content)
    record = repository.get(instance_id)
    assert record is not None
    assert record.userdata == content


@SAME_DATABASE
@given(document=st.dictionaries(st.text(st.characters(codec="utf-8")), JSON))
def test_a_document_comes_back_as_it_was_put(
    repository: Repository, instance_id: str, document: dict[str, object]
) -> None:
    repository.delete(instance_id)
    repository.put(instance_id, document=document)
    record = repository.get(instance_id)
    assert record is not None
    assert parse_document(record.id, record.metadata) == without_nulls(document)


def test_a_put_changes_only_what_it_names(repository: Repository, instance_id: str) -> None:
    first = repository.put(
        instance_id, document={"hostname": "a", "meta": {"x": "1"}}, userdata=b"u", project_id="p"
    )
    assert first.created
    assert set(first.changed) == {"hostname", "meta", "userdata", "project_id"}
    before = repository.get(instance_id)
    second = repository.put(instance_id, document={"meta": {"y": "2"}})
    after = repository.get(instance_id)
    assert (second.created, second.changed) == (False, ("meta",))
    assert before is not None
    assert after is not None
    assert parse_document(after.id, after.metadata) == {
        "hostname": "a",
        "meta": {"x": "1", "y": "2"},
    }
    assert (after.userdata, after.project_id) == (b"u", "p")
    assert (after.seed, after.created_at) == (before.seed, before.created_at)
    assert after.updated_at > before.updated_at


def test_a_put_that_changes_nothing_leaves_the_record_alone(
    repository: Repository, instance_id: str
) -> None:
    repository.put(instance_id, document={"hostname": "a"}, userdata=b"u")
    before = repository.get(instance_id)
    again = repository.put(instance_id, document={"hostname": "a"}, userdata=b"u")
    assert again == PutResult(created=False, changed=())
    assert repository.get(instance_id) == before


def test_none_removes_and_empty_is_not_none(repository: Repository, instance_id: str) -> None:
    repository.put(instance_id, userdata=b"", project_id="p")
    record = repository.get(instance_id)
    assert record is not None
    assert record.userdata == b""
    assert repository.put(instance_id, userdata=None, project_id=None).changed == (
        "userdata",
        "project_id",
    )
    record = repository.get(instance_id)
    assert record is not None
    assert (record.userdata, record.project_id) == (None, None)


@given(target=JSON, patch=st.dictionaries(st.text(), JSON))
def test_a_merge_patch_leaves_its_arguments_alone_and_applies_once(
    target: object, patch: dict[str, object]
) -> None:
    before = repr((target, patch))
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert repr((target, patch)) == before


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        (["a"], {"a": "b"}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_gives_what_rfc_7396_appendix_a_says(
    target: object, patch: dict[str, object], expected: dict[str, object]
) -> None:
    assert merge_patch(target, patch) == expected


def test_delete_says_whether_there_was_something(repository: Repository, instance_id: str) -> None:
    repository.put(instance_id)
    assert repository.delete(instance_id.upper())
    assert not repository.delete(instance_id)
    assert repository.get(instance_id) is None


def test_list_goes_through_all_pages_in_order(
    repository: Repository,
) -> None:
    ids = sorted(str(uuid.UUID(int=number << 64)) for number in range(2 * PAGE))
    for record_id in ids[::-1]:
        repository.put(record_id, userdata=b"12345")
    found = list(repository.list())
    assert [summary.id for summary in found] == ids
    assert {summary.userdata_bytes for summary in found} == {5}
    assert not any(hasattr(summary, "userdata") for summary in found)


def test_a_page_is_what_follows_an_id(repository: Repository) -> None:
    ids = [str(uuid.UUID(int=number << 64)) for number in range(4)]
    for record_id in ids:
        repository.put(record_id)
    assert [one.id for one in repository.page("")] == ids
    assert [one.id for one in repository.page(ids[1].upper())] == ids[2:]
    between = str(uuid.UUID(int=(1 << 64) + 1))
    assert [one.id for one in repository.page(between)] == ids[2:], "there need be no such record"
    assert repository.page(ids[3]) == []


def test_large_documents_end_a_page_sooner(repository: Repository) -> None:
    ids = [str(uuid.UUID(int=number << 64)) for number in range(6)]
    for record_id in ids:
        repository.put(record_id, document={"x": "x" * (PAGE_TEXT // 2)})
    assert [one.id for one in repository.page("")] == ids[:2]
    assert [one.id for one in repository.page(ids[1])] == ids[2:4]
    assert [one.id for one in repository.list()] == ids


def test_list_of_an_empty_store_is_empty(repository: Repository) -> None:
    assert list(repository.list()) == []


def test_of_many_passwords_at_once_exactly_one_is_kept(
    repository: Repository, instance_id: str
) -> None:
    repository.put(instance_id)
    barrier = threading.Barrier(16)

    def post(number: int) -> bool:
        barrier.wait(timeout=30)
        return repository.set_password(instance_id, b"password %d" % number)

    with ThreadPoolExecutor(16) as pool:
        kept = list(pool.map(post, range(16)))
    assert kept.count(True) == 1
    record = repository.get(instance_id)
    assert record is not None
    assert record.password == b"password %d" % kept.index(True)


def test_a_password_without_a_record_is_not_kept(repository: Repository, instance_id: str) -> None:
    assert not repository.set_password(instance_id, b"x")


def test_writers_at_once_lose_nothing(repository: Repository, instance_id: str) -> None:
    repository.put(instance_id)

    def write(number: int) -> None:
        repository.put(instance_id, document={"meta": {str(number): "x"}})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    record = repository.get(instance_id)
    assert record is not None
    assert len(parse_document(record.id, record.metadata)["meta"]) == 40


def test_secrets_are_in_no_repr(repository: Repository, instance_id: str) -> None:
    repository.put(instance_id, document={"meta": {"m": "hush"}}, userdata=b"hush")
    repository.set_password(instance_id, b"hush")
    assert "hush" not in repr(repository.get(instance_id))
    assert "hush" not in repr(list(repository.list()))


def test_the_files_are_their_owners_alone(url: str, instance_id: str) -> None:
    old = os.umask(0)
    try:
        with Repository(url) as opened:
            opened.put(instance_id, userdata=b"x")
            path = database_file(url)
            modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in path.parent.iterdir()}
            folder = stat.S_IMODE(path.parent.stat().st_mode)
    finally:
        os.umask(old)
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
    assert folder == 0o700


def test_wide_rights_on_an_existing_file_are_narrowed(url: str) -> None:
    Repository(url).close()
    database_file(url).chmod(0o644)
    Repository(url).close()
    assert stat.S_IMODE(database_file(url).stat().st_mode) == 0o600


def test_a_file_put_in_its_place_is_noticed(url: str, instance_id: str, tmp_path: Path) -> None:
    path = database_file(url)
    with Repository(url) as opened:
        opened.put(instance_id, document={"hostname": "old"})
    shutil.copy(path, tmp_path / "backup.db")
    with Repository(url) as opened:
        opened.put(instance_id, document={"hostname": "new"})
        for file in list(path.parent.iterdir()):
            file.unlink()
        with pytest.raises(StoreError, match="No such file"):
            opened.get(instance_id)
        shutil.copy(tmp_path / "backup.db", path)
        record = opened.get(instance_id)
        assert record is not None
        assert parse_document(record.id, record.metadata) == {"hostname": "old"}


def test_a_reader_does_not_wait_for_a_writer(url: str, instance_id: str) -> None:
    with Repository(url) as opened:
        opened.put(instance_id, document={"hostname": "a"})
        writer = sqlite3.connect(database_file(url), isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE records SET metadata = '{}'")
        record = opened.get(instance_id)
        writer.execute("ROLLBACK")
        writer.close()
    assert record is not None
    assert record.metadata == '{"hostname":"a"}'


def test_a_writer_waits_for_another(url: str, instance_id: str) -> None:
    with Repository(url) as opened, ThreadPoolExecutor(1) as pool:
        writer = sqlite3.connect(database_file(url), isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        put = pool.submit(opened.put, instance_id)
        with pytest.raises(TimeoutError):
            put.result(timeout=0.1)
        writer.execute("COMMIT")
        writer.close()
        assert put.result(timeout=30).created


def test_a_writer_does_not_wait_for_ever(url: str, instance_id: str) -> None:
    with Repository(url, seconds=0.05) as opened:
        writer = sqlite3.connect(database_file(url), isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            opened.put(instance_id)
        writer.close()


def test_an_error_repeats_no_userdata(url: str, instance_id: str) -> None:
    with Repository(url) as opened:
        with sqlite3.connect(database_file(url)) as other:
            other.execute("DROP TABLE records")
        other.close()
        with pytest.raises(StoreError) as caught:
            opened.put(instance_id, userdata=b"hush")
    assert "no such table" in str(caught.value)
    assert "hush" not in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x?uri=true",
        "mysql://user:hush@host/db",
        "postgresql://user:hush@host",
        "postgresql://user:hush@host/",
        "postgresql://user:hush@host:bad/db",
        "postgresql+psycopg2://user:hush@host/db",
    ],
)
def test_a_url_that_cannot_work_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="connection") as caught:
        Repository(url)
    assert "hush" not in str(caught.value)


def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a regular file"):
        Repository(f"sqlite:///{tmp_path}")


def test_another_file_is_not_a_database(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(b"these are notes, and not few of them " * 100)
    with pytest.raises(StoreError, match="not a database"):
        Repository(f"sqlite:///{path}")


def test_a_folder_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="store: "):
        Repository(f"sqlite:///{tmp_path}/file/store.db")


UNPRIVILEGED = """
import os, sys
from dfmeta.exceptions import StoreError
from dfmeta.store.db import sqlite
from dfmeta.store.db.repository import Repository
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
try:
    Repository(sys.argv[1])
except StoreError as error:
    print(error)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that each user may enter. pytest's own is closed anew by each run of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_file_that_may_not_be_written_is_said_to_be(open_folder: Path) -> None:
    path = open_folder / "state" / "store.db"
    url = f"sqlite:///{path}"
    Repository(url).close()
    path.parent.chmod(0o555)
    path.chmod(0o400)
    done = subprocess.run(
        nursery.in_shell(["dfmeta", url], UNPRIVILEGED),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    path.parent.chmod(0o700)
    assert "may not read and write" in done.stdout
    assert str(path) in done.stdout


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"a": NaN}', "[" * 100_000])
def test_a_document_that_is_no_json_object_is_an_error(instance_id: str, text: str) -> None:
    with pytest.raises(StoreError, match=instance_id):
        parse_document(instance_id, text)


def test_no_document_is_an_empty_one(instance_id: str) -> None:
    assert parse_document(instance_id, None) == {}


GREEN = """
import eventlet
eventlet.monkey_patch()
import sqlite3, sys
from dfmeta.store.db.repository import Repository
repository = Repository(sys.argv[1])
other = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"), isolation_level=None)
other.execute("BEGIN IMMEDIATE")
waiting = eventlet.spawn(repository.put, "00000000-0000-0000-0000-000000000001")
ticks = 0
while ticks < 20:
    eventlet.sleep(0.01)
    ticks += 1
assert not waiting.dead
other.execute("COMMIT")
assert waiting.wait().created
pool = eventlet.GreenPool(50)
assert all(pool.imap(repository.get, ["00000000-0000-0000-0000-000000000001"] * 200))
repository.close()
print("ok")
"""


def test_a_writer_that_waits_lets_the_hub_run(url: str) -> None:
    done = subprocess.run(
        nursery.in_shell(["dfmeta-store", url], GREEN),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "ok\n", done.stderr


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often")
def test_a_write_is_read_at_once_beside_others_that_read(
    repository: Repository, instance_id: str
) -> None:
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            repository.get(instance_id)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        for number in range(50):
            repository.put(instance_id, document={"hostname": f"a{number}"})
            record = repository.get(instance_id)
            assert record is not None
            assert parse_document(record.id, record.metadata)["hostname"] == f"a{number}"
    finally:
        ended.set()
        for reader in readers:
            reader.join()
