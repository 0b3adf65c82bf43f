"""A token should open its own guest's metadata for its time, and nothing else ever."""

import base64
import errno
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.cmd.state_path import TokenKey
from dfmeta.errors import StartError
from dfmeta.model import TTL_MAX, Answer, AnswerTerms, GuestRequest, Identity
from dfmeta.proxy.backends.nova import NovaBackend
from dfmeta.proxy.backends.nova_requests import NovaSettings
from dfmeta.proxy.tokens import (
    KEY_BYTES,
    KEY_FILE,
    TOKEN_PATH,
    TokenMode,
    Tokens,
    handshake,
    is_token_path,
    load_key,
)
from dfmeta.runtime.clock import sleep
from dfmeta.runtime.throttle import LONGEST_PAUSE
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, PROJECT, Clock

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


def refused(tokens: Tokens, path: str, method: str = "GET", **how: Any) -> Answer:
    answer = ask(tokens, path, method, **how)
    assert answer is not None, (path, method, how)
    return answer


def put(tokens: Tokens, ttl: str = "60", **headers: str) -> Answer:
    return refused(tokens, TOKEN_PATH, "PUT", **{TTL: ttl}, **headers)


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


def test_token_is_of_no_use_to_another_guest(tokens: Tokens, clock: Clock) -> None:
    for other in OTHERS:
        assert not tokens.valid(tokens.issue(ME, 60), other), other
        assert not tokens.valid(tokens.issue(other, 60), ME), other
    between = "\0" * 4
    first = replace(ME, instance_id="a", port_id=f"b{between}c")
    other = replace(ME, instance_id=f"a{between}b", port_id="c")
    assert not tokens.valid(tokens.issue(first, 60), other)
    assert not tokens.valid(Tokens(b"x" * KEY_BYTES, clock=clock).issue(ME, 60), ME)


def test_token_issued_by_a_clock_far_ahead_is_invalid(tokens: Tokens, clock: Clock) -> None:
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


def test_token_with_surrounding_text_is_invalid(tokens: Tokens) -> None:
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
def test_invented_token_is_invalid(text: str) -> None:
    assert not Tokens(KEY, clock=Clock(NOW)).valid(text, ME)


def test_odd_text_is_no_token_and_no_error(tokens: Tokens) -> None:
    for text in ("A" * 10_000_000, "\u0661" * 56, "\ud800" * 56, "é" * 56):
        assert not tokens.valid(text, ME)
    odd = replace(ME, instance_id="\ud800", port_id="é\0")
    assert tokens.valid(tokens.issue(odd, 60), odd)
    assert "kkk" not in repr(tokens)


ON = (TokenMode.OPTIONAL, TokenMode.REQUIRED)


def test_path_is_known_in_every_spelling(tokens: Tokens) -> None:
    for path in SPELLINGS:
        assert is_token_path(path), path
        assert refused(tokens, path, mode=TokenMode.OFF).status == 404
        for mode in ON:
            answer = refused(tokens, path, "PUT", mode=mode, **{TTL: "60"})
            assert (answer.status, answer.content_type) == (200, "text/plain"), path
            assert answer.headers == ((TTL, "60"),)
            assert tokens.valid(answer.body.decode(), ME)
    for path in (
        *("/", "/latest/api", "/latest/api/tokens", "/latest/api/token/x", "/Latest/api/token"),
        *("/2009-04-04/api/token", "/latest/api/%2574oken", "/latest/x/../api/token", "/\ud800"),
    ):
        assert not is_token_path(path), path


def test_ttl_within_the_bounds_is_echoed(tokens: Tokens) -> None:
    for ttl in ("1", "21600", "00060"):
        answer = put(tokens, ttl)
        assert (answer.status, answer.headers) == (200, ((TTL, str(int(ttl))),))


def test_missing_or_malformed_ttl_is_400(tokens: Tokens) -> None:
    for ttl in (
        *("", "0", "21601", "-1", "+1", "1.0", "1e3", " 60", "60 ", "60\n", "0x10", "1_0"),
        *("60,60", "60, 60", "\u0661", "\u0661\u0660", "\u00b2", "9" * 10_000, "sixty"),
    ):
        assert put(tokens, ttl).status == 400, ttl
    assert refused(tokens, TOKEN_PATH, "PUT").status == 400
    request = GuestRequest("PUT", TOKEN_PATH, headers={TTL.replace("-", "_"): "60"})
    answer = handshake(request, ME, TokenMode.OPTIONAL, tokens)
    assert answer is not None
    assert answer.status == 400


def test_forwarded_request_for_a_token_is_403(tokens: Tokens) -> None:
    for name in ("x-forwarded-for", "x_forwarded_for", "forwarded", "via"):
        for headers in ({TTL: "60", name: "10.0.0.1"}, {TTL: "bad", name: ""}):
            request = GuestRequest("PUT", TOKEN_PATH, headers=headers)
            answer = handshake(request, ME, TokenMode.OPTIONAL, tokens)
            assert answer is not None, headers
            assert answer.status == 403, headers


def test_other_method_is_405(tokens: Tokens) -> None:
    for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "put", ""):
        for mode in ON:
            answer = refused(tokens, TOKEN_PATH, method, mode=mode, **{TTL: "60"})
            assert (answer.status, answer.headers) == (405, (("Allow", "PUT"),)), method


