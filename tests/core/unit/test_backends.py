"""The configuration should name the backend and all that it needs."""

from pathlib import Path

from dfmeta.model import AnswerTerms, GuestRequest, HttpHost, Identity
from dfmeta.proxy.backends.network_data import Vlan
from dfmeta.proxy.backends.nova import NovaBackend, NovaSettings
from dfmeta.wiring.backends import make_app_settings, make_backend, with_subports
from tests.core.unit.support import INSTANCE, PROJECT, Load
from tests.harness.certificates import Authority

IDENTITY = Identity(INSTANCE, PROJECT, "port-1", "tap1", incarnation=1)


def test_options_of_neutron_configure_nova(load: Load, authority: Authority) -> None:
    pair = authority.issue("client")
    conf = load(
        backend="nova",
        timeout_answer="close",
        DEFAULT__nova_metadata_host="a:1,b",
        DEFAULT__nova_metadata_protocol="https",
        DEFAULT__nova_metadata_insecure="true",
        DEFAULT__metadata_proxy_shared_secret="s",
        DEFAULT__auth_ca_cert=authority.certificate,
        DEFAULT__nova_client_cert=pair.certificate,
        DEFAULT__nova_client_priv_key=pair.key,
    )
    backend = make_backend(conf)
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
    settings = make_app_settings(conf)
    assert (settings.timeout_answer, settings.needs_project) == ("close", True)


def test_the_store_is_the_default_backend(load: Load, tmp_path: Path) -> None:
    conf = load(state_path=tmp_path)
    backend = make_backend(conf)
    assert backend.name == "store"
    assert not make_app_settings(conf).needs_project
    request = GuestRequest("GET", "/nothing")
    view = backend.open(request, IDENTITY, AnswerTerms(0.0))
    assert view.answer().status == 404


def test_network_data_is_completed_unless_the_option_is_off(load: Load, tmp_path: Path) -> None:
    asked: list[Identity] = []

    def subports(identity: Identity, _deadline: float) -> list[Vlan]:
        asked.append(identity)
        return []

    request = GuestRequest("GET", "/openstack/latest/network_data.json")
    for completes in (False, True):
        conf = load(state_path=tmp_path, network_data_subports=completes)
        backend = with_subports(conf, make_backend(conf), subports)
        assert backend.name == "store"
        view = backend.open(request, IDENTITY, AnswerTerms(0.0))
        assert view.answer().status == 404
        assert asked == [IDENTITY] * completes
