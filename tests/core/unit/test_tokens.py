"""A token should open its own guest's metadata for its time, and nothing else ever."""

from __future__ import annotations

import base64
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.exceptions import StartError
from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.proxy.nova.backend import NovaBackend, NovaSettings
from dfmeta.proxy.tokens import (
    KEY_BYTES,
    KEY_FILE,
    TOKEN_PATH,
    TTL_MAX,
    TokenMode,
    Tokens,
    handshake,
    is_token_path,
    load_key,
)
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, PROJECT, Clock
from tests.harness import nursery

HEADER = "x-aws-ec2-metadata-token"
TTL = "x-aws-ec2-metadata-token-ttl-seconds"
KEY = b"k" * KEY_BYTES
NOW = 1_800_000_000.25
"""Unix time."""
ME = Identity(INSTANCE, PROJECT, "port-1", "tap1", incarnation=1)
OTHERS = [
    replace(ME, instance_id=OTHER_INSTANCE),
    replace(ME, port_id="port-2"),
    replace(ME, instance_id=f"{INSTANCE}p", port_id="ort-1"),
    replace(ME, instance_id=INSTANCE[:-1], port_id=f"{INSTANCE[-1]}port-1"),
]
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
SPELLINGS = [
    TOKEN_PATH,
    "/latest/api/token/",
    "//latest//api///token//",
    "/latest/api/%74oken",
    "/latest%2fapi%2Ftoken",
    "/%6c%61test/api/token",
]
STARTERS = """
import pathlib, sys
from dfmeta.proxy.tokens import load_key
sys.stdin.readline()
print(load_key(pathlib.Path(sys.argv[1])).hex())
"""


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def tokens(clock: Clock) -> Tokens:
    return Tokens(KEY, clock=clock)


