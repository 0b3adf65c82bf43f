"""A file in memory should be read only, and a private key's should be empty after its use."""

import fcntl
import os

import pytest

from dfmeta.proxy.engines.haproxy.process import MemoryFile, sealed


def read(descriptor: int) -> bytes:
    return os.pread(descriptor, 100, 0)


def refused_changes(descriptor: int) -> int:
    """How many ways to change a file the kernel refuses."""
    refused = 0
    for change in (
        lambda: os.pwrite(descriptor, b"x", 0),
        lambda: os.ftruncate(descriptor, 0),
        lambda: os.ftruncate(descriptor, 100),
        lambda: fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW),
    ):
        try:
            change()
        except OSError:
            refused += 1
    return refused


def test_sealed_file_cannot_be_changed_even_by_its_owner() -> None:
    reader = sealed("test", b"content")
    assert os.fstat(reader).st_mode & 0o777 == 0o444
    try:
        writer = os.open(f"/proc/self/fd/{reader}", os.O_RDWR)
    except PermissionError:
        writer = reader  # Only root may open it for writing at all.
    assert refused_changes(reader) == refused_changes(writer) == 4
    assert read(reader) == b"content"
    for descriptor in {reader, writer}:
        os.close(descriptor)


def test_emptied_file_is_empty_for_each_of_its_readers() -> None:
    file = MemoryFile("test", b"key")
    readers = [file.reader() for _ in range(2)]
    assert [read(reader) for reader in readers] == [b"key"] * 2
    assert [refused_changes(reader) for reader in readers] == [4] * 2
    file.empty()
    file.empty()
    assert [read(reader) for reader in readers] == [b""] * 2
    for reader in readers:
        os.close(reader)


def test_file_that_cannot_be_sealed_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(PermissionError):
        MemoryFile("test", b"key")
    assert os.listdir("/proc/self/fd") == before
