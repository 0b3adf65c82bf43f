"""The configuration should name the backend and all that it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from oslo_config import cfg

import dfmeta.conf
from dfmeta.model import GuestRequest, HttpHost, Identity
from dfmeta.proxy.network_data import Vlan
from dfmeta.proxy.nova.backend import NovaBackend, NovaSettings
from dfmeta.wiring import backends
from tests.core.unit.support import INSTANCE, PROJECT
from tests.harness.certificates import Authority

Load = Callable[[str], cfg.ConfigOpts]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.setattr(dfmeta.conf, "DEFAULT_FILES", ())

    def load(text: str) -> cfg.ConfigOpts:
        path = tmp_path / "dfmeta.conf"
        path.write_text(f"{text}\n[df_metadata]\nstate_path = {tmp_path}\n")
        return dfmeta.conf.load([str(path)], prog="x")

    return load


def test_nova_is_reached_as_neutrons_options_say(load: Load, authority: Authority) -> None:
    pair = authority.issue("client")
    conf = load(
        "[df_metadata]\nbackend = nova\ntimeout_answer = close\n[DEFAULT]\n"
        "nova_metadata_host = a:1,b\nnova_metadata_protocol = https\n"
        "nova_metadata_insecure = true\nmetadata_proxy_shared_secret = s\n"
        f"auth_ca_cert = {authority.certificate}\nnova_client_cert = {pair.certificate}\n"
        f"nova_client_priv_key = {pair.key}\n"
    )
    backend = backends.build(conf)
    assert isinstance(backend, NovaBackend)
    assert backend._settings == NovaSettings(
        (HttpHost("a", 1), HttpHost("b", 8775)),
        b"s",
        protocol="https",
        insecure=True,
        ca_cert=str(authority.certificate),
        client_cert=str(pair.certificate),
        client_key=str(pair.key),
    )
    settings = backends.settings(conf)
    assert (settings.timeout_answer, settings.needs_project) == ("close", True)


def test_the_embedded_store_answers_unless_another_is_named(load: Load) -> None:
    conf = load("")
    backend = backends.build(conf)
    assert backend.name == "store"
    assert not backends.settings(conf).needs_project
    identity = Identity(INSTANCE, PROJECT, "port-1", "tap1", incarnation=1)
    request = GuestRequest("GET", "/nothing")
    view = backend.open(request, identity, deadline=0.0, goes_on=lambda _said: True)
    assert view.answer().status == 404
    assert backend.remark(500) == ""


def test_network_data_is_completed_unless_the_operator_says_otherwise(load: Load) -> None:
    usual, off = load(""), load("[df_metadata]\nnetwork_data_subports = false\n")
    asked: list[Identity] = []

    def subports(identity: Identity, _deadline: float) -> list[Vlan]:
        asked.append(identity)
        return []

    identity = Identity(INSTANCE, PROJECT, "port-1", "tap1", incarnation=1)
    request = GuestRequest("GET", "/openstack/latest/network_data.json")
    for conf in (off, usual):
        assert asked == []
        backend = backends.completing(conf, backends.build(conf), subports)
        assert backend.name == "store"
        view = backend.open(request, identity, deadline=0.0, goes_on=lambda _said: True)
        assert view.answer().status == 404
    assert asked == [identity]