UNAUTHORIZED = (401, (("WWW-Authenticate", "Bearer"),))


def test_valid_token_passes_and_wrong_token_is_401(tokens: Tokens) -> None:
    token = tokens.issue(ME, 60)
    wrong = ("", "x", f"{token},{token}", f"{token}, {token}", tokens.issue(OTHERS[0], 60))
    for mode in ON:
        for path in ("/", "/openstack", "/latest/user-data", "/nothing", "/\ud800"):
            for method in ("GET", "HEAD", "POST", "PUT"):
                assert ask(tokens, path, method, mode=mode, **{HEADER: token}) is None
                for text in wrong:
                    answer = refused(tokens, path, method, mode=mode, **{HEADER: text})
                    assert (answer.status, answer.headers) == UNAUTHORIZED, (path, text)


def test_without_a_token_the_mode_decides(tokens: Tokens) -> None:
    assert ask(tokens, mode=TokenMode.OFF) is None
    assert ask(tokens, mode=TokenMode.OPTIONAL) is None
    answer = refused(tokens, "/", mode=TokenMode.REQUIRED)
    assert (answer.status, answer.headers) == UNAUTHORIZED
    # A header with underscores is another header.
    request = GuestRequest("GET", "/", headers={HEADER.replace("-", "_"): tokens.issue(ME, 60)})
    assert handshake(request, ME, TokenMode.OPTIONAL, tokens) is None
    assert handshake(request, ME, TokenMode.REQUIRED, tokens) == answer


def test_disabled_tokens_make_no_difference(tokens: Tokens) -> None:
    for token in (tokens.issue(ME, 60), "wrong"):
        assert ask(tokens, mode=TokenMode.OFF, **{HEADER: token}) is None
    for method in ("GET", "PUT", "POST", "DELETE"):
        assert refused(tokens, TOKEN_PATH, method, mode=TokenMode.OFF, **{TTL: "60"}).status == 404


def test_nova_leaves_tokens_to_the_configuration() -> None:
    request = GuestRequest("GET", "/latest")
    view = NovaBackend(NovaSettings((), b"s")).open(request, ME, AnswerTerms(0.0))
    assert view.http_tokens == ""


def test_a_key_is_made_once_for_the_daemon_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    key = load_key(folder)
    assert key is not None
    assert len(key) == KEY_BYTES
    assert load_key(folder, make=lambda count: b"x" * count) == key
    assert [path.name for path in folder.iterdir()] == [KEY_FILE]
    assert (folder / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_key_is_made_of_random_bytes(tmp_path: Path) -> None:
    assert load_key(tmp_path, make=lambda count: bytes(range(count))) == bytes(range(32))
    assert load_key(tmp_path / "other") != load_key(tmp_path / "another")


def test_first_of_two_concurrent_keys_wins(tmp_path: Path) -> None:
    def make_late(count: int) -> bytes:
        (tmp_path / KEY_FILE).write_bytes(b"f" * count)
        return b"s" * count

    assert load_key(tmp_path, make=make_late) == b"f" * KEY_BYTES


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o700, 0o666])
def test_key_that_others_may_read_is_narrowed_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    key = load_key(tmp_path)
    assert key is not None
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


def fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no room on any disk."""

    def refuse(*_args: object, **_how: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)


def test_key_is_written_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        fill(full)
        key = TokenKey(tmp_path)
        assert f"the disk of {tmp_path} is full" in key.fault
        assert (len(key.value), key.usable) == (KEY_BYTES, b"")
        ready: list[bytes] = []
        key.follow(lambda: ready.append(key.usable))
        sleep(10 * LONGEST_PAUSE)
        assert ready == []
    sleep(LONGEST_PAUSE)
    assert ready == [load_key(tmp_path)] == [key.value]
    assert key.fault == ""


def test_existing_key_needs_no_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = load_key(tmp_path)
    fill(monkeypatch)
    assert TokenKey(tmp_path).usable == key


def test_without_a_key_no_token_is_issued_or_valid() -> None:
    tokens = Tokens(b"", clock=Clock(NOW))
    answer = put(tokens)
    assert (answer.status, answer.headers) == (503, (("Retry-After", "2"),))
    assert put(tokens, ttl="0").status == 400
    forged = base64.urlsafe_b64encode(bytes(42)).decode()
    assert refused(tokens, "/latest/meta-data/", **{HEADER: forged}).status == 401
    with pytest.raises(ValueError, match="no key"):
        tokens.issue(ME, 60)
    tokens.key = KEY
    assert put(tokens).status == 200


def test_file_without_a_key_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / KEY_FILE
    for content in (b"", b"s" * 31, b"s" * 33, b"s" * 1_000_000):
        file.write_bytes(content)
        file.chmod(0o600)
        with pytest.raises(StartError, match=r"token.key, .* is not 32 bytes long. Remove it"):
            load_key(tmp_path)
        assert file.read_bytes() == content
    file.unlink()
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


def test_unwritten_key_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> None:
        raise failure

    # The tests run as root, whom neither mode nor quota stops.
    monkeypatch.setattr("dfmeta.proxy.tokens.os.fsync", refuse)
    failure = OSError(errno.EIO, "Input/output error")
    with pytest.raises(StartError, match="Input/output error"):
        load_key(tmp_path)
    for number in (errno.ENOSPC, errno.EDQUOT):
        failure = OSError(number, "full")
        assert load_key(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
