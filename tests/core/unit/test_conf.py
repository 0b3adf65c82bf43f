"""A wrong value should stop the daemon with a line that names option, value and remedy."""

import json
import os
import re
from pathlib import Path

import pytest
from oslo_config import cfg

import dfmeta.conf
from dfmeta.cli.doctor_command import make_inspection_options
from dfmeta.conf import nova, store, values
from dfmeta.conf.agent import layout_of
from dfmeta.doctor.checks_daemon import OptionFacts
from dfmeta.errors import ConfigError
from dfmeta.flows.pipeline import Layout
from dfmeta.model import HttpHost
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, Load
from tests.harness.certificates import Authority

SECRET = "a secret nobody may see"
LOOKUP = {"store__lookup_base_url": "https://store", "store__lookup_issuer": "https://login"}


@pytest.fixture(autouse=True)
def _no_file_of_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dfmeta.conf, "DEFAULT_FILES", ())


def registered() -> dict[str, dict[str, cfg.Opt]]:
    return {
        group or "DEFAULT": {option.name: option for option in options}
        for group, options in dfmeta.conf.own_opts()
    }


def test_the_admin_listener_is_on_loopback_by_default(load: Load) -> None:
    assert load().df_metadata.admin_listen == "127.0.0.1:9697"


def test_the_default_tables_are_those_of_the_layout(load: Load) -> None:
    assert layout_of(load().df_metadata) == Layout()


