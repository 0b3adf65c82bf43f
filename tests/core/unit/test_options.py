"""The daemon should tell the values that it runs with, and a command should take them over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import webob
from oslo_config import cfg

import dfmeta.conf
from dfmeta.admin.listener import AdminApplication
from dfmeta.cmd.options import Options
from dfmeta.conf import daemons, values
from dfmeta.conf.values import Digest, Taken
from dfmeta.health import Health
from dfmeta.proxy.environ import SAME_HOST
from tests.core.unit.support import Load

SECRET = "a secret that no answer shows"
PASSWORD = "a-password"
CHEAP = Digest(n=16)
ACCOUNT = {
    "df_metadata__identity_sources": "ovsdb,neutron",
    "neutron__auth_type": "password",
    "neutron__auth_url": "http://192.0.2.10:5000",
    "neutron__username": "dfmeta",
    "neutron__password": PASSWORD,
}


def told(conf: cfg.ConfigOpts) -> Any:
    """A document, as it comes out of the listener."""
    return json.loads(json.dumps(values.document(conf, CHEAP)))


def rows(conf: cfg.ConfigOpts) -> dict[str, dict[str, Any]]:
    """``[group] option`` → its row."""
    return {f"[{one['group']}] {one['option']}": one for one in told(conf)["options"]}


def test_every_option_is_listed_with_its_value(load: Load) -> None:
    conf = load(port=18081)
    found = rows(conf)
    assert found.keys() == {daemons.shown(name) for name in daemons.EVERY}
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
        (
            {
                "store__lookup_issuer": "https://issuer.example.org",
                "store__lookup_client_id": "dfmeta",
                "store__lookup_client_secret": SECRET,
                "store__lookup_base_url": "https://store.example.org",
            },
            SECRET,
        ),
        ({"neutron__endpoint_override": f"http://u:{PASSWORD}@h"}, PASSWORD),
        (ACCOUNT, PASSWORD),
    ],
)
def test_no_secret_is_listed_in_clear(load: Load, options: dict[str, str], hidden: str) -> None:
    conf = load(**options)
    if "neutron__password" in options:
        dfmeta.conf.neutron.session(conf)
    text = json.dumps(told(conf))
    assert hidden not in text
    assert text.count('"digest": "') == 1


def test_a_digest_takes_memory_and_differs_from_process_to_process() -> None:
    parameters = Digest().parameters()
    assert (parameters["n"], parameters["r"], parameters["p"]) == (32768, 8, 1)
    assert Digest().of(SECRET) != Digest().of(SECRET)
    one = Digest()
    assert one.of(SECRET) == one.of(SECRET) != one.of(SECRET + "s")


# What a command makes of it


def test_equal_values_are_taken_without_a_word(load: Load) -> None:
    conf = load(DEFAULT__metadata_proxy_shared_secret=SECRET, **ACCOUNT)
    dfmeta.conf.neutron.session(conf)
    again = load(DEFAULT__metadata_proxy_shared_secret=SECRET, **ACCOUNT)
    assert values.take(again, told(conf)) == Taken()


def test_differing_options_are_taken_and_listed_by_remedy(load: Load) -> None:
    running = told(load(port=18080, hold_timeout=8, state_path="/var/lib/one"))
    conf = load(port=18081, hold_timeout=2, state_path="/var/lib/two", ip="169.254.1.1")
    taken = values.take(conf, running)
    # host_ip and [store] connection are made of values that stand before them.
    assert taken == Taken(
        reload=["[df_metadata] hold_timeout"],
        restart=["[df_metadata] ip", "[df_metadata] port", "[df_metadata] state_path"],
    )
    assert (conf.df_metadata.port, conf.df_metadata.hold_timeout) == (18080, 8)
    assert (conf.df_metadata.host_ip, conf.df_metadata.ip) == ("169.254.169.254",) * 2
    assert conf.store.connection == "sqlite:////var/lib/one/store.db"


def test_a_secret_that_differs_stays_the_files(load: Load) -> None:
    running = told(load(DEFAULT__metadata_proxy_shared_secret=SECRET))
    conf = load(DEFAULT__metadata_proxy_shared_secret="another")
    taken = values.take(conf, running)
    assert taken.reload == ["[DEFAULT] metadata_proxy_shared_secret"]
    assert taken.secrets == {("DEFAULT", "metadata_proxy_shared_secret")}
    assert conf.metadata_proxy_shared_secret == "another"


def test_option_of_environment_or_command_line_is_no_difference(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("OS_DF_METADATA__PORT", "18085")
        running = told(load("--debug"))
    conf = load()
    taken = values.take(conf, running)
    assert taken == Taken(given=["[DEFAULT] debug", "[df_metadata] port"])
    assert conf.df_metadata.port == 18085


def test_daemons_files_are_named_where_they_differ(load: Load, tmp_path: Path) -> None:
    running = told(load(port=18080))
    own, other = tmp_path / "dfmeta.conf", tmp_path / "other.conf"
    other.write_text("")

    def taken(*files: Path) -> Taken:
        return values.take(dfmeta.conf.load([*map(str, files)], prog="dfmeta"), running)

    assert taken(other).files == (str(own),)
    # A further file counts where it has what differs.
    assert taken(own, other).files is None
    other.write_text("[df_metadata]\nport = 18081\n")
    assert taken(own, other).files == (str(own),)


def test_malformed_document_is_refused(load: Load) -> None:
    digest = CHEAP.parameters()
    for document in (
        *(None, [], {}, {"digest": {}, "options": [], "files": []}),
        {"digest": {**digest, "name": "md5"}, "options": [], "files": []},
        {"digest": {**digest, "n": 1 << 30, "r": 8}, "options": [], "files": []},
        {"digest": digest, "options": [{"group": "df_metadata"}], "files": []},
        {"digest": digest, "options": ["port"], "files": []},
    ):
        with pytest.raises(ValueError, match="not a list of options"):
            values.take(load(), document)


# The daemon's side


def test_digests_are_made_apart_and_once_for_each_configuration(load: Load) -> None:
    made: list[object] = []

    def apart(function: Any, *arguments: Any) -> Any:
        made.append(arguments)
        return function(*arguments)

    conf = [load(DEFAULT__metadata_proxy_shared_secret=SECRET)]
    options = Options(lambda: conf[0], apart=apart)
    first = options.document()
    assert options.document() is first
    assert len(made) == 1
    conf[0] = load(DEFAULT__metadata_proxy_shared_secret="another")
    second = options.document()
    assert len(made) == 2
    assert second["digest"] == first["digest"]
    assert second != first


def ask(environ: dict[str, Any], **headers: str) -> webob.Response:
    application = AdminApplication(
        Health(), list, {"/options": lambda: {"options": []}}, listen="127.0.0.1:9697"
    )
    request = webob.Request.blank("/options", environ=environ, headers=headers)
    return request.get_response(application)


def test_this_host_alone_may_ask_and_no_web_page() -> None:
    assert ask({SAME_HOST: True}, Host="localhost:9697").json == {"options": []}
    assert ask({SAME_HOST: False}, Host="localhost:9697").status_int == 403
    assert ask({}, Host="localhost:9697").status_int == 403
    assert ask({SAME_HOST: True}, Host="attacker.example:9697").status_int == 403
    other = ask({SAME_HOST: True}, Host="localhost:9697", Origin="http://attacker.example")
    assert other.status_int == 403
