"""Values of options: what a daemon runs with, what a command takes over, and unknown names."""

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import webob
from oslo_config import cfg
from webob.dec import wsgify

import dfmeta.conf
from dfmeta.admin.listener import AdminApplication
from dfmeta.admin.server import SAME_HOST
from dfmeta.conf import SAMPLE, unknown_options, values
from dfmeta.conf.limits import OPTS
from dfmeta.conf.values import AGENT, READS, STORE, Changes, Differences
from dfmeta.errors import ConfigError
from dfmeta.http.limits import Limits
from dfmeta.proxy.rate import RateSettings, Window
from dfmeta.runtime.hub import Health
from dfmeta.store.auth.tokens import Grant, add, new_token
from dfmeta.store.db.repository import Repository
from dfmeta.wiring.backends import make_limits, make_rates, worker_share
from dfmeta.wiring.store import StoreApi
from tests.core.unit.store.api.support import INSTANCE, Client
from tests.core.unit.support import Load

SECRET = "a secret that no answer shows"
PASSWORD = "a-password"
READ_AT = 4e9
ACCOUNT = {
    "df_metadata__identity_sources": "ovsdb,neutron",
    "neutron__auth_type": "password",
    "neutron__auth_url": "http://192.0.2.10:5000",
    "neutron__username": "dfmeta",
    "neutron__password": PASSWORD,
}


def told(conf: cfg.ConfigOpts) -> Any:
    return json.loads(json.dumps(values.document(conf, READ_AT)))


def rows(conf: cfg.ConfigOpts) -> dict[str, dict[str, Any]]:
    return {f"[{row['group']}] {row['option']}": row for row in told(conf)["options"]}


def test_every_option_is_listed_with_its_value(load: Load) -> None:
    conf = load(port=18081)
    found = rows(conf)
    assert found.keys() == {values.shown(name) for name in values.EVERY}
    assert found["[df_metadata] port"] == {
        "group": "df_metadata",
        "option": "port",
        "value": 18081,
        "changed_by": "restart",
        "given_by": "files",
    }
    assert found["[df_metadata] hold_timeout"]["changed_by"] == "reload"
    assert found["[store] guest_listen"]["changed_by"] is None


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        ({"DEFAULT__metadata_proxy_shared_secret": SECRET}, SECRET),
        ({"store__connection": f"postgresql://u:{PASSWORD}@h/d"}, PASSWORD),
        ({"store__connection": f"postgresql://h/d?user=u&password={PASSWORD}"}, PASSWORD),
        ({"neutron__endpoint_override": f"http://u:{PASSWORD}@h"}, PASSWORD),
        (ACCOUNT, PASSWORD),
    ],
)
def test_no_secret_is_listed(load: Load, options: dict[str, str], hidden: str) -> None:
    conf = load(**options)
    if "neutron__password" in options:
        dfmeta.conf.neutron.session(conf)
    text = json.dumps(told(conf))
    assert hidden not in text
    assert sum("value" not in row for row in json.loads(text)["options"]) == 1


def test_equal_values_are_taken_without_a_word(load: Load) -> None:
    conf = load(DEFAULT__metadata_proxy_shared_secret=SECRET, **ACCOUNT)
    dfmeta.conf.neutron.session(conf)
    again = load(DEFAULT__metadata_proxy_shared_secret=SECRET, **ACCOUNT)
    assert values.take(again, told(conf)) == Differences()


def test_differing_options_are_taken_and_listed_by_remedy(load: Load) -> None:
    running = told(load(port=18080, hold_timeout=8, state_path="/var/lib/one"))
    conf = load(port=18081, hold_timeout=2, state_path="/var/lib/two", ip="169.254.1.1")
    taken = values.take(conf, running)
    # host_ip and [store] connection are made of values that stand before them.
    assert taken == Differences(
        reload=["[df_metadata] hold_timeout"],
        restart=["[df_metadata] ip", "[df_metadata] port", "[df_metadata] state_path"],
    )
    assert (conf.df_metadata.port, conf.df_metadata.hold_timeout) == (18080, 8)
    assert (conf.df_metadata.host_ip, conf.df_metadata.ip) == ("169.254.169.254",) * 2
    assert conf.store.connection == "sqlite:////var/lib/one/store.db"


