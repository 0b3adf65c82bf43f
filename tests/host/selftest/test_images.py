"""An interrupted build of an image leaves nothing that a later build takes for complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import images
from tests.harness.netns import run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide an empty cache. mountinfo writes the space in its name as an octal number."""
    folder = tmp_path / "the cache"
    monkeypatch.setattr(images, "CACHE", folder)
    return folder


@pytest.fixture
def mounted(tmp_path: Path, cache: Path) -> Iterator[Path]:
    """Provide a file of this machine, on a file system that an interrupted build leaves mounted.

    One mount is inside the other.
    """
    machine = tmp_path / "machine"
    (machine / "dev").mkdir(parents=True)
    (machine / "dev/null").touch()

    def make(home: Path) -> None:
        (home / "tree").mkdir()
        run(["mount", "--bind", str(machine), str(home / "tree")])
        run(["mount", "--bind", str(machine / "dev"), str(home / "tree/dev")])
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            images.kept("base", ["first"], make)
        yield machine / "dev/null"
    finally:
        for place in reversed(mounts(cache)):
            run(["umount", place])


def mounts(folder: Path) -> list[str]:
    found = run(["findmnt", "--list", "--noheadings", "--output", "TARGET"]).stdout.splitlines()
    return [place for place in found if place.startswith(f"{folder}/")]


def fill(home: Path) -> None:
    (home / "tree").mkdir()
    (home / "tree/file").touch()


def test_a_build_after_an_interrupted_one_is_complete_and_removes_nothing_that_was_mounted(
    cache: Path, mounted: Path
) -> None:
    assert len(mounts(cache)) == 2
    home = images.kept("base", ["first"], fill)
    assert home == cache / "base"
    assert [path.name for path in (home / "tree").iterdir()] == ["file"]
    assert mounts(cache) == []
    assert mounted.exists()


def test_a_complete_directory_is_kept_until_its_definition_changes(cache: Path) -> None:
    home = images.kept("base", ["first"], fill)
    (home / "tree/mark").touch()
    assert images.kept("base", ["first"], fill) == home
    assert (home / "tree/mark").exists()
    images.kept("base", ["second"], fill)
    assert [path.name for path in (home / "tree").iterdir()] == ["file"]


def test_an_incomplete_directory_does_not_have_the_name(cache: Path) -> None:
    def make(home: Path) -> None:
        fill(home)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        images.kept("base", ["first"], make)
    assert not (cache / "base").exists()