BAD: dict[str, dict[str, tuple[str, ...]]] = {
    "df_metadata": {
        "ip": ("banana", "::1", "127.0.0.1", "224.0.0.1"),
        "host_ip": ("1.2.3", "0.0.0.0", "$nothing"),
        "ip6": (
            *("169.254.169.254", "fe80::a9fe:a9fe%eth0", "ff02::1", "::ffff:10.0.0.1"),
            *("fe80::1,fe80:0::1", "fd00:a9fe:a9fe:a9fe:1::5"),
        ),
        "host_ip6": ("fe80::1", "::1", "fd00:ec2::254", "fd00:a9fe:a9fe:a9fe:1::5"),
        "meta_bridge": ("a-bridge-with-a-long-name", "br/meta"),
        "key_prefix6": ("fd00::/48", "fd00::1/64", "fe80::/64"),
        "port": ("70000", "http"),
        "metadata_interface": ("a-name-of-16-chars", "a b", ""),
        "integration_bridge": ("br/int",),
        "ovsdb_connection": (
            *("/var/run/openvswitch/db.sock", "tcp:127.0.0.1", "tcp:127.0.0.1:99999"),
        ),
        "openflow_connection": (
            *("tcp:127.0.0.1:6653", "listen:127.0.0.1:99999", "listen:127.0.0.1:0"),
        ),
        "table_base": ("0", "253", "2OO"),
        "hook_priority": ("0", "65535"),
        "route_table": ("0", "254", "main"),
        "hold_timeout": ("61", "-1", "soon", "nan"),
        "proxy_workers": ("-1", "auto"),
        "proxy_worker_user": ("no such user", "root", "nobody"),
        "listener_keep": ("0", "86401"),
        "admin_listen": ("9697", "127.0.0.1:0", "127.0.0.1:70000", "::1:9697"),
        "state_path": ("relative/path", "$nothing"),
        "identity_sources": ("ovsdb,xen", "ovsdb,ovsdb", ""),
        "libvirt_xml_path": ("run/libvirt", "/run,etc,/srv", ""),
    },
    "METADATA": {
        "provider_cidr": (
            *("240.0.0.0", "240.0.0.0/30", "240.0.0.0/8", "240.0.0.1/16", "127.0.0.0/16"),
            "224.1.0.0/16",
        ),
        "provider_vlan_id": ("0", "4095"),
        "provider_base_mac": ("fa:16:ee:00:00", "fa:16:ee:00:00:0g", "01:00:5e:00:00:00"),
        "host_proxy_listen_port": ("0", "65536"),
    },
    "attachments": {
        "allow": ("not an id",),
        "vid_range": ("2", "0:10", "10:2", "2:4095"),
        "rate": ("0", "nan"),
    },
    "haproxy": {
        "binary": ("two words",),
        "user": ("no such user", "root", "nobody"),
    },
    "DEFAULT": {
        "auth_ca_cert": ("/nonexistent/ca.pem",),
        "nova_metadata_host": ("nova-1,,nova-2", "http://nova", "nova:99999"),
        "nova_metadata_port": ("0",),
        "metadata_proxy_shared_secret": (f"{SECRET} $nothing",),
    },
    "neutron": {
        "host": ("a b",),
        "timeout": ("0",),
        "valid_interfaces": ("inside", ""),
        "endpoint_override": ("neutron:9696",),
        "cafile": ("/nonexistent/ca.pem",),
        "certfile": ("/nonexistent/cert.pem",),
    },
    "ovn": {
        "ovn_sb_connection": ("192.0.2.1:6642", "tcp:192.0.2.1", "tcp:192.0.2.1:6642,pssl:6642"),
        "ovn_sb_private_key": ("/nonexistent/key.pem",),
        "ovn_sb_certificate": ("/nonexistent/cert.pem",),
        "ovn_sb_ca_cert": ("/nonexistent/ca.pem",),
    },
    "guest_limits": {
        "header_max": ("8k",),
        "header_timeout": ("nan", "0"),
        "body_timeout": ("0",),
        "send_timeout": ("inf",),
    },
    "metadata_rate_limiting": {
        "ip_versions": ("5", "4,six", ""),
        "burst_window_duration": ("0.5",),
        "delay_max": ("8.1", "nan"),
    },
    "store": {
        "http_tokens_of": (
            *("required", "web1:required", f"{INSTANCE}:always", f"{{{INSTANCE}}}:off"),
        ),
        "max_body": ("1023", "1M"),
        "token_file": ("tokens",),
        "oidc_issuer": (
            *("login.example.org", "ftp://login.example.org"),
            *("https://user:password@login.example.org", "https://login.example.org/?tenant=1"),
        ),
        "oidc_jwks_url": ("/etc/keys.json",),
        "oidc_roles_claim": ("...", "the roles"),
        "lookup_base_url": (
            *("store.example.org", "ftp://store.example.org"),
            *("https://user:word@store.example.org", "https://store.example.org/?a=b"),
            *("https://store.example.org:99999", "https://:443"),
        ),
        "lookup_token_file": ("token",),
        "lookup_timeout": ("0", "nan"),
        "lookup_expiry": ("soon",),
        "lookup_issuer": ("login",),
        "lookup_client_id": ("ä",),
        "lookup_client_secret": ("ä",),
        "lookup_audience": ("ä",),
        "lookup_scopes": ('a"b', "read,,write"),
        "guest_listen": ("192.0.2.1", ":80", "192.0.2.1:0", "[::]:65536", "2001:db8::1:80"),
        "trusted_proxies": ("proxy.example.org", "10.0.0.0/33", "fe80::1%eth0", "10.0.0.1:80"),
    },
}
"""Group → option → wrong values; the others have :func:`wrong_values`."""


def wrong_values(option: cfg.Opt) -> tuple[str, ...]:
    if isinstance(option, cfg.BoolOpt) or getattr(option.type, "choices", None):
        return ("perhaps",)
    return ("$nothing",)


def test_a_wrong_value_is_named_with_its_option_and_a_remedy(load: Load) -> None:
    rows = [
        (group, option, value)
        for group, options in registered().items()
        for option in options.values()
        for value in BAD[group].get(option.name, wrong_values(option))
    ]
    for group, option, value in rows:
        name = option.name
        try:
            load(**{f"{group}__{name}": value})
        except ConfigError as error:
            fields, sentence = error.fields, str(error)
        else:
            pytest.fail(f"[{group}] {name} = {value} is accepted")
        assert fields["option"] == f"[{group}] {name}", value
        assert fields["remedy"], (name, value)
        assert "\n" not in sentence
        assert SECRET not in sentence
        value = value.replace("user:word@", "(hidden)@").replace("user:password@", "(hidden)@")
        named = (
            [part.strip() for part in value.split(",")] if name == "nova_metadata_host" else [value]
        )
        assert str(fields["value"]) in (["(secret)"] if option.secret else named)


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


