"""A SIGHUP should take in what can be changed, keep the rest, and say which is which."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest
from oslo_config import cfg

from dfmeta.conf import daemons
from dfmeta.conf.daemons import AGENT, READS, STORE, Changes
from dfmeta.exceptions import ConfigError
from dfmeta.store.auth.edit import Grant, add, new_token
from dfmeta.store.db.repository import Repository
from dfmeta.wiring.api import StoreApi
from tests.core.unit.store.api.support import INSTANCE, Client
from tests.core.unit.support import Load

PATH = f"/device-metadata/{INSTANCE}"
SECRET = "a secret nobody may see"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(f"sqlite:///{tmp_path}/store.db")


def said(caplog: pytest.LogCaptureFixture, changes: Changes) -> list[tuple[str, str]]:
    with caplog.at_level(logging.INFO):
        changes.tell(logging.getLogger("test"))
    return [(one.levelname, one.getMessage()) for one in caplog.records]


# Which options


def test_every_option_is_read_by_a_daemon() -> None:
    assert READS[AGENT] | READS[STORE] == daemons.EVERY


# What is kept


def test_reloadable_options_are_taken_and_the_rest_is_kept(load: Load) -> None:
    running = load(hold_timeout=8, port=18080, nova_metadata_port=1)
    conf = load(hold_timeout=2, port=18081, integration_bridge="br-other")
    changes = daemons.keep_running_values(conf, running, daemon=AGENT)
    assert changes == Changes(
        taken=("[df_metadata] hold_timeout",),
        waiting=("[df_metadata] port", "[df_metadata] integration_bridge"),
    )
    assert conf.df_metadata.hold_timeout == 2
    assert (conf.df_metadata.port, conf.df_metadata.integration_bridge) == (18080, "br-int")


def test_option_of_the_other_daemon_is_ignored(load: Load) -> None:
    conf = load(port=18081, store__guest_listen="192.0.2.1:80", store__trusted_proxies="192.0.2.9")
    assert daemons.keep_running_values(conf, load(), daemon=AGENT).waiting == (
        "[df_metadata] port",
    )
    conf = load(port=18081, store__guest_listen="192.0.2.1:80", store__trusted_proxies="192.0.2.9")
    assert daemons.keep_running_values(conf, load(), daemon=STORE) == Changes(
        taken=("[store] trusted_proxies",), waiting=("[store] guest_listen",)
    )


# What is said


def test_names_are_logged_and_no_value(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    conf = load(DEFAULT__metadata_proxy_shared_secret=SECRET, port=18081, hold_timeout=1)
    changes = daemons.keep_running_values(conf, load(), daemon=AGENT)
    taken = "[DEFAULT] metadata_proxy_shared_secret, [df_metadata] hold_timeout"
    kept = "Not changed until a restart, the values in force stay: [df_metadata] port"
    assert said(caplog, changes) == [
        ("INFO", f"Reloaded, with changed options: {taken}"),
        ("WARNING", kept),
    ]


# The admin API


def reloaded(api: StoreApi, conf: cfg.ConfigOpts) -> Client:
    api.prepare(conf)()
    return Client(api)


def test_tokens_can_be_asked_for_from_now_on(
    load: Load, repository: Repository, tmp_path: Path
) -> None:
    token = new_token()
    grant = Grant(scopes=("read",), created=datetime(2026, 1, 1, tzinfo=UTC))
    add(tmp_path / "tokens", grant, token)
    api = StoreApi(load())
    api.open(repository)
    assert Client(api).get(PATH).status_int == 404
    conf = load(store__token_file=tmp_path / "tokens")
    client = reloaded(api, conf)
    assert client.get(PATH).status_int == 401
    assert client.get(PATH, authorization=f"Bearer {token}").status_int == 404
    before = api._authorizer
    reloaded(api, load(store__token_file=tmp_path / "tokens", store__max_body=4096))
    assert api._authorizer is before


def test_invalid_configuration_changes_nothing(
    load: Load, repository: Repository, tmp_path: Path
) -> None:
    add(tmp_path / "tokens", Grant(("read",), datetime(2026, 1, 1, tzinfo=UTC)), new_token())
    everywhere = {"admin_listen": "0.0.0.0:9697"}
    api = StoreApi(load(**everywhere, store__token_file=tmp_path / "tokens"))
    api.open(repository)
    (tmp_path / "wide").write_text("")
    (tmp_path / "wide").chmod(0o666)
    for conf in (
        load(**everywhere),
        load(**everywhere, store__token_file=tmp_path / "wide"),
    ):
        with pytest.raises(ConfigError):
            api.prepare(conf)
        assert Client(api).get(PATH).status_int == 401
