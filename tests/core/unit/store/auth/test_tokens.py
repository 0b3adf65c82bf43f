"""A request without a valid token and scope should get an error; the file of tokens is followed."""

import base64
import json
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dfmeta.errors import Forbidden, RecordError, TokenFileError, Unauthorized
from dfmeta.store.auth import tokens as static_tokens
from dfmeta.store.auth.caller import (
    INVALID,
    KINDS,
    MALFORMED,
    MISSING,
    Authorizer,
    Client,
    accepted_scopes,
    all_scopes,
)
from dfmeta.store.auth.tokens import (
    FILE_MAX,
    Grant,
    StaticToken,
    TokenFile,
    format_line,
    hash_token,
    parse,
    read_tokens,
)
from tests.core.unit.store.support import named
from tests.harness.tier import CLOCK

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
READ = Grant(("read",), NOW)

Write = Callable[..., Path]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


@pytest.fixture
def write(path: Path) -> Write:
    """Write the file's text, its mode 0600 unless it is said."""

    def write(text: str, mode: int = 0o600) -> Path:
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def scopes(file: TokenFile, token: str) -> frozenset[str] | None:
    """Those of a token, None where the file does not know it."""
    client = file.client(token)
    return None if client is None else client.scopes


def line(name: str, token: str, *, scopes: tuple[str, ...] = ("read",)) -> str:
    return format_line(StaticToken(name, hash_token(token), scopes)) + "\n"


def test_a_token_is_in_the_file_as_its_hash_alone(path: Path) -> None:
    token = static_tokens.new_token()
    static_tokens.add(path, READ, token)
    assert token not in path.read_text()
    assert token.removeprefix(static_tokens.TOKEN_PREFIX) not in path.read_text()
    assert scopes(TokenFile(path), token) == {"read"}
    assert scopes(TokenFile(path), hash_token(token)) is None


def test_tokens_have_256_random_bits() -> None:
    encoded = static_tokens.new_token().removeprefix("dfm_")
    assert len(base64.urlsafe_b64decode(f"{encoded}=")) == 32
    assert static_tokens.new_token() != static_tokens.new_token()


def test_a_change_is_noticed_without_a_restart(path: Path) -> None:
    file = TokenFile(path)
    assert scopes(file, "a") is None, "without a file"
    static_tokens.add(path, READ, "a")
    assert scopes(file, "a") == {"read"}
    static_tokens.add(path, Grant(("write", "delete"), NOW), "b")
    assert (scopes(file, "a"), scopes(file, "b")) == ({"read"}, {"write", "delete"})
    assert static_tokens.remove(path, "token-1")
    assert (scopes(file, "a"), scopes(file, "b")) == (None, {"write", "delete"})
    path.unlink()
    assert scopes(file, "b") is None


def test_broken_file_keeps_former_tokens(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    for broken in [b"{}\n", b"\xff"]:
        path = write(line("a", "a"))
        file = TokenFile(path)
        path.write_bytes(line("a", "a").encode() + broken)
        assert [scopes(file, "a") for _ in range(3)] == [{"read"}] * 3, broken
        complaints = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(complaints) == 1, broken
        assert str(path) in complaints[0].getMessage(), broken
        write(line("b", "b"))
        assert (scopes(file, "a"), scopes(file, "b")) == (None, {"read"}), broken
        caplog.clear()


def test_a_file_that_others_may_read_is_refused_with_a_remedy(write: Write) -> None:
    for mode in (0o640, 0o601):
        path = write(line("a", "a"), mode)
        with pytest.raises(TokenFileError, match=f"mode 0{mode:o}.*chmod 600 {path}"):
            TokenFile(path)
        with pytest.raises(TokenFileError, match="chmod 600"):
            static_tokens.add(path, READ, "b")
        assert path.read_text() == line("a", "a")
    file = TokenFile(write(line("a", "a"), 0o400))
    assert scopes(file, "a") == {"read"}
    write(line("a", "a") + line("b", "b"), 0o666)
    assert (scopes(file, "a"), scopes(file, "b")) == ({"read"}, None), "rights given later"


def test_a_token_ends_at_its_time(path: Path) -> None:
    end = datetime.fromtimestamp(CLOCK.wall() + 60, UTC)
    static_tokens.add(path, Grant(("read",), NOW, expires=end), "a")
    file = TokenFile(path)
    assert scopes(file, "a") == {"read"}
    CLOCK.advance(59)
    assert scopes(file, "a") == {"read"}
    CLOCK.advance(1)
    assert scopes(file, "a") is None


def sound(**members: object) -> str:
    return json.dumps({"name": "a", "sha256": "0" * 64, "scopes": ["read"], **members})


def test_a_wrong_line_is_named_with_what_is_wrong(path: Path) -> None:
    text = f"# deploys\n\n  \n{sound(sha256='AB' * 32, expires='2030-01-31', colour='red')}\r\n"
    (token,) = parse(text, path)
    assert (token.digest, token.expires) == ("ab" * 32, datetime(2030, 1, 31, tzinfo=UTC))
    for text, cause in [
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "not JSON"),
        (sound(name=None), "name is not a string"),
        (sound(name="a b"), "its name is not"),
        (sound(name="a" * 65), "its name is not"),
        (sound(sha256="0" * 63), "sha256 is not"),
        (sound(sha256=5), "sha256 is not"),
        (sound(scopes=[]), "scopes is not"),
        (sound(scopes=["read", 5]), "scopes is not"),
        (sound(scopes=["read write"]), "scopes is not"),
        (sound(expires=5), "expires is not a time"),
        (sound(expires="9999-12-31T23:59:59-24:00"), "expires is not a time"),
        (sound() + "\n" + sound(sha256="1" * 64), "line 2: a line above has the same name"),
        (sound() + "\n" + sound(name="b"), "line 2: a line above has the same name or the same"),
    ]:
        with named(text):
            with pytest.raises(TokenFileError, match=cause) as caught:
                parse(text, path)
            assert "line " in str(caught.value)
            assert "0000" not in str(caught.value)


