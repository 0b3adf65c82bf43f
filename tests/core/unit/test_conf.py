"""A wrong value should stop the daemon with a line that names option, value and remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oslo_config import cfg

import dfmeta.conf
from dfmeta.conf import nova, store
from dfmeta.exceptions import ConfigError
from dfmeta.flows.pipeline import Layout
from dfmeta.model import HttpHost
from dfmeta.wiring.layout import layout_of
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, Load
from tests.harness.certificates import Authority

SECRET = "a secret nobody may see"
LOOKUP = {"store__lookup_base_url": "https://store", "store__lookup_issuer": "https://login"}
# CONTRACT.md, "Options": the names and defaults that operators rely on.
DEFAULTS = {
    "DEFAULT": {
        "auth_ca_cert": None,
        "nova_metadata_host": "127.0.0.1",
        "nova_metadata_port": 8775,
        "nova_metadata_protocol": "http",
        "nova_metadata_insecure": False,
        "nova_client_cert": None,
        "nova_client_priv_key": None,
        "metadata_proxy_shared_secret": "",
    },
    "df_metadata": {
        "ip": "169.254.169.254",
        "host_ip": "169.254.169.254",
        "port": 18080,
        "metadata_interface": "tap-metadata",
        "integration_bridge": "br-int",
        "ovsdb_connection": "unix:/var/run/openvswitch/db.sock",
        "openflow_connection": "auto",
        "table_base": 200,
        "classification_table": 0,
        "hook_priority": 300,
        "route_table": 2,
        "backend": "store",
        "engine": "wsgi",
        "identity_scheme": "in_port",
        "identity_sources": ["ovsdb", "libvirt"],
        "subport_identity": "own",
        "proxy_workers": 0,
        "hold_timeout": 8,
        "timeout_answer": "auto",
        "startup_timeout": 30,
        "admin_listen": "127.0.0.1:9697",
        "state_path": "/var/lib/dfmeta",
    },
    "attachments": {
        "enabled": False,
        "driver": "local",
        "allow": [],
        "vid_range": "2:4000",
        "quota": 256,
        "rate": 20,
        "rest": 10,
        "rest_unknown": 120,
        "grace": 600,
        "gc_min_age": 60,
    },
    "metadata_rate_limiting": {
        "rate_limit_enabled": False,
        "ip_versions": [4, 6],
        "base_window_duration": 10,
        "base_query_rate_limit": 10,
        "burst_window_duration": 10,
        "burst_query_rate_limit": 10,
        "delay_max": 2,
        "tolerated_queries": 32,
    },
    "store": {
        "connection": "sqlite:////var/lib/dfmeta/store.db",
        "http_tokens": "optional",
        "ec2_tree": "cloud-init",
        "api_url": "",
        "phone_home_url": "",
        "user_state_url": "",
        "http_tokens_of": {},
        "max_body": 1048576,
        "token_file": None,
        "oidc_issuer": None,
        "oidc_audience": None,
        "oidc_jwks_url": None,
        "oidc_roles_claim": None,
        "lookup_base_url": None,
        "lookup_timeout": 2,
        "lookup_retries": 2,
        "lookup_negative_ttl": 10,
        "lookup_expiry": 0,
        "lookup_token_file": None,
        "lookup_issuer": None,
        "lookup_client_id": None,
        "lookup_client_secret": None,
        "lookup_audience": None,
        "lookup_scopes": [],
        "defaults": False,
        "guest_listen": "",
        "trusted_proxies": [],
    },
}


@pytest.fixture(autouse=True)
def _no_file_of_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dfmeta.conf, "DEFAULT_FILES", ())


def registered() -> dict[str, dict[str, cfg.Opt]]:
    return {
        group or "DEFAULT": {option.name: option for option in options}
        for group, options in dfmeta.conf.own_opts()
    }


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (group, name)
        for group, options in registered().items()
        for name in options
        if name in DEFAULTS.get(group, {})
    ],
)
def test_an_option_has_the_contracts_default(load: Load, group: str, name: str) -> None:
    conf = load()
    section = conf if group == "DEFAULT" else conf[group]
    assert section[name] == DEFAULTS[group][name]


def test_the_layouts_defaults_are_the_options(load: Load) -> None:
    group = load().df_metadata
    assert layout_of(group) == Layout()


BAD = [
    ("df_metadata", "ip", "banana"),
    ("df_metadata", "ip", "::1"),
    ("df_metadata", "ip", "127.0.0.1"),
    ("df_metadata", "ip", "224.0.0.1"),
    ("df_metadata", "host_ip", "1.2.3"),
    ("df_metadata", "host_ip", "0.0.0.0"),
    ("df_metadata", "host_ip", "$nothing"),
    ("df_metadata", "ip6", "169.254.169.254"),
    ("df_metadata", "ip6", "fe80::a9fe:a9fe%eth0"),
    ("df_metadata", "ip6", "ff02::1"),
    ("df_metadata", "ip6", "::ffff:10.0.0.1"),
    ("df_metadata", "ip6", "fe80::1,fe80:0::1"),
    ("df_metadata", "ip6", "fd00:a9fe:a9fe:a9fe:1::5"),
    ("df_metadata", "host_ip6", "fe80::1"),
    ("df_metadata", "host_ip6", "::1"),
    ("df_metadata", "host_ip6", "fd00:ec2::254"),
    ("df_metadata", "host_ip6", "fd00:a9fe:a9fe:a9fe:1::5"),
    ("df_metadata", "identity_scheme", "mac"),
    ("df_metadata", "subport_identity", "vm"),
    ("df_metadata", "meta_bridge", "a-bridge-with-a-long-name"),
    ("df_metadata", "meta_bridge", "br/meta"),
    ("METADATA", "provider_cidr", "240.0.0.0"),
    ("METADATA", "provider_cidr", "240.0.0.0/30"),
    ("METADATA", "provider_cidr", "240.0.0.0/8"),
    ("METADATA", "provider_cidr", "240.0.0.1/16"),
    ("METADATA", "provider_cidr", "127.0.0.0/16"),
    ("METADATA", "provider_cidr", "224.1.0.0/16"),
    ("METADATA", "provider_vlan_id", "0"),
    ("METADATA", "provider_vlan_id", "4095"),
    ("METADATA", "provider_base_mac", "fa:16:ee:00:00"),
    ("METADATA", "provider_base_mac", "fa:16:ee:00:00:0g"),
    ("METADATA", "provider_base_mac", "01:00:5e:00:00:00"),
    ("METADATA", "host_proxy_listen_port", "0"),
    ("METADATA", "host_proxy_listen_port", "65536"),
    ("df_metadata", "key_prefix6", "fd00::/48"),
    ("df_metadata", "key_prefix6", "fd00::1/64"),
    ("df_metadata", "key_prefix6", "fe80::/64"),
    ("df_metadata", "port", "70000"),
    ("df_metadata", "port", "http"),
    ("df_metadata", "metadata_interface", "a-name-of-16-chars"),
    ("df_metadata", "metadata_interface", "a b"),
    ("df_metadata", "metadata_interface", ""),
    ("df_metadata", "integration_bridge", "br/int"),
    ("df_metadata", "ovsdb_connection", "/var/run/openvswitch/db.sock"),
    ("df_metadata", "ovsdb_connection", "tcp:127.0.0.1"),
    ("df_metadata", "openflow_connection", "tcp:127.0.0.1:6653"),
    ("df_metadata", "table_base", "0"),
    ("df_metadata", "table_base", "253"),
    ("df_metadata", "table_base", "2OO"),
    ("df_metadata", "classification_table", "-1"),
    ("df_metadata", "hook_priority", "0"),
    ("df_metadata", "hook_priority", "65535"),
    ("df_metadata", "route_table", "0"),
    ("df_metadata", "route_table", "254"),
    ("df_metadata", "route_table", "main"),
    ("df_metadata", "backend", "novella"),
    ("df_metadata", "hold_timeout", "61"),
    ("df_metadata", "hold_timeout", "-1"),
    ("df_metadata", "hold_timeout", "soon"),
    ("df_metadata", "hold_timeout", "nan"),
    ("df_metadata", "engine", "nginx"),
    ("attachments", "enabled", "perhaps"),
    ("attachments", "driver", "ovn"),
    ("attachments", "allow", "not an id"),
    ("attachments", "vid_range", "2"),
    ("attachments", "vid_range", "0:10"),
    ("attachments", "vid_range", "10:2"),
    ("attachments", "vid_range", "2:4095"),
    ("attachments", "quota", "0"),
    ("attachments", "quota", "4095"),
    ("attachments", "rate", "0"),
    ("attachments", "rate", "nan"),
    ("attachments", "rest", "-1"),
    ("attachments", "rest_unknown", "-1"),
    ("attachments", "grace", "-1"),
    ("attachments", "gc_min_age", "-1"),
    ("attachments", "connection", "$nothing"),
    ("haproxy", "binary", "two words"),
    ("haproxy", "threads", "0"),
    ("haproxy", "maxconn", "1"),
    ("haproxy", "user", "no such user"),
    ("haproxy", "user", "root"),
    ("df_metadata", "proxy_workers", "-1"),
    ("df_metadata", "proxy_workers", "auto"),
    ("df_metadata", "proxy_worker_user", "no such user"),
    ("df_metadata", "proxy_worker_user", "root"),
    ("df_metadata", "refuse_forwarded", "perhaps"),
    ("df_metadata", "network_data_subports", "perhaps"),
    ("df_metadata", "timeout_answer", "504"),
    ("df_metadata", "startup_timeout", "-1"),
    ("df_metadata", "listener_keep", "0"),
    ("df_metadata", "listener_keep", "86401"),
    ("df_metadata", "admin_listen", "9697"),
    ("df_metadata", "admin_listen", "127.0.0.1:0"),
    ("df_metadata", "admin_listen", "127.0.0.1:70000"),
    ("df_metadata", "admin_listen", "::1:9697"),
    ("df_metadata", "state_path", "relative/path"),
    ("df_metadata", "state_path", "$nothing"),
    ("DEFAULT", "debug", "perhaps"),
    ("DEFAULT", "auth_ca_cert", "/nonexistent/ca.pem"),
    ("DEFAULT", "nova_metadata_host", "nova-1,,nova-2"),
    ("DEFAULT", "nova_metadata_host", "http://nova"),
    ("DEFAULT", "nova_metadata_host", "nova:99999"),
    ("DEFAULT", "nova_metadata_port", "0"),
    ("DEFAULT", "nova_metadata_protocol", "ftp"),
    ("DEFAULT", "nova_metadata_insecure", "perhaps"),
    ("DEFAULT", "nova_client_cert", "$nothing"),
    ("DEFAULT", "nova_client_priv_key", "$nothing"),
    ("DEFAULT", "metadata_proxy_shared_secret", "$nothing"),
    ("df_metadata", "identity_sources", "ovsdb,xen"),
    ("df_metadata", "identity_sources", "ovsdb,ovsdb"),
    ("df_metadata", "identity_sources", ""),
    ("df_metadata", "libvirt_xml_path", "run/libvirt"),
    ("df_metadata", "libvirt_xml_path", ""),
    ("neutron", "host", "a b"),
    ("neutron", "timeout", "0"),
    ("neutron", "region_name", "$nothing"),
    ("neutron", "valid_interfaces", "inside"),
    ("neutron", "valid_interfaces", ""),
    ("neutron", "endpoint_override", "neutron:9696"),
    ("neutron", "cafile", "/nonexistent/ca.pem"),
    ("neutron", "insecure", "perhaps"),
    ("neutron", "certfile", "/nonexistent/cert.pem"),
    ("neutron", "keyfile", "$nothing"),
    ("guest_limits", "request_line_max", "255"),
    ("guest_limits", "header_max", "8k"),
    ("guest_limits", "header_lines_max", "7"),
    ("guest_limits", "header_timeout", "nan"),
    ("guest_limits", "header_timeout", "0"),
    ("guest_limits", "body_max", "1019"),
    ("guest_limits", "body_timeout", "0"),
    ("guest_limits", "keepalive_timeout", "-1"),
    ("guest_limits", "send_timeout", "inf"),
    ("guest_limits", "connections_per_port", "0"),
    ("guest_limits", "waiting_per_port", "-1"),
    ("guest_limits", "connections", "15"),
    ("guest_limits", "requests_per_port", "0"),
    ("metadata_rate_limiting", "rate_limit_enabled", "perhaps"),
    ("metadata_rate_limiting", "ip_versions", "5"),
    ("metadata_rate_limiting", "ip_versions", "4,six"),
    ("metadata_rate_limiting", "ip_versions", ""),
    ("metadata_rate_limiting", "base_window_duration", "0"),
    ("metadata_rate_limiting", "base_query_rate_limit", "0"),
    ("metadata_rate_limiting", "burst_window_duration", "0.5"),
    ("metadata_rate_limiting", "burst_query_rate_limit", "-1"),
    ("metadata_rate_limiting", "delay_max", "8.1"),
    ("metadata_rate_limiting", "delay_max", "nan"),
    ("metadata_rate_limiting", "tolerated_queries", "-1"),
    ("store", "connection", "$nothing"),
    ("store", "http_tokens", "always"),
    ("store", "ec2_tree", "hegel"),
    ("store", "api_url", "$nothing"),
    ("store", "phone_home_url", "$nothing"),
    ("store", "user_state_url", "$nothing"),
    ("store", "http_tokens_of", "required"),
    ("store", "http_tokens_of", "web1:required"),
    ("store", "http_tokens_of", f"{INSTANCE}:always"),
    ("store", "http_tokens_of", f"{{{INSTANCE}}}:off"),
    ("store", "max_body", "1023"),
    ("store", "max_body", "1M"),
    ("store", "token_file", "tokens"),
    ("store", "oidc_issuer", "login.example.org"),
    ("store", "oidc_issuer", "ftp://login.example.org"),
    ("store", "oidc_issuer", "https://user:password@login.example.org"),
    ("store", "oidc_issuer", "https://login.example.org/?tenant=1"),
    ("store", "oidc_audience", "$nothing"),
    ("store", "oidc_jwks_url", "/etc/keys.json"),
    ("store", "oidc_roles_claim", "..."),
    ("store", "oidc_roles_claim", "the roles"),
    ("store", "lookup_base_url", "store.example.org"),
    ("store", "lookup_base_url", "ftp://store.example.org"),
    ("store", "lookup_base_url", "https://user:word@store.example.org"),
    ("store", "lookup_base_url", "https://store.example.org/?a=b"),
    ("store", "lookup_base_url", "https://store.example.org:99999"),
    ("store", "lookup_base_url", "https://:443"),
    ("store", "lookup_token_file", "token"),
    ("store", "lookup_timeout", "0"),
    ("store", "lookup_timeout", "nan"),
    ("store", "lookup_retries", "-1"),
    ("store", "lookup_negative_ttl", "-1"),
    ("store", "lookup_expiry", "soon"),
    ("store", "lookup_issuer", "login"),
    ("store", "lookup_client_id", "ä"),
    ("store", "lookup_client_secret", "ä"),
    ("store", "lookup_audience", "ä"),
    ("store", "lookup_scopes", 'a"b'),
    ("store", "defaults", "perhaps"),
    ("store", "guest_listen", "192.0.2.1"),
    ("store", "guest_listen", ":80"),
    ("store", "guest_listen", "192.0.2.1:0"),
    ("store", "guest_listen", "[::]:65536"),
    ("store", "guest_listen", "2001:db8::1:80"),
    ("store", "trusted_proxies", "proxy.example.org"),
    ("store", "trusted_proxies", "10.0.0.0/33"),
    ("store", "trusted_proxies", "fe80::1%eth0"),
    ("store", "trusted_proxies", "10.0.0.1:80"),
]


@pytest.mark.parametrize(("group", "name", "value"), BAD)
def test_a_wrong_value_is_named_with_its_option_and_a_remedy(
    load: Load, group: str, name: str, value: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**{f"{group}__{name}": value})
    error = caught.value
    assert error.fields["option"] == f"[{group}] {name}"
    assert error.fields["remedy"]
    assert "\n" not in str(error)
    option = registered()[group][name]
    value = value.replace("user:word@", "(hidden)@").replace("user:password@", "(hidden)@")
    wrong = [part.strip() for part in value.split(",")] if name == "nova_metadata_host" else [value]
    assert str(error.fields["value"]) in (["(secret)"] if option.secret else wrong)


def test_a_worker_gets_the_configuration_as_the_daemon_has_it(load: Load) -> None:
    given = load(
        port=1234,
        identity_sources="ovsdb,store",
        DEFAULT__nova_metadata_host="a,b:1",
        DEFAULT__metadata_proxy_shared_secret=SECRET,
        store__http_tokens_of=f"{INSTANCE}:required",
        metadata_rate_limiting__ip_versions="4,6",
    )
    values = dfmeta.conf.freeze(given)
    assert dfmeta.conf.freeze(dfmeta.conf.thaw(json.loads(json.dumps(values)))) == values
    assert values["DEFAULT"]["metadata_proxy_shared_secret"] == SECRET


def test_every_option_has_a_wrong_value_in_these_tests() -> None:
    tried = {(group, name) for group, name, _value in BAD}
    assert {(g, name) for g, options in registered().items() for name in options} == tried


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"DEFAULT__nova_client_cert": "/etc/hostname"}, "nova_client_priv_key"),
        ({"DEFAULT__nova_client_priv_key": "/etc/hostname"}, "nova_client_cert"),
        ({"backend": "nova"}, "metadata_proxy_shared_secret"),
        ({"store__lookup_issuer": "https://login"}, "lookup_base_url"),
        ({**LOOKUP, "store__lookup_client_secret": "s"}, "lookup_client_id"),
        ({**LOOKUP, "store__lookup_client_id": "c"}, "lookup_client_secret"),
        ({"store__lookup_client_id": "c"}, "lookup_issuer"),
        ({"store__lookup_scopes": "read"}, "lookup_issuer"),
        ({"neutron__keyfile": "/etc/hostname"}, "certfile"),
        ({"store__oidc_issuer": "https://login.example.org"}, "oidc_audience"),
        ({"store__oidc_audience": "dfmeta"}, "oidc_issuer"),
        ({"store__oidc_jwks_url": "https://login.example.org/keys"}, "oidc_issuer"),
        ({"store__oidc_roles_claim": "realm_access.roles"}, "oidc_issuer"),
        ({"table_base": 5, "classification_table": 5}, "table_base"),
        ({"table_base": 5, "classification_table": 6}, "table_base"),
        ({"table_base": 5, "classification_table": 100}, "table_base"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together_are_named(
    load: Load, options: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        load(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"openflow_connection": "listen:127.0.0.1:99999"},
        {"openflow_connection": "listen:127.0.0.1:0"},
        {"ovsdb_connection": "tcp:127.0.0.1:99999"},
    ],
    ids=str,
)
def test_a_connection_with_an_impossible_port_is_wrong(
    load: Load, options: dict[str, object]
) -> None:
    with pytest.raises(ConfigError):
        load(**options)


def test_a_secret_is_in_no_message(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load(DEFAULT__metadata_proxy_shared_secret=f"{SECRET} $nothing")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"openflow_connection": "unix:/run/br-int.mgmt"},
        {"openflow_connection": "listen:[::1]:6653"},
        {"ovsdb_connection": "tcp:127.0.0.1:6640"},
        {"admin_listen": "[::1]:9697"},
        {"admin_listen": "localhost:9697"},
        {"port": 0},
        {"hold_timeout": 0.5},
        {"backend": "nova", "DEFAULT__metadata_proxy_shared_secret": "x"},
        {"table_base": 60, "classification_table": 59},
        {"route_table": 4294967295},
    ],
    ids=str,
)
def test_a_right_value_is_taken(load: Load, options: dict[str, object]) -> None:
    conf = load(**options)
    for name, value in options.items():
        group, _, option = name.rpartition("__")
        section = conf if group == "DEFAULT" else conf.df_metadata
        assert str(section[option]) == str(value)


def test_certificates_that_can_be_loaded_are_taken(load: Load, authority: Authority) -> None:
    pair = authority.issue("client")
    values = (authority.certificate, pair.certificate, pair.key)
    names = ("auth_ca_cert", "nova_client_cert", "nova_client_priv_key")
    conf = load(**{f"DEFAULT__{name}": value for name, value in zip(names, values, strict=True)})
    assert [conf[name] for name in names] == [str(value) for value in values]


@pytest.mark.parametrize("wrong", ["auth_ca_cert", "nova_client_cert", "nova_client_priv_key"])
@pytest.mark.parametrize("odd", ["text", "empty", "broken", "key"])
def test_a_file_that_holds_no_certificate_or_key_is_named(
    load: Load, authority: Authority, tmp_path: Path, wrong: str, odd: str
) -> None:
    pair = authority.issue("client")
    contents = {
        "text": b"no PEM\n",
        "empty": b"",
        "broken": pair.certificate.read_bytes().replace(b"A", b"!"),
        "key": authority.issue("x", passphrase="x").key.read_bytes(),
    }
    path = tmp_path / "odd.pem"
    path.write_bytes(contents[odd])
    options = {"nova_client_cert": pair.certificate, "nova_client_priv_key": pair.key, wrong: path}
    with pytest.raises(ConfigError, match="that can be loaded") as caught:
        load(**{f"DEFAULT__{name}": value for name, value in options.items()})
    assert caught.value.fields["option"] == f"[DEFAULT] {wrong}"
    assert caught.value.fields["value"] == str(path)
    assert "PEM" in str(caught.value.fields["remedy"])


def test_a_key_of_another_certificate_is_named(load: Load, authority: Authority) -> None:
    pair, other = authority.issue("client"), authority.issue("other")
    with pytest.raises(ConfigError, match="not the key of the certificate") as caught:
        load(DEFAULT__nova_client_cert=pair.certificate, DEFAULT__nova_client_priv_key=other.key)
    assert caught.value.fields["option"] == "[DEFAULT] nova_client_priv_key"


def test_values_follow_those_they_refer_to(load: Load) -> None:
    conf = load(ip="192.0.2.1", state_path="/srv/dfmeta")
    assert conf.df_metadata.host_ip == "192.0.2.1"
    assert conf.store.connection == "sqlite:////srv/dfmeta/store.db"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("nova", [("nova", 8775)]),
        ("nova:80", [("nova", 80)]),
        ("a, b:1 ,10.0.0.1:65535", [("a", 8775), ("b", 1), ("10.0.0.1", 65535)]),
        ("2001:db8::1", [("2001:db8::1", 8775)]),
        ("[2001:db8::1]", [("2001:db8::1", 8775)]),
        ("[2001:db8::1]:80", [("2001:db8::1", 80)]),
    ],
)
def test_a_list_of_hosts_is_read(load: Load, text: str, hosts: list[tuple[str, int]]) -> None:
    conf = load(DEFAULT__nova_metadata_host=text)
    assert nova.hosts(conf) == [HttpHost(*host) for host in hosts]


def test_requests_over_both_ip_versions_may_be_limited(load: Load) -> None:
    conf = load(metadata_rate_limiting__ip_versions="4, 6")
    assert conf.metadata_rate_limiting.ip_versions == [4, 6]


def test_what_an_option_may_list_is_said(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"choices\. Give some of 4, 6, with commas") as caught:
        load(metadata_rate_limiting__ip_versions="4,5")
    assert "OrderedDict" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "wrong"),
    [
        ("identity_sources", "ovsdb,xen,store", "there is no source 'xen'"),
        ("libvirt_xml_path", "/run,etc,/srv", "'etc' is not an absolute path"),
        ("store__trusted_proxies", "::1, 10.0.0.0/33", "'10.0.0.0/33' is not an address"),
        ("store__lookup_scopes", "read,,write", "'' is not a scope"),
    ],
)
def test_the_wrong_one_of_several_values_is_named(
    load: Load, option: str, value: str, wrong: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**{option: value})
    assert wrong in str(caught.value.fields["cause"])


def test_instances_have_modes_of_their_own_in_any_case(load: Load) -> None:
    text = f"{INSTANCE.upper()}:required, {OTHER_INSTANCE}:off"
    modes = store.http_tokens_of(load(store__http_tokens_of=text))
    assert modes == {INSTANCE: "required", OTHER_INSTANCE: "off"}


@pytest.mark.parametrize("second", [OTHER_INSTANCE, OTHER_INSTANCE.upper()])
def test_an_instance_has_one_mode(load: Load, second: str) -> None:
    with pytest.raises(ConfigError, match=r"\[store\] http_tokens_of"):
        load(store__http_tokens_of=f"{OTHER_INSTANCE}:off,{second}:required")


def test_a_host_is_written_as_it_stands_in_a_url(load: Load) -> None:
    conf = load(DEFAULT__nova_metadata_host="[2001:db8::1]:80,nova")
    assert [host.authority for host in nova.hosts(conf)] == ["[2001:db8::1]:80", "nova:8775"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "a:", "a:0", "a:65536", "a:x", "a:\u0661", "a b", "a/b", "u@a", "a?b", "a#b", "[]"),
        # They only look like a host.
        *("[::1", "::1]:80", "[a]:80", "[10.0.0.1]:80", "a:b:80", "nova..example", "a%b", "a\x01b"),
    ],
)
def test_what_is_no_host_is_refused(load: Load, text: str) -> None:
    with pytest.raises(ConfigError, match="nova_metadata_host"):
        load(DEFAULT__nova_metadata_host=text)


DEPRECATED = [
    (group or "DEFAULT", option, one)
    for group, options in dfmeta.conf.own_opts()
    for option in options
    for one in option.deprecated_opts
    # Files have to exist; the other options of Nova show that the group is read.
    if not option.name.endswith(("_cert", "_key"))
]
FORMER_VALUES = {
    "nova_metadata_port": "8776",
    "nova_metadata_protocol": "https",
    "nova_metadata_insecure": "True",
}


@pytest.mark.parametrize(
    ("group", "option", "former"), DEPRECATED, ids=[one.name for _group, _option, one in DEPRECATED]
)
def test_an_option_is_taken_under_its_former_name_and_one_line_names_the_new_one(
    load: Load, caplog: pytest.LogCaptureFixture, group: str, option: cfg.Opt, former: object
) -> None:
    value = FORMER_VALUES.get(option.name, "192.0.2.7")
    old = getattr(former, "group", None) or group
    conf = load(**{f"{old}__{getattr(former, 'name', '')}": value})
    assert str((conf if group == "DEFAULT" else conf[group])[option.dest]) == value
    (record,) = caplog.records
    assert f'"{option.name}"' in record.getMessage()
    assert "deprecated" in record.getMessage()
    assert record.levelname == "WARNING"


def test_the_name_of_today_wins_over_the_former_one(load: Load) -> None:
    both = {"DEFAULT__nova_metadata_host": "192.0.2.8", "DEFAULT__nova_metadata_ip": "192.0.2.7"}
    assert load(**both).nova_metadata_host == "192.0.2.8"


def test_a_later_file_overrides_an_earlier_one(tmp_path: Path) -> None:
    for name, port in (("a", 1), ("b", 2)):
        (tmp_path / name).write_text(f"[df_metadata]\nport = {port}\n")
    conf = dfmeta.conf.load([str(tmp_path / "a"), str(tmp_path / "b")], prog="x")
    assert conf.df_metadata.port == 2


def test_the_default_file_is_read_when_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("[df_metadata]\nport = 5\n")
    files = (str(tmp_path / "a"), str(tmp_path / "missing"))
    monkeypatch.setattr(dfmeta.conf, "DEFAULT_FILES", files)
    assert dfmeta.conf.load((), prog="x").df_metadata.port == 5


def test_options_of_a_command_are_read_from_its_arguments(load: Load) -> None:
    conf = dfmeta.conf.load((), prog="x", args=["--it"], cli=[cfg.BoolOpt("it", default=False)])
    assert conf.it
    assert load("--debug").debug
    assert not load().debug


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.conf")
    with pytest.raises(ConfigError, match="there is no such file") as caught:
        dfmeta.conf.load([missing], prog="x")
    assert caught.value.fields["value"] == missing


@pytest.mark.parametrize("text", ["port = 5\n", "[df_metadata]\nport\n", "[df_metadata\n", "x"])
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dfmeta.conf"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        dfmeta.conf.load([str(path)], prog="x")
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("odd", ["directory", "bytes", "config-dir"])
def test_what_cannot_be_read_as_a_file_is_one_line_too(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "dfmeta.conf"
    if odd == "directory":
        path.mkdir()
    elif odd == "bytes":
        path.write_bytes(b"[df_metadata]\nport = \xff\n")
    args = ["--config-dir", str(path)] if odd == "config-dir" else ["--config-file", str(path)]
    with pytest.raises(ConfigError):
        dfmeta.conf.load((), prog="x", args=args)


def test_a_file_that_this_user_may_not_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dfmeta.conf"
    path.write_text("")

    # The tests run as root, whom no mode stops; oslo.config opens files by this name.
    def refuse(self: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cfg.ConfigParser, "parse", refuse)
    with pytest.raises(ConfigError, match="may not read"):
        dfmeta.conf.load([str(path)], prog="x")
