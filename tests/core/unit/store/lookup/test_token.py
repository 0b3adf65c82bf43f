"""A token in a file should be shown to the other store, and to nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dfmeta.exceptions import ConfigError, LookupAwayError
from dfmeta.store.db.repository import Repository
from dfmeta.store.lookup.token import TOKEN_MAX, FileToken
from dfmeta.wiring import lookup as from_configuration
from tests.core.unit.store.lookup.support import METADATA, USERDATA, metadata, userdata
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, Load
from tests.harness.other_store import OtherStore

SECRET = "dfm_a-token-nobody-may-see"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def test_each_question_carries_the_token_that_the_file_has_then(
    load: Load, repository: Repository, store: OtherStore, file: Path
) -> None:
    store.answers = {METADATA: metadata(), USERDATA: userdata()}
    conf = load(store__lookup_base_url=store.url, store__lookup_token_file=str(file))
    puller = from_configuration.build(conf, repository)
    assert puller is not None
    assert puller.get(INSTANCE) is not None
    assert {asked.headers["authorization"] for asked in store.asked} == {f"Bearer {SECRET}"}
    store.asked.clear()
    file.write_text("another")
    puller.get(OTHER_INSTANCE)
    assert {asked.headers["authorization"] for asked in store.asked} == {"Bearer another"}
    puller.close()


@pytest.mark.parametrize(
    "content", ["", "\n", "two words", "two\nlines", "\N{SNOWMAN}", "a" * (TOKEN_MAX + 1)]
)
def test_a_file_without_one_token_is_away_and_not_repeated(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(LookupAwayError, match="must contain one token") as caught:
        FileToken(file, "https://store").get(deadline=0)
    assert "words" not in str(caught.value)


def test_a_file_that_is_gone_is_away(file: Path) -> None:
    file.unlink()
    with pytest.raises(LookupAwayError, match="No such file"):
        FileToken(file, "https://store").get(deadline=0)


@pytest.mark.parametrize("how", ["missing", "readable by all"])
def test_a_file_that_cannot_be_used_stops_the_start(
    load: Load, repository: Repository, file: Path, how: str
) -> None:
    if how == "missing":
        file.unlink()
    else:
        file.chmod(0o644)
    conf = load(store__lookup_base_url="https://store", store__lookup_token_file=str(file))
    with pytest.raises(ConfigError, match="lookup_token_file") as caught:
        from_configuration.build(conf, repository)
    assert SECRET not in str(caught.value)