def test_a_file_that_is_too_large_or_none_is_refused(path: Path, write: Write) -> None:
    write("#" * (FILE_MAX + 1))
    with pytest.raises(TokenFileError, match="it has more than"):
        read_tokens(path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(TokenFileError, match="not a file"):
        read_tokens(path)
    path.unlink()
    path.mkdir(0o700)
    with pytest.raises(TokenFileError, match="Is a directory"):
        read_tokens(path)


def test_others_lines_stay_as_they_are(write: Write) -> None:
    before = f"# mine\n{line('a', 'a')}\n{sound(name='b', note='keep me')}"
    path = write(before)
    static_tokens.add(path, Grant(("read",), NOW, name="c"), "c")
    assert path.read_text().startswith(before + "\n")
    assert static_tokens.remove(path, "a")
    assert static_tokens.remove(path, "c")
    assert path.read_text() == f"# mine\n\n{sound(name='b', note='keep me')}\n"
    assert not static_tokens.remove(path, "c")


def test_a_new_file_is_its_owners_alone_and_a_broken_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "state" / "tokens"
    static_tokens.add(path, READ, "a")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["tokens"]
    with pytest.raises(TokenFileError, match="cannot be written"):
        static_tokens.add(path / "tokens", READ, "a")
    path.write_text("broken\n")
    for change in (
        lambda: static_tokens.add(path, READ, "a"),
        lambda: static_tokens.remove(path, "a"),
    ):
        with pytest.raises(TokenFileError, match="line 1"):
            change()
    assert path.read_text() == "broken\n"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    static_tokens.add(link, READ, "a")
    assert link.is_symlink()
    assert scopes(TokenFile(link), "a") == {"read"}
    target.unlink()
    target.symlink_to(link)
    with pytest.raises(TokenFileError, match="symbolic links"):
        static_tokens.add(link, READ, "b")


def test_a_name_is_given_and_free(path: Path) -> None:
    names = [static_tokens.add(path, READ, token).name for token in "ab"]
    assert static_tokens.add(path, Grant(("read",), NOW, name="ci@host"), "c").name == "ci@host"
    static_tokens.remove(path, "token-1")
    assert [*names, static_tokens.add(path, READ, "d").name] == ["token-1", "token-2", "token-1"]
    for name in ("ci@host", "a b", "-x", "a\n"):
        before = path.read_text()
        with pytest.raises(RecordError, match="--name"):
            static_tokens.add(path, Grant(("read",), NOW, name=name), "e")
        assert path.read_text() == before


# Headers and scopes


class Known:
    """Knows some tokens, and notes those that it was asked for."""

    def __init__(self, **tokens: str) -> None:
        self.tokens = tokens
        self.asked: list[str] = []

    def client(self, token: str) -> Client | None:
        self.asked.append(token)
        known = self.tokens.get(token)
        return None if known is None else Client(f"token {token}", frozenset(known.split()))


def test_a_header_without_a_valid_token_is_refused_in_its_words() -> None:
    for message, headers in (
        (MISSING, [None, "", "\t"]),
        (MALFORMED, ["Bearer ", "Basic dTpw", "token", "Bearertoken", "Bearer\ttoken", " x y"]),
        (INVALID, ["Bearer wrong", "Bearer a b", "Bearer t\xf6ken", "bearer ="]),
        (INVALID, ["Bearer " + "a" * 16385]),
    ):
        for header in headers:
            with named(header), pytest.raises(Unauthorized) as caught:
                Authorizer(Known(token="read")).authorize(header, ("read",))
            assert caught.value.message == message, header
    for header in ("bearer token", "BEARER   token ", " Bearer token"):
        Authorizer(Known(token="read")).authorize(header, ("read",))


def test_a_missing_scope_is_named() -> None:
    for scope in accepted_scopes("upsert", "metadata"):
        Authorizer(Known(token=scope)).authorize(
            "Bearer token", accepted_scopes("upsert", "metadata")
        )
    with pytest.raises(Forbidden):
        Authorizer(Known(token="rea reads READ")).authorize("Bearer token", ("read",))
    authorizer = Authorizer(Known(token="read metadata:delete:userdata"))
    with pytest.raises(Forbidden) as caught:
        authorizer.authorize("Bearer token", accepted_scopes("delete", "metadata"))
    assert caught.value.message == (
        "not authorized, missing required scope. Have: metadata:delete:userdata,read; "
        "Need: write,delete,metadata:delete:metadata"
    )


def test_the_first_verifier_that_knows_a_token_decides() -> None:
    first, second = Known(a="read"), Known(a="write", b="write")
    authorizer = Authorizer(first, second)
    with pytest.raises(Forbidden):
        authorizer.authorize("Bearer a", ("write",))
    authorizer.authorize("Bearer b", ("write",))
    assert (first.asked, second.asked) == (["a", "b"], ["b"])


def test_an_operation_accepts_the_scopes_of_the_original() -> None:
    for kind in KINDS:
        upsert = ("write", "create", "update", f"metadata:create:{kind}", f"metadata:update:{kind}")
        assert accepted_scopes("upsert", kind) == upsert
        assert accepted_scopes("read", kind) == ("read", f"metadata:read:{kind}")
        assert accepted_scopes("delete", kind) == ("write", "delete", f"metadata:delete:{kind}")
    assert len(all_scopes()) == len(set(all_scopes())) == 13
