"""The configuration should give the admin API its guard, or keep it to this host."""

import logging
from pathlib import Path

import pytest

from dfmeta.errors import ConfigError, Forbidden, Unauthorized
from dfmeta.store.auth.caller import Authorizer
from dfmeta.store.auth.tokens import StaticToken, format_line, hash_token
from dfmeta.wiring.store import make_authorizer, require_loopback
from tests.core.unit.support import Load
from tests.harness.issuer import AUDIENCE, Issuer, jwk, rsa_key

KEY = rsa_key("first")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(format_line(StaticToken("one", hash_token("static"), ("read",))))
    path.chmod(0o600)
    return path


def guard(authorizer: Authorizer | None) -> Authorizer:
    assert authorizer is not None
    return authorizer


def test_nothing_configured_asks_for_no_token(load: Load) -> None:
    assert make_authorizer(load()) is None


def test_issuer_goes_with_file(load: Load, tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Issuer() as issuer:
        issuer.keys = [jwk(KEY, kid="rsa")]
        options = {
            "store__token_file": tokens,
            "store__oidc_issuer": issuer.url,
            "store__oidc_audience": AUDIENCE,
            "store__oidc_roles_claim": "realm_access.roles",
        }
        authorizer = guard(make_authorizer(load(**options)))
        assert "an attacker on the network path" in caplog.text, "it is http"
        authorizer.authorize("Bearer static", ("read",))
        assert not issuer.fetches, "what is in the file is nothing to ask the issuer about"
        with pytest.raises(Unauthorized):
            authorizer.authorize("Bearer neither", ("read",))
        token = issuer.token(KEY, realm_access={"roles": ["write"]})
        authorizer.authorize(f"Bearer {token}", ("write",))
        with pytest.raises(Forbidden):
            authorizer.authorize(f"Bearer {token}", ("read",))


def test_a_token_file_that_others_may_read_stops_the_daemon(load: Load, tokens: Path) -> None:
    tokens.chmod(0o644)
    with pytest.raises(ConfigError, match=r"\[store\] token_file.*mode 0644.*chmod 600"):
        make_authorizer(load(store__token_file=tokens))


def test_tokens_are_not_shown(load: Load, tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    authorizer = guard(make_authorizer(load(store__token_file=tokens)))
    said = repr(authorizer)
    for header in ("Bearer static", "Bearer a-wrong-one"):
        with pytest.raises((Unauthorized, Forbidden)) as caught:
            authorizer.authorize(header, ("write",))
        said += f" {caught.value!r} {caught.value} {caught.value.fields}"
    said += caplog.text
    for secret in ("static", "a-wrong-one", hash_token("static")):
        assert secret not in said


def test_without_tokens_the_listener_has_to_be_on_loopback() -> None:
    for listen in (
        *("127.0.0.1:9697", "127.8.9.10:80", "[::1]:9697"),
        *("localhost:9697", "[::ffff:127.0.0.1]:80"),
    ):
        require_loopback(listen)
    for listen in (
        *("0.0.0.0:9697", "[::]:9697", ":9697", "192.0.2.7:9697", "[2001:db8::1]:9697"),
        *("[::ffff:192.0.2.7]:80", "0:9697", "*:9697", "nowhere.invalid:9697", "a..b:9697", ""),
    ):
        with pytest.raises(ConfigError) as caught:
            require_loopback(listen)
        assert caught.value.option == "[df_metadata] admin_listen"
        assert caught.value.value == listen
        assert "token_file" in str(caught.value.remedy)
        assert "oidc_issuer" in str(caught.value.remedy)


def test_a_name_is_on_loopback_when_all_its_addresses_are() -> None:
    require_loopback("here:1", resolve=lambda _host: ["127.0.1.1", "::1"])
    for found in (["127.0.0.1", "192.0.2.7"], ["fe80::1%eth0"], ["nonsense"], []):
        with pytest.raises(ConfigError):
            require_loopback("here:1", resolve=lambda _host, found=found: found)