def test_a_secret_stays_that_of_the_files(load: Load) -> None:
    running = told(load(DEFAULT__metadata_proxy_shared_secret=SECRET))
    conf = load(DEFAULT__metadata_proxy_shared_secret="another")
    assert values.take(conf, running) == Differences()
    assert conf.metadata_proxy_shared_secret == "another"


def test_file_that_is_newer_than_the_daemons_reading_is_named(tmp_path: Path) -> None:
    file = tmp_path / "dfmeta.conf"
    file.write_text("[df_metadata]\nport = 18081\n")
    conf = dfmeta.conf.load([str(file)], prog="x")
    for read_at, newer in ((file.stat().st_mtime + 1, ()), (1e9, (str(file),))):
        answer = json.loads(json.dumps(values.document(conf, read_at)))
        assert values.take(conf, answer).newer == newer


def test_files_added_and_removed_in_a_directory_are_no_other_files(tmp_path: Path) -> None:
    main, other = tmp_path / "dfmeta.conf", tmp_path / "other.conf"
    folder = tmp_path / "dfmeta.conf.d"
    folder.mkdir()
    old, new = folder / "1.conf", folder / "2.conf"
    secret = "[DEFAULT]\nmetadata_proxy_shared_secret ="
    main.write_text(f"{secret} {SECRET}\n")
    old.write_text("[df_metadata]\nport = 2\n")
    running = values.document(dfmeta.conf.load([str(main)], prog="x"), read_at=1e9)
    old.unlink()
    new.write_text(f"{secret} another\n")
    os.utime(main, (0, 0))
    conf = dfmeta.conf.load([str(main)], prog="x")
    assert values.take(conf, running) == Differences(
        restart=["[df_metadata] port"], newer=(str(new),)
    )
    new.write_text("[df_metadata]\nport = 3\n")
    conf = dfmeta.conf.load([str(main)], prog="x")
    assert values.take(conf, running).files is None
    other.write_text("[df_metadata]\nport = 4\n")
    conf = dfmeta.conf.load([str(other)], prog="x")
    assert values.take(conf, running).files == (str(main),)


