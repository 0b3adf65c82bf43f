"""Listings on a terminal should fold no identifier: where it is narrow, columns go."""

import contextlib
import os
import pty
from collections.abc import Callable, Mapping, Sequence

import pytest

from dfmeta.cli import common, ports_command, token_command
from tests.core.unit.support import INSTANCE, PROJECT

PORT = "tap0123456789a"
LISTINGS: Mapping[str, tuple[Mapping[str, str], Sequence[str], Mapping[str, object]]] = {
    "ports": (
        ports_command.COLUMNS,
        ports_command.DROP,
        {
            "port": PORT,
            "ofport": 12,
            "key": "128.0.0.12",
            "addresses": ["0: 10.0.0.9 52:54:00:12:34:56", "1: 10.0.0.10 52:54:00:12:34:56"],
            "kind": "subport",
            "segmentation_id": 100,
            "parent": "tpi-0a1b2c3d-4e",
            "container": "3f1a9c22",
            "network": "pods",
            "instance": INSTANCE,
            "instance_name": "web1",
            "project": PROJECT,
            "sources": {"instance_id": "ovsdb", "project_id": "ovsdb"},
            "state": "broken: external_ids:vm-uuid is not a UUID: odd and so on",
        },
    ),
    "token list": (
        token_command.COLUMNS,
        token_command.DROP,
        {
            "name": "deployer",
            "scopes": ["metadata:create:metadata", "metadata:read:userdata", "write"],
            "created_at": "2030-01-31T12:00:00Z",
            "expires_at": "2031-01-31T12:00:00Z",
            "state": "valid",
        },
    ),
}


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


def shown(write: Callable[[], None]) -> list[str]:
    main, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream, contextlib.redirect_stdout(stream):
        write()
    parts = []
    # A read may give a part of what was written. EIO: the other end is closed, and all is read.
    with contextlib.suppress(OSError):
        while part := os.read(main, 65536):
            parts.append(part)
    os.close(main)
    return b"".join(parts).decode().replace("\r\n", "\n").splitlines()


def identifiers(row: Mapping[str, object]) -> list[str]:
    """All that an operator copies of a row."""
    return [word.rstrip(",") for value in row.values() for word in common.cell_text(value).split()]


@pytest.mark.parametrize("listing", LISTINGS)
@pytest.mark.parametrize("width", [80, 120, 250])
def test_identifiers_do_not_fold(monkeypatch: pytest.MonkeyPatch, listing: str, width: int) -> None:
    columns, drop, row = LISTINGS[listing]
    monkeypatch.setenv("COLUMNS", str(width))
    heading, _rule, *lines = shown(
        lambda: common.print_rows([row], columns, common.TABLE, drop=drop)
    )
    assert max(map(len, [heading, *lines])) <= width
    text = "\n".join(lines)
    for key, title in columns.items():
        present = title in heading
        assert present or key in drop
        if present:
            assert all(word in text for word in identifiers({key: row[key]}))
    missing = [title for title in columns.values() if title not in heading]
    assert all(title in text.partition("not shown")[2] for title in missing)
    assert ("not shown for lack of space" in text) == bool(missing)
    assert (width == 80) <= bool(missing)
    assert (width == 250) <= (not missing)


def test_least_important_column_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"a": "a" * 10, "b": "b" * 10, "c": "c" * 10}
    headings = {"a": "A", "b": "B", "c": "C"}
    for width, kept in ((34, "A B C"), (33, "A C"), (21, "C"), (5, "C")):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = shown(lambda: common.print_rows([row], headings, common.TABLE, drop=("b", "a")))
        assert lines[0].split() == kept.split()
        assert "cccccccccc" in lines[2], "what does not fit is not folded either"