TOGETHER: list[tuple[dict[str, object], str]] = [
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
]


def test_options_that_do_not_go_together_are_named(load: Load) -> None:
    for options, named in TOGETHER:
        with pytest.raises(ConfigError, match=named):
            load(**options)


RIGHT: list[dict[str, object]] = [
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
]


def test_a_right_value_is_taken(load: Load) -> None:
    for options in RIGHT:
        conf = load(**options)
        for name, value in options.items():
            group, _, option = name.rpartition("__")
            section = conf if group == "DEFAULT" else conf[group or "df_metadata"]
            assert str(section[option]) == str(value)
    limits = load(metadata_rate_limiting__ip_versions="4, 6").metadata_rate_limiting
    assert limits.ip_versions == [4, 6]


def test_certificates_that_can_be_loaded_are_taken(load: Load, authority: Authority) -> None:
    pair = authority.issue("client")
    values = (authority.certificate, pair.certificate, pair.key)
    names = ("auth_ca_cert", "nova_client_cert", "nova_client_priv_key")
    conf = load(**{f"DEFAULT__{name}": value for name, value in zip(names, values, strict=True)})
    assert [conf[name] for name in names] == [str(value) for value in values]


def test_file_without_a_key_is_named(load: Load, authority: Authority, tmp_path: Path) -> None:
    pair, path = authority.issue("client"), tmp_path / "odd.pem"
    broken = pair.certificate.read_bytes().replace(b"A", b"!")
    encrypted = authority.issue("x", passphrase="x").key.read_bytes()
    for content in (b"no PEM\n", b"", broken, encrypted):
        path.write_bytes(content)
        for wrong in ("auth_ca_cert", "nova_client_cert", "nova_client_priv_key"):
            files = {"nova_client_cert": pair.certificate, "nova_client_priv_key": pair.key}
            files[wrong] = path
            with pytest.raises(ConfigError, match="that can be loaded") as caught:
                load(**{f"DEFAULT__{name}": file for name, file in files.items()})
            assert caught.value.fields["option"] == f"[DEFAULT] {wrong}", content
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


def test_a_list_of_hosts_is_read(load: Load) -> None:
    for text, hosts in (
        ("nova", [("nova", 8775)]),
        ("nova:80", [("nova", 80)]),
        ("a, b:1 ,10.0.0.1:65535", [("a", 8775), ("b", 1), ("10.0.0.1", 65535)]),
        ("2001:db8::1", [("2001:db8::1", 8775)]),
        ("[2001:db8::1]", [("2001:db8::1", 8775)]),
        ("[2001:db8::1]:80", [("2001:db8::1", 80)]),
    ):
        conf = load(DEFAULT__nova_metadata_host=text)
        assert nova.hosts(conf) == [HttpHost(*host) for host in hosts]
    assert [host.authority for host in nova.hosts(conf)] == ["[2001:db8::1]:80"]


def test_an_instance_has_one_token_mode_of_its_own(load: Load) -> None:
    text = f"{INSTANCE.upper()}:required, {OTHER_INSTANCE}:off"
    modes = store.http_tokens_of(load(store__http_tokens_of=text))
    assert modes == {INSTANCE: "required", OTHER_INSTANCE: "off"}
    for second in (OTHER_INSTANCE, OTHER_INSTANCE.upper()):
        with pytest.raises(ConfigError, match=r"\[store\] http_tokens_of"):
            load(store__http_tokens_of=f"{OTHER_INSTANCE}:off,{second}:required")