def test_option_of_environment_is_no_change(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("OS_DF_METADATA__PORT", "18085")
        running = told(load("--debug"))
    conf = load()
    taken = values.take(conf, running)
    assert taken == Differences(given=["[DEFAULT] debug", "[df_metadata] port"])
    assert conf.df_metadata.port == 18085


def test_malformed_document_is_refused(load: Load) -> None:
    for document in (
        *(None, [], {}, {"read_at": "now", "options": [], "files": []}),
        {"read_at": 1.5, "options": [{"group": "df_metadata"}], "files": []},
        {"read_at": 1.5, "options": ["port"], "files": []},
    ):
        with pytest.raises(ValueError, match="not a list of options"):
            values.take(load(), document)


def ask(environ: dict[str, Any], **headers: str) -> webob.Response:
    application = AdminApplication(
        Health(), list, {"/options": lambda: {"options": []}}, listen="127.0.0.1:9697"
    )
    request = webob.Request.blank("/options", environ=environ, headers=headers)
    return request.get_response(wsgify(application))


def test_this_host_alone_may_ask_and_no_web_page() -> None:
    assert ask({SAME_HOST: True}, Host="localhost:9697").json == {"options": []}
    assert ask({SAME_HOST: False}, Host="localhost:9697").status_int == 403
    assert ask({}, Host="localhost:9697").status_int == 403
    assert ask({SAME_HOST: True}, Host="attacker.example:9697").status_int == 403
    other = ask({SAME_HOST: True}, Host="localhost:9697", Origin="http://attacker.example")
    assert other.status_int == 403


def unknown(folder: Path, *texts: str) -> list[tuple[str, str]]:
    """What is unknown in files, and what to do about each."""
    files = []
    for number, text in enumerate(texts):
        files.append(folder / f"{number}.conf")
        files[-1].write_text(text)
    conf = dfmeta.conf.load([str(file) for file in files], prog="x")
    return [(str(option.fields["what"]), option.remedy) for option in unknown_options(conf)]


def test_misspelt_name_is_reported_with_the_nearest(tmp_path: Path) -> None:
    for text, what, remedy in (
        (
            "[DEFAULT]\nnova_metadata_hots = a",
            "[DEFAULT] nova_metadata_hots",
            "nova_metadata_host?",
        ),
        ("[DEFAULT]\nbackend = nova", "[DEFAULT] backend", "Move it to [df_metadata]"),
        ("[df_metadata]\nzzz = 3", "[df_metadata] zzz", SAMPLE),
        ("[Store]\nec2_tre = 3", "[store] ec2_tre", "ec2_tree?"),
        ("[neutron]\nendpoint_overide = a", "[neutron] endpoint_overide", "endpoint_override?"),
        ("[df_metdata]\nport = 1", "the group [df_metdata]", "[df_metadata]?"),
    ):
        ((found, do),) = unknown(tmp_path, text)
        assert found == what
        assert do.endswith(remedy)


@pytest.mark.parametrize(
    "text",
    [
        "[DEFAULT]\ndebug = True\nnova_metadata_host = a\nmetadata_proxy_shared_secret = s",
        "[DEFAULT]\nmetadata_proxy_socket = /x\nmetadata_workers = 2\nstate_path = /y\nhost = a",
        "[agent]\nreport_interval = 2\n[cache]\nenabled = 1\n[METADATA]\nprovider_network = a",
        "[neutron]\nservice_metadata_proxy = 1\nauth_type = password\nphysnets = a",
        "[df_metadata]\nport = 1\n[store]\nec2_tree = equinix",
    ],
    ids=["ours", "neutrons", "groups", "novas", "more"],
)
def test_valid_or_foreign_name_is_not_reported(tmp_path: Path, text: str) -> None:
    assert unknown(tmp_path, text) == []


def test_without_a_configuration_the_limits_are_those_of_the_code(load: Load) -> None:
    assert make_limits(load()) == Limits()
    assert make_rates(load()) == RateSettings()


def test_every_limit_has_an_option_that_is_read(load: Load) -> None:
    numbers = {f"guest_limits__{option.name}": 2000 + n for n, option in enumerate(OPTS)}
    numbers |= {
        f"guest_limits__{option.name}": n + 20
        for n, option in enumerate(OPTS)
        if "timeout" in option.name
    }
    numbers["guest_limits__header_lines_max"] = 99
    read = make_limits(load(**numbers))
    values = [getattr(read, field.name) for field in fields(read) if field.name != "head"]
    values += [read.head.request_line, read.head.header, read.head.lines]
    assert sorted(values) == sorted(numbers.values())
    assert (read.body, read.requests_per_port) == (
        numbers["guest_limits__body_max"],
        numbers["guest_limits__requests_per_port"],
    )


def test_the_rates_are_neutrons(load: Load) -> None:
    group = {
        "rate_limit_enabled": True,
        "ip_versions": "4,6",
        "base_window_duration": 60,
        "base_query_rate_limit": 50,
        "burst_window_duration": 1,
        "burst_query_rate_limit": 5,
        "delay_max": 1,
        "tolerated_queries": 7,
    }
    read = make_rates(
        load(**{f"metadata_rate_limiting__{name}": value for name, value in group.items()})
    )
    assert read == RateSettings(
        enabled=True,
        ip_versions=frozenset({4, 6}),
        base=Window(50, 60),
        burst=Window(5, 1),
        delay_max=1,
        tolerated=7,
    )


def test_workers_share_what_a_port_is_served_and_refuse_none_sooner() -> None:
    whole = Limits(connections_per_port=16, waiting_per_port=48, requests_per_port=9)
    assert worker_share(whole, 1) == whole
    part = worker_share(whole, 3)
    assert (part.connections_per_port, part.requests_per_port) == (6, 3)
    assert part.connections_per_port + part.waiting_per_port == 64
    assert part.connections == whole.connections
    assert worker_share(whole, 64).requests_per_port == 1


RECORD = f"/device-metadata/{INSTANCE}"
HIDDEN = "a secret nobody may see"


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    with Repository(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def said(caplog: pytest.LogCaptureFixture, changes: Changes) -> list[tuple[str, str]]:
    with caplog.at_level(logging.INFO):
        changes.log(logging.getLogger("test"))
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_every_option_is_read_by_a_daemon() -> None:
    assert READS[AGENT] | READS[STORE] == values.EVERY


def test_reloadable_options_are_taken_and_the_rest_is_kept(load: Load) -> None:
    running = load(hold_timeout=8, port=18080, nova_metadata_port=1)
    conf = load(hold_timeout=2, port=18081, integration_bridge="br-other")
    changes = values.keep_running_values(conf, running, daemon=AGENT)
    assert changes == Changes(
        taken=("[df_metadata] hold_timeout",),
        waiting=("[df_metadata] port", "[df_metadata] integration_bridge"),
    )
    assert conf.df_metadata.hold_timeout == 2
    assert (conf.df_metadata.port, conf.df_metadata.integration_bridge) == (18080, "br-int")


def test_option_of_the_other_daemon_is_ignored(load: Load) -> None:
    conf = load(port=18081, store__guest_listen="192.0.2.1:80", store__trusted_proxies="192.0.2.9")
    assert values.keep_running_values(conf, load(), daemon=AGENT).waiting == ("[df_metadata] port",)
    conf = load(port=18081, store__guest_listen="192.0.2.1:80", store__trusted_proxies="192.0.2.9")
    assert values.keep_running_values(conf, load(), daemon=STORE) == Changes(
        taken=("[store] trusted_proxies",), waiting=("[store] guest_listen",)
    )


def test_names_are_logged_and_no_value(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    conf = load(DEFAULT__metadata_proxy_shared_secret=HIDDEN, port=18081, hold_timeout=1)
    changes = values.keep_running_values(conf, load(), daemon=AGENT)
    taken = "[DEFAULT] metadata_proxy_shared_secret, [df_metadata] hold_timeout"
    kept = "Not changed until a restart, the values in force stay: [df_metadata] port"
    assert said(caplog, changes) == [
        ("INFO", f"Reloaded, with changed options: {taken}"),
        ("WARNING", kept),
    ]


def reloaded(api: StoreApi, conf: cfg.ConfigOpts) -> Client:
    api.prepare(conf)()
    return Client(api)


def test_tokens_can_become_required(load: Load, repository: Repository, tmp_path: Path) -> None:
    token = new_token()
    grant = Grant(scopes=("read",), created=datetime(2026, 1, 1, tzinfo=UTC))
    add(tmp_path / "tokens", grant, token)
    api = StoreApi(load())
    api.open(repository)
    assert Client(api).get(RECORD).status_int == 404
    conf = load(store__token_file=tmp_path / "tokens")
    client = reloaded(api, conf)
    assert client.get(RECORD).status_int == 401
    assert client.get(RECORD, authorization=f"Bearer {token}").status_int == 404
    before = api._authorizer
    reloaded(api, load(store__token_file=tmp_path / "tokens", store__max_body=4096))
    assert api._authorizer is before


def test_invalid_file_changes_nothing(load: Load, repository: Repository, tmp_path: Path) -> None:
    add(tmp_path / "tokens", Grant(("read",), datetime(2026, 1, 1, tzinfo=UTC)), new_token())
    everywhere = {"admin_listen": "0.0.0.0:9697"}
    api = StoreApi(load(**everywhere, store__token_file=tmp_path / "tokens"))
    api.open(repository)
    (tmp_path / "wide").write_text("")
    (tmp_path / "wide").chmod(0o666)
    for conf in (load(**everywhere), load(**everywhere, store__token_file=tmp_path / "wide")):
        with pytest.raises(ConfigError):
            api.prepare(conf)
        assert Client(api).get(RECORD).status_int == 401
