"""``dfmeta token`` should make tokens that work, show them once, and take them back."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dfmeta.cli.common import load_config
from dfmeta.cli.ctl import cli
from dfmeta.cli.token_command import parse_expiry
from dfmeta.errors import Forbidden, RecordError, Unauthorized
from dfmeta.store.auth import caller
from dfmeta.store.auth.tokens import hash_token
from dfmeta.wiring.store import make_authorizer

Run = Callable[..., Result]
NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tokens"


@pytest.fixture
def config(tmp_path: Path, tokens: Path) -> Path:
    path = tmp_path / "dfmeta.conf"
    path.write_text(f"[store]\ntoken_file = {tokens}\n")
    return path


@pytest.fixture
def run(config: Path) -> Run:
    def run(command: str, *arguments: str) -> Result:
        line = ["token", command, "--config-file", str(config), *arguments]
        return CliRunner().invoke(cli, line)

    return run


def rows(run: Run) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = json.loads(run("list", "--format", "json").stdout)
    return listed


def one_line(result: Result, status: int) -> str:
    assert (result.exit_code, result.stdout) == (status, "")
    (line,) = result.stderr.splitlines()
    return line


def test_a_token_that_is_created_works_until_it_is_revoked(run: Run, config: Path) -> None:
    result = run("create", "--scope", "read", "--scope", "metadata:delete:userdata", "--name", "ci")
    assert result.exit_code == 0
    token = result.stdout.removesuffix("\n")
    assert token.startswith("dfm_")
    assert "\n" not in token
    assert result.stderr == "ci: created, without expiry, with read, metadata:delete:userdata\n"
    authorizer = make_authorizer(load_config([str(config)]))
    assert authorizer is not None
    authorizer.authorize(f"Bearer {token}", caller.accepted_scopes("read", "metadata"))
    authorizer.authorize(f"Bearer {token}", caller.accepted_scopes("delete", "userdata"))
    with pytest.raises(Forbidden):
        authorizer.authorize(f"Bearer {token}", caller.accepted_scopes("upsert", "userdata"))
    assert run("revoke", "ci").stdout == "ci: revoked\n"
    with pytest.raises(Unauthorized):
        authorizer.authorize(f"Bearer {token}", caller.accepted_scopes("read", "metadata"))


def test_a_token_is_shown_once_and_its_hash_never(run: Run, tokens: Path) -> None:
    token = run("create", "--scope", "write").stdout.strip()
    listed = run("list").stdout + run("list", "--format", "json").stdout
    assert token not in listed + tokens.read_text()
    assert hash_token(token) in tokens.read_text()
    assert hash_token(token) not in listed
    assert tokens.stat().st_mode & 0o777 == 0o600


def test_list_has_each_tokens_scopes_and_expiry(run: Run) -> None:
    assert rows(run) == []
    run("create", "--scope", "write,delete", "--scope", "read write")
    run("create", "--scope", "read", "--name", "short", "--expires", "9999-12-31T23:59:59+01:00")
    first, second = rows(run)
    listed = (first["name"], first["scopes"], first["expires_at"], first["state"])
    assert listed == ("token-1", ["write", "delete", "read"], None, "valid")
    assert (second["name"], second["expires_at"]) == ("short", "9999-12-31T22:59:59Z")


def test_a_wrong_argument_is_named_and_makes_nothing(run: Run, tokens: Path) -> None:
    for arguments, named in (
        (("--scope", "read", "--scope", "Write"), "--scope = 'Write'"),
        (("--scope", "read", "--expires", "soon"), "--expires = 'soon'"),
        (("--scope", "read", "--expires", "2020-01-31"), "it is in the past"),
        (("--scope", "read", "--name", "a b"), "--name = 'a b'"),
    ):
        assert named in one_line(run("create", *arguments), 2)
        assert not tokens.exists()


@pytest.mark.parametrize("command", [("create", "--scope", "read"), ("list",), ("revoke", "x")])
def test_missing_option_is_named(run: Run, config: Path, command: tuple[str, ...]) -> None:
    config.write_text("")
    assert "[store] token_file" in one_line(run(*command), 2)


def test_end_is_a_duration_or_a_time_to_come() -> None:
    for text, ends in (
        ("90s", NOW + timedelta(seconds=90)),
        ("90m", NOW + timedelta(minutes=90)),
        ("12h", NOW + timedelta(hours=12)),
        ("30d", NOW + timedelta(days=30)),
        (" 52w ", NOW + timedelta(weeks=52)),
        ("2030-02-01", datetime(2030, 2, 1, tzinfo=UTC)),
        ("2030-01-31T12:00:01", NOW + timedelta(seconds=1)),
        ("2030-01-31T13:00:01+01:00", NOW + timedelta(seconds=1)),
    ):
        assert parse_expiry(text, NOW) == ends, text
    for text in (
        *("", "0d", "30", "1y", "-1d", "1.5h", "999999w", "2030-02-30", "2030-01-31T12:00:00Z"),
        *("9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00"),
    ):
        with pytest.raises(RecordError, match="--expires"):
            parse_expiry(text, NOW)
