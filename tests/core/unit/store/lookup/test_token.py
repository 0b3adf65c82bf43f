"""The options should make a client of the other store whose token only that store sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dfmeta.exceptions import ConfigError, LookupAwayError
from dfmeta.store.db.repository import Repository
from dfmeta.store.lookup.token import TOKEN_MAX, FileToken
from dfmeta.wiring import lookup as from_configuration
from tests.core.unit.store.support import named
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, Load
from tests.harness.other_store import OtherStore

SECRET = "dfm_a-token-nobody-may-see"


@pytest.fixture
def server() -> Iterator[OtherStore]:
    with OtherStore() as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def test_each_query_carries_the_current_token_of_the_file(
    load: Load, repository: Repository, server: OtherStore, file: Path
) -> None:
    conf = load(store__lookup_base_url=server.url, store__lookup_token_file=str(file))
    puller = from_configuration.build(conf, repository)
    assert puller is not None
    assert puller.get(INSTANCE) is None
    assert {asked.headers["authorization"] for asked in server.asked} == {f"Bearer {SECRET}"}
    server.asked.clear()
    file.write_text("another")
    puller.get(OTHER_INSTANCE)
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer another"}
    puller.close()


def test_an_unusable_file_is_an_error_that_does_not_repeat_it(file: Path) -> None:
    for content in ("", "\n", "two words", "two\nlines", "\N{SNOWMAN}", "a" * (TOKEN_MAX + 1)):
        file.write_text(content)
        with (
            named(content),
            pytest.raises(LookupAwayError, match="must contain one token") as caught,
        ):
            FileToken(file, "https://store").get(deadline=0)
        assert "words" not in str(caught.value)
    file.unlink()
    with pytest.raises(LookupAwayError, match="No such file"):
        FileToken(file, "https://store").get(deadline=0)


def test_an_unusable_file_stops_the_start(load: Load, repository: Repository, file: Path) -> None:
    conf = load(store__lookup_base_url="https://store", store__lookup_token_file=str(file))
    file.chmod(0o644)
    for _ in ("readable by all", "missing"):
        with pytest.raises(ConfigError, match="lookup_token_file") as caught:
            from_configuration.build(conf, repository)
        assert SECRET not in str(caught.value)
        file.unlink(missing_ok=True)


def test_the_options_make_a_puller(
    load: Load, repository: Repository, server: OtherStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert from_configuration.build(load(), repository) is None
    conf = load(
        store__lookup_base_url=server.url,
        store__lookup_issuer=server.url,
        store__lookup_client_id="me",
        store__lookup_client_secret=SECRET,
        store__lookup_scopes="read,more",
        store__lookup_retries=0,
    )
    puller = from_configuration.build(conf, repository)
    assert puller is not None
    with pytest.raises(LookupAwayError, match="there is no token"):
        puller.get(INSTANCE)
    puller.close()
    assert server.targets() == ["/.well-known/openid-configuration"]
    assert "lookup_issuer is an http" in caplog.text
    assert SECRET not in caplog.text