def ask(
    tokens: Tokens,
    path: str = "/latest/meta-data/",
    method: str = "GET",
    *,
    mode: TokenMode = TokenMode.OPTIONAL,
    **headers: str,
) -> Answer | None:
    """Ask with headers whose names have ``_`` for ``-``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return handshake(GuestRequest(method, path, headers=named), ME, mode, tokens)


def put(tokens: Tokens, ttl: str = "60", **headers: str) -> Answer:
    answer = ask(tokens, TOKEN_PATH, "PUT", **{TTL: ttl}, **headers)
    assert answer is not None
    return answer


def show(tokens: Tokens, token: str, mode: TokenMode = TokenMode.REQUIRED) -> Answer | None:
    request = GuestRequest("GET", "/latest/meta-data/", headers={HEADER: token})
    return handshake(request, ME, mode, tokens)


# Tokens themselves


@given(st.integers(1, TTL_MAX))
def test_a_token_is_valid_for_its_time(ttl: int) -> None:
    clock = Clock(NOW)
    tokens = Tokens(KEY, clock=clock)
    token = tokens.issue(ME, ttl)
    assert tokens.valid(token, ME)
    clock.now += ttl - 0.01
    assert tokens.valid(token, ME)
    clock.now += 0.02
    assert not tokens.valid(token, ME)


def test_a_token_outlives_a_restart(tokens: Tokens, clock: Clock) -> None:
    token = tokens.issue(ME, 60)
    again = replace(ME, incarnation=9, port_name="tap9", instance_id=INSTANCE.upper())
    assert Tokens(KEY, clock=clock).valid(token, again)


@pytest.mark.parametrize("other", OTHERS, ids=lambda one: f"{one.instance_id} {one.port_id}")
def test_a_token_is_of_no_use_to_another(tokens: Tokens, other: Identity) -> None:
    assert not tokens.valid(tokens.issue(ME, 60), other)
    assert not tokens.valid(tokens.issue(other, 60), ME)


def test_no_two_pairs_of_ids_read_the_same(tokens: Tokens) -> None:
    between = "\0" * 4
    one = replace(ME, instance_id="a", port_id=f"b{between}c")
    other = replace(ME, instance_id=f"a{between}b", port_id="c")
    assert not tokens.valid(tokens.issue(one, 60), other)


def test_a_token_of_another_key_is_none(tokens: Tokens, clock: Clock) -> None:
    assert not tokens.valid(Tokens(b"x" * KEY_BYTES, clock=clock).issue(ME, 60), ME)


def test_a_token_of_a_clock_that_was_far_ahead_is_none(tokens: Tokens, clock: Clock) -> None:
    clock.now += 1e9
    token = tokens.issue(ME, TTL_MAX)
    clock.now -= 1e9
    assert not tokens.valid(token, ME)


@given(st.integers(0, 55), st.sampled_from(ALPHABET))
def test_a_token_has_one_spelling(place: int, letter: str) -> None:
    tokens = Tokens(KEY, clock=Clock(NOW))
    token = tokens.issue(ME, 60)
    changed = token[:place] + letter + token[place + 1 :]
    assert tokens.valid(changed, ME) == (changed == token)


def test_nothing_may_stand_around_a_token(tokens: Tokens) -> None:
    token = tokens.issue(ME, 60)
    standard = base64.b64encode(base64.urlsafe_b64decode(token)).decode()
    around = [f"{token}=", f"{token}\n", f" {token}", f"{token},{token}", f"{token}, {token}"]
    for text in [*around, f"Bearer {token}", token[:-1], token * 2, standard + "==", ""]:
        assert not tokens.valid(text, ME)


@given(
    st.one_of(
        st.text(),
        st.text(ALPHABET, min_size=56, max_size=56),
        st.binary(max_size=99).map(lambda raw: base64.urlsafe_b64encode(raw).decode()),
        st.binary(max_size=99).map(lambda raw: raw.decode("latin-1")),
        st.binary(min_size=32, max_size=32).map(
            lambda mac: base64.urlsafe_b64encode(b"\0\1" + b"\xff" * 8 + mac).decode()
        ),
    )
)
def test_what_a_guest_makes_up_is_no_token(text: str) -> None:
    assert not Tokens(KEY, clock=Clock(NOW)).valid(text, ME)


@pytest.mark.parametrize("text", ["A" * 10_000_000, "\u0661" * 56, "\ud800" * 56, "é" * 56])
def test_odd_text_is_no_token_and_no_error(tokens: Tokens, text: str) -> None:
    assert not tokens.valid(text, ME)


def test_ids_of_any_kind_have_tokens(tokens: Tokens) -> None:
    odd = replace(ME, instance_id="\ud800", port_id="é\0")
    assert tokens.valid(tokens.issue(odd, 60), odd)


def test_the_key_is_in_no_repr(tokens: Tokens) -> None:
    assert "kkk" not in repr(tokens)


# The token's path


@pytest.mark.parametrize("path", SPELLINGS)
def test_the_path_is_known_in_every_spelling(tokens: Tokens, path: str) -> None:
    assert is_token_path(path)
    answer = ask(tokens, path, mode=TokenMode.OFF)
    assert answer is not None
    assert answer.status == 404


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/latest/api", "/latest/api/tokens", "/latest/api/token/x", "/Latest/api/token"),
        *("/2009-04-04/api/token", "/latest/api/%2574oken", "/latest/x/../api/token", "/\ud800"),
    ],
)
def test_other_paths_are_other_paths(path: str) -> None:
    assert not is_token_path(path)


@pytest.mark.parametrize("path", SPELLINGS)
@pytest.mark.parametrize("mode", [TokenMode.OPTIONAL, TokenMode.REQUIRED])
def test_a_put_gives_a_token(tokens: Tokens, path: str, mode: TokenMode) -> None:
    answer = ask(tokens, path, "PUT", mode=mode, **{TTL: "60"})
    assert answer is not None
    assert (answer.status, answer.content_type) == (200, "text/plain")
    assert answer.headers == ((TTL, "60"),)
    assert tokens.valid(answer.body.decode(), ME)


@pytest.mark.parametrize("ttl", ["1", "21600", "00060"])
def test_a_ttl_within_the_bounds_is_echoed(tokens: Tokens, clock: Clock, ttl: str) -> None:
    answer = put(tokens, ttl)
    assert (answer.status, answer.headers) == (200, ((TTL, str(int(ttl))),))
    clock.now += int(ttl) - 0.1
    assert tokens.valid(answer.body.decode(), ME)
    clock.now += 0.2
    assert not tokens.valid(answer.body.decode(), ME)


@pytest.mark.parametrize(
    "ttl",
    [
        *("", "0", "21601", "-1", "+1", "1.0", "1e3", " 60", "60 ", "60\n", "0x10", "1_0"),
        *("60,60", "60, 60", "\u0661", "\u0661\u0660", "\u00b2", "9" * 10_000, "sixty"),
    ],
)
def test_a_ttl_that_is_none_is_400(tokens: Tokens, ttl: str) -> None:
    assert put(tokens, ttl).status == 400


def test_a_put_without_a_ttl_is_400(tokens: Tokens) -> None:
    for headers in ({}, {TTL.replace("-", "_"): "60"}):
        request = GuestRequest("PUT", TOKEN_PATH, headers=headers)
        answer = handshake(request, ME, TokenMode.OPTIONAL, tokens)
        assert answer is not None
        assert answer.status == 400


@pytest.mark.parametrize("name", ["x-forwarded-for", "x_forwarded_for", "forwarded", "via"])
@pytest.mark.parametrize("ttl", ["60", "bad"])
def test_what_a_proxy_passed_on_is_403(tokens: Tokens, name: str, ttl: str) -> None:
    for value in ("10.0.0.1", ""):
        request = GuestRequest("PUT", TOKEN_PATH, headers={TTL: ttl, name: value})
        answer = handshake(request, ME, TokenMode.OPTIONAL, tokens)
        assert answer is not None
        assert answer.status == 403


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "put", ""])
@pytest.mark.parametrize("mode", [TokenMode.OPTIONAL, TokenMode.REQUIRED])
def test_another_method_is_405(tokens: Tokens, method: str, mode: TokenMode) -> None:
    answer = ask(tokens, TOKEN_PATH, method, mode=mode, **{TTL: "60"})
    assert answer is not None
    assert (answer.status, answer.headers) == (405, (("Allow", "PUT"),))


# Every other path


@pytest.mark.parametrize("mode", [TokenMode.OPTIONAL, TokenMode.REQUIRED])
@pytest.mark.parametrize("path", ["/", "/openstack", "/latest/user-data", "/nothing", "/\ud800"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT"])
def test_a_token_lets_a_request_on_and_a_wrong_one_does_not(
    tokens: Tokens, mode: TokenMode, path: str, method: str
) -> None:
    token = tokens.issue(ME, 60)
    assert ask(tokens, path, method, mode=mode, **{HEADER: token}) is None
    for wrong in ("", "x", f"{token},{token}", f"{token}, {token}", tokens.issue(OTHERS[0], 60)):
        answer = ask(tokens, path, method, mode=mode, **{HEADER: wrong})
        assert answer is not None
        assert (answer.status, answer.headers) == (401, (("WWW-Authenticate", "Bearer"),))


def test_without_a_token_the_mode_decides(tokens: Tokens) -> None:
    assert ask(tokens, mode=TokenMode.OFF) is None
    assert ask(tokens, mode=TokenMode.OPTIONAL) is None
    answer = ask(tokens, mode=TokenMode.REQUIRED)
    assert answer is not None
    assert (answer.status, answer.headers) == (401, (("WWW-Authenticate", "Bearer"),))


def test_a_token_with_underscores_in_its_name_is_none(tokens: Tokens) -> None:
    for token in (tokens.issue(ME, 60), "wrong"):
        headers = {HEADER.replace("-", "_"): token}
        request = GuestRequest("GET", "/", headers=headers)
        assert handshake(request, ME, TokenMode.OPTIONAL, tokens) is None
        refused = handshake(request, ME, TokenMode.REQUIRED, tokens)
        assert refused is not None
        assert refused.status == 401


def test_where_tokens_are_off_they_make_no_difference(tokens: Tokens) -> None:
    for token in (tokens.issue(ME, 60), "wrong"):
        assert show(tokens, token, TokenMode.OFF) is None
    for method in ("GET", "PUT", "POST", "DELETE"):
        answer = ask(tokens, TOKEN_PATH, method, mode=TokenMode.OFF, **{TTL: "60"})
        assert answer is not None
        assert answer.status == 404


def test_an_expired_token_is_401(tokens: Tokens, clock: Clock) -> None:
    token = put(tokens, "5").body.decode()
    assert show(tokens, token) is None
    clock.now += 6
    answer = show(tokens, token, TokenMode.OPTIONAL)
    assert answer is not None
    assert answer.status == 401


def test_no_answer_but_the_first_repeats_a_token(tokens: Tokens, clock: Clock) -> None:
    token = put(tokens).body
    clock.now += 61
    refused = show(tokens, token.decode())
    assert refused is not None
    assert token not in refused.body


def test_nova_leaves_tokens_to_the_configuration() -> None:
    view = NovaBackend(NovaSettings((), b"s")).open(
        GuestRequest("GET", "/latest"), ME, deadline=0.0, goes_on=lambda _said: True
    )
    assert view.http_tokens == ""


# The key


def test_a_key_is_made_once_for_the_daemon_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    key = load_key(folder)
    assert len(key) == KEY_BYTES
    assert load_key(folder, make=lambda count: b"x" * count) == key
    assert [one.name for one in folder.iterdir()] == [KEY_FILE]
    assert (folder / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_key_is_made_of_what_chance_gives(tmp_path: Path) -> None:
    assert load_key(tmp_path, make=lambda count: bytes(range(count))) == bytes(range(32))
    assert load_key(tmp_path / "other") != load_key(tmp_path / "another")


def test_processes_that_start_at_once_have_the_same_key(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            nursery.in_shell(["dfmeta", str(tmp_path)], STARTERS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for one in started:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    keys = {one.communicate(timeout=60)[0] for one in started}
    assert keys == {f"{load_key(tmp_path).hex()}\n"}
    assert [one.name for one in tmp_path.iterdir()] == [KEY_FILE]


def test_of_two_that_make_one_the_first_wins(tmp_path: Path) -> None:
    def make_late(count: int) -> bytes:
        (tmp_path / KEY_FILE).write_bytes(b"f" * count)
        return b"s" * count

    assert load_key(tmp_path, make=make_late) == b"f" * KEY_BYTES


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o700, 0o666])
def test_a_key_that_others_may_read_is_narrowed_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    key = load_key(tmp_path)
    file = tmp_path / KEY_FILE
    file.chmod(mode)
    assert load_key(tmp_path) == key
    assert file.stat().st_mode & 0o777 == 0o600
    assert str(file) in caplog.text
    assert repr(key) not in caplog.text
    assert key.hex() not in caplog.text
    caplog.clear()
    load_key(tmp_path)
    assert not caplog.text


@pytest.mark.parametrize("content", [b"", b"s" * 31, b"s" * 33, b"s" * 1_000_000])
def test_a_file_that_holds_no_key_stops_the_start(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / KEY_FILE
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(StartError, match=r"token.key, .* is not 32 bytes long. Remove it"):
        load_key(tmp_path)
    assert file.read_bytes() == content


def test_what_is_no_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).mkdir()
    with pytest.raises(StartError, match="Is a directory"):
        load_key(tmp_path)
    (tmp_path / KEY_FILE).rmdir()
    os.mkfifo(tmp_path / KEY_FILE)
    with pytest.raises(StartError, match="it is not a regular file"):
        load_key(tmp_path)
    (tmp_path / KEY_FILE).unlink()
    (tmp_path / KEY_FILE).symlink_to("nowhere")
    with pytest.raises(StartError, match="No such file"):
        load_key(tmp_path)


def test_a_folder_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="Not a directory"):
        load_key(tmp_path / "file" / "folder")


def test_a_key_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    # The tests run as root, whom neither mode nor quota stops.
    monkeypatch.setattr("dfmeta.proxy.tokens.os.fsync", refuse)
    with pytest.raises(StartError, match="No space left"):
        load_key(tmp_path)
    assert list(tmp_path.iterdir()) == []