BAD_HOSTS = (
    *("", "a:", "a:0", "a:65536", "a:x", "a:\u0661", "a b", "a/b", "u@a", "a?b", "a#b", "[]"),
    # They only look like a host.
    *("[::1", "::1]:80", "[a]:80", "[10.0.0.1]:80", "a:b:80", "nova..example", "a%b", "a\x01b"),
)


def test_a_malformed_host_is_refused(load: Load) -> None:
    for text in BAD_HOSTS:
        with pytest.raises(ConfigError, match="nova_metadata_host"):
            load(DEFAULT__nova_metadata_host=text)


DEPRECATED = [
    (group or "DEFAULT", option, former)
    for group, options in dfmeta.conf.own_opts()
    for option in options
    for former in option.deprecated_opts
    # Files have to exist; the other options of Nova show that the group is read.
    if not option.name.endswith(("_cert", "_key"))
]
FORMER_VALUES = {
    "nova_metadata_port": "8776",
    "nova_metadata_protocol": "https",
    "nova_metadata_insecure": "True",
}


def test_an_option_is_taken_under_its_former_name_and_one_line_names_the_new_one(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    assert DEPRECATED
    for group, option, former in DEPRECATED:
        caplog.clear()
        value = FORMER_VALUES.get(option.name, "192.0.2.7")
        conf = load(**{f"{former.group or group}__{former.name}": value})
        assert str((conf if group == "DEFAULT" else conf[group])[option.dest]) == value
        (record,) = caplog.records
        assert f'"{option.name}"' in record.getMessage()
        assert "deprecated" in record.getMessage()
        assert record.levelname == "WARNING"


def test_the_name_of_today_has_precedence_over_the_former_one(load: Load) -> None:
    both = {"DEFAULT__nova_metadata_host": "192.0.2.8", "DEFAULT__nova_metadata_ip": "192.0.2.7"}
    assert load(**both).nova_metadata_host == "192.0.2.8"


def test_default_files_give_way_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, port in (("a", 1), ("b", 2)):
        (tmp_path / name).write_text(f"[df_metadata]\nport = {port}\n")
    files = [str(tmp_path / name) for name in ("a", "b", "missing")]
    assert dfmeta.conf.load(files[:2], prog="x").df_metadata.port == 2
    monkeypatch.setattr(dfmeta.conf, "DEFAULT_FILES", (files[0], files[2]))
    assert dfmeta.conf.load((), prog="x").df_metadata.port == 1


@pytest.fixture
def drop_ins(tmp_path: Path) -> Path:
    """A file whose directory has three, and another directory."""
    main, folder, other = (tmp_path / name for name in ("main.conf", "main.conf.d", "other"))
    main.write_text("[df_metadata]\nport = 1\nproxy_workers = 1\n[store]\nmax_body = 1024\n")
    for path, text in (
        (folder / "10.conf", "[df_metadata]\nport = 10\nhold_timeout = 3\n"),
        (folder / "20.conf", "[df_metadata]\nport = 20\n"),
        (folder / "30.conf.off", "[df_metadata]\nport = 30\n"),
        (folder / ".40.conf", "[df_metadata]\nport = 40\n"),
        (other / "1.conf", "[df_metadata]\nport = 100\n"),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return main


def test_files_of_a_directory_are_read_after_its_file_in_order(
    drop_ins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, folder, other = str(drop_ins), str(drop_ins.parent), str(drop_ins.with_name("other"))
    monkeypatch.setattr(dfmeta.conf, "DEFAULT_FILES", (main,))
    for files, args, port in (
        ([], [], 20),
        ([main], [], 20),
        ([], ["--config-file", main], 20),
        ([], [f"--config-file={main}", "--debug"], 20),
        ([main, other], [], 100),
        ([other, main], [], 20),
        ([], ["--config-dir", other], 100),
        ([], ["--config-d", other, "--config-file", main], 20),
        ([f"{main}.d/10.conf"], [], 10),
    ):
        conf = dfmeta.conf.load(files, prog="x", args=args)
        assert conf.df_metadata.port == port, (files, args)
        assert conf.df_metadata.hold_timeout == 3
        assert conf.debug is ("--debug" in args)
    conf = dfmeta.conf.load([main, other], prog="x")
    names = ["main.conf", "main.conf.d/10.conf", "main.conf.d/20.conf", "other/1.conf"]
    assert values.document(conf, 0)["files"] == [f"{folder}/{name}" for name in names]


def test_fault_in_a_directory_is_reported_with_its_file(
    drop_ins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, file = str(drop_ins), f"{drop_ins}.d/20.conf"
    for text in ("[df_metadata]\nport = 99999\n", "port\n", "[df_metadata]\nport = \xff\n"):
        Path(file).write_text(text, encoding="latin-1")
        with pytest.raises(ConfigError, match=re.escape(file)) as caught:
            dfmeta.conf.load([main], prog="x")
        assert "\n" not in str(caught.value)
    Path(file).unlink()
    Path(file).symlink_to("missing")
    with pytest.raises(ConfigError, match=re.escape(file)):
        dfmeta.conf.load([main], prog="x")
    Path(file).unlink()
    # A name of a group that later files have as well belongs to the file in which it stands.
    Path(f"{main}.d/05.conf").write_text("[df_metadata]\nhold_timeot = 5\nhold_timeout = 2\n")
    conf = dfmeta.conf.load([main], prog="x")
    (error,) = dfmeta.conf.unknown_options(conf)
    assert error.fields["file"] == f"{main}.d/05.conf"
    places = [conf.get_location(name, "df_metadata") for name in ("proxy_workers", "hold_timeout")]
    assert [place and place.detail for place in places] == [main, f"{main}.d/10.conf"]

    def refuse(folder: str) -> list[str]:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(ConfigError, match=re.escape(f"{main}.d")):
        dfmeta.conf.load([main], prog="x")


def test_each_file_with_a_secret_is_checked(drop_ins: Path) -> None:
    secret = "[DEFAULT]\nmetadata_proxy_shared_secret = hunter2\n"
    drop_ins.write_text(secret)
    for name, text in (("10", "[DEFAULT]\ndebug = no\n"), ("20", secret)):
        Path(f"{drop_ins}.d/{name}.conf").write_text(text)
    conf = dfmeta.conf.load([str(drop_ins)], prog="x")
    options = make_inspection_options(conf, OptionFacts())
    assert options.secrets == {
        path: ["metadata_proxy_shared_secret"] for path in (str(drop_ins), f"{drop_ins}.d/20.conf")
    }


def test_options_of_a_command_are_read_from_its_arguments(load: Load) -> None:
    conf = dfmeta.conf.load((), prog="x", args=["--it"], cli=[cfg.BoolOpt("it", default=False)])
    assert conf.it
    assert load("--debug").debug
    assert not load().debug


def test_unreadable_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dfmeta.conf"
    with pytest.raises(ConfigError, match="there is no such file") as caught:
        dfmeta.conf.load([str(path)], prog="x")
    assert caught.value.fields["value"] == str(path)
    with pytest.raises(ConfigError):
        dfmeta.conf.load((), prog="x", args=["--config-dir", str(path)])
    path.mkdir()
    with pytest.raises(ConfigError):
        dfmeta.conf.load((), prog="x", args=["--config-file", str(path)])
    path.rmdir()
    malformed = (b"port = 5\n", b"[df_metadata]\nport\n", b"[df_metadata\n", b"x")
    for content in (*malformed, b"[df_metadata]\nport = \xff\n"):
        path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            dfmeta.conf.load([str(path)], prog="x")
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)

    # The tests run as root, whom no mode stops; oslo.config opens files by this name.
    def refuse(self: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cfg.ConfigParser, "parse", refuse)
    with pytest.raises(ConfigError, match="may not read"):
        dfmeta.conf.load([str(path)], prog="x")
