"""haproxy's configuration should follow the daemon's, and a wrong option should name itself."""

import hashlib
import hmac
import os
import resource
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from eventlet.green import socket as green_socket
from oslo_config import cfg

from dfmeta.errors import ConfigError, StartError
from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint, Identity
from dfmeta.wiring import haproxy, services
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, PROJECT, Load, address, port
from tests.harness.certificates import Authority

HERE = Endpoint(13)
SECRET = "DEFAULT__metadata_proxy_shared_secret"
Conf = Callable[..., cfg.ConfigOpts]


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """A program that may be run; the fixture ``says`` has what it says."""
    path = tmp_path / "haproxy"
    path.touch(0o755)
    return path


@pytest.fixture
def conf(load: Load, binary: Path, says: list[Any]) -> Conf:
    del says

    def build(**options: object) -> cfg.ConfigOpts:
        usual = {
            "engine": "haproxy",
            "backend": "nova",
            "haproxy__binary": binary,
            SECRET: "a secret",
        }
        return load(**usual | options)

    return build


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the program says last, or how its run fails; and commands that ran before it."""
    answers: list[Any] = ["HAProxy version 3.0.1 2024/06/10\nFeature list : +LUA -QUIC"]

    def run(command: list[str], **_options: Any) -> Any:
        answers.insert(0, command)
        if isinstance(answers[-1], Exception):
            raise answers[-1]
        return SimpleNamespace(stdout=answers[-1])

    monkeypatch.setattr(subprocess, "run", run)
    return answers


def test_options_that_do_not_go_together_are_named(conf: Conf) -> None:
    for options, option, cause in (
        ({"backend": "store"}, "[df_metadata] engine", "haproxy can only ask Nova"),
        ({"proxy_workers": 2}, "[df_metadata] proxy_workers", "workers belong to engine = wsgi"),
        ({"haproxy__user": "no-such-user"}, "[haproxy] user", "there is no such user"),
        ({"haproxy__user": "root"}, "[haproxy] user", "it is root"),
        ({"haproxy__user": "nobody"}, "[haproxy] user", "other programs may run as this user"),
    ):
        with pytest.raises(ConfigError) as caught:
            conf(**options)
        assert caught.value.option == option, options
        assert cause in str(caught.value), options
    for option, wrong in (("threads", 0), ("threads", 65), ("maxconn", 63), ("maxconn", 65537)):
        with pytest.raises(ConfigError, match=option):
            conf(**{f"haproxy__{option}": wrong})


def test_program_is_found_in_the_usual_folders_and_asked_as_its_user(
    conf: Conf, binary: Path, says: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "HAPROXY_FOLDERS", (str(binary.parent),))
    monkeypatch.setenv("PATH", "/nonexistent")
    program = services.find_haproxy(conf(haproxy__binary="haproxy"))
    assert (program.binary, program.user) == (str(binary), "")
    assert (program.version, program.lua) == ("3.0.1", True)
    assert says[0][3:] == ["", "64", str(os.getpid()), str(binary), "-vv"]
    says[-1] = "HAProxy version 2.6.0\nFeature list : -LUA"
    program = services.find_haproxy(conf(haproxy__binary="haproxy"))
    assert (program.version, program.lua) == ("2.6.0", False)


def test_program_that_cannot_be_used_is_named_with_its_package(conf: Conf, says: list[Any]) -> None:
    none = "is not haproxy, or does not run without privileges"
    for binary, output, cause in (
        ("/no/such/haproxy", "", "there is no such program"),
        ("/no/such/haproxy", "", "Install the package haproxy, version 2.6 or later"),
        ("", "HAProxy version 2.5.14 2023/05/02", "has version 2.5.14"),
        ("", "HAProxy version 1.8", "has version 1.8"),
        ("", "HA-Proxy version 1.6.3 2015/12/25", none),
        ("", "nginx version: 1.22", none),
        ("", subprocess.CalledProcessError(1, "haproxy"), none),
        ("", subprocess.TimeoutExpired("haproxy", 10), none),
        ("", PermissionError(), none),
        ("", UnicodeDecodeError("ascii", b"x", 0, 1, "odd"), none),
    ):
        says[-1] = output
        with pytest.raises(ConfigError) as caught:
            services.find_haproxy(conf(**({"haproxy__binary": binary} if binary else {})))
        assert caught.value.option == "[haproxy] binary", output
        assert cause in str(caught.value), output


def test_more_connections_than_files_are_named(conf: Conf, monkeypatch: pytest.MonkeyPatch) -> None:
    for most, maxconn in ((25088, 8192), (resource.RLIM_INFINITY, 8192)):
        monkeypatch.setattr(resource, "getrlimit", lambda _kind, most=most: (1024, most))
        haproxy.make_setup(conf(haproxy__maxconn=maxconn), Registry())
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1024, 25087))
    with pytest.raises(ConfigError) as caught:
        haproxy.make_setup(conf(haproxy__maxconn=8192), Registry())
    assert caught.value.option == "[haproxy] maxconn"
    assert "it needs 25088 open files, and dfmeta-agent may have 25087" in str(caught.value)


def test_plan_follows_the_options(conf: Conf) -> None:
    options = {
        "hold_timeout": 5,
        "timeout_answer": "close",
        "refuse_forwarded": True,
        "haproxy__threads": 2,
        "haproxy__maxconn": 128,
        "DEFAULT__nova_metadata_host": "127.0.0.1, [::1]:8776, 127.0.0.1",
    }
    plan = haproxy.make_plan(conf(**options))
    assert [
        (server.host, server.authority, str(server.address), server.port) for server in plan.servers
    ] == [("127.0.0.1", "127.0.0.1:8775", "127.0.0.1", 8775), ("::1", "[::1]:8776", "::1", 8776)]
    assert (plan.several, plan.tls, plan.network_data_subports) == (True, False, True)
    assert (plan.hold_timeout, plan.timeout_answer, plan.refuse_forwarded) == (5, "close", True)
    assert (plan.threads, plan.maxconn) == (2, 128)
    assert plan.hosts[:3] == ("169.254.169.254", "169.254.169.254:80", "[fe80::a9fe:a9fe]")
    assert not haproxy.make_plan(conf(network_data_subports=False)).network_data_subports


def resolver(*addresses: str) -> Callable[..., list[Any]]:
    def getaddrinfo(_host: str, number: int, *_more: int) -> list[Any]:
        return [(0, socket.SOCK_STREAM, 6, "", (address, number)) for address in addresses]

    return getaddrinfo


def test_name_has_its_addresses_without_zone(conf: Conf, monkeypatch: pytest.MonkeyPatch) -> None:
    named = conf(DEFAULT__nova_metadata_host="nova.example")
    answers = resolver("192.0.2.1", "fe80::1%eth0", "2001:db8::1")
    monkeypatch.setattr(green_socket, "getaddrinfo", answers)
    plan = haproxy.make_plan(named)
    assert [str(server.address) for server in plan.servers] == ["192.0.2.1", "2001:db8::1"]
    assert {server.authority for server in plan.servers} == {"nova.example:8775"}
    assert not plan.several

    def unknown(*_args: object) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(green_socket, "getaddrinfo", unknown)
    assert haproxy.make_plan(named).servers == ()


def test_unnamed_host_is_not_asked_over_tls(conf: Conf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(green_socket, "getaddrinfo", resolver("192.0.2.1"))
    options = {
        "DEFAULT__nova_metadata_protocol": "https",
        "DEFAULT__nova_metadata_insecure": True,
        "DEFAULT__nova_metadata_host": "192.0.2.1, nova.example, ::1",
    }
    plan = haproxy.make_plan(conf(**options))
    assert [server.host for server in plan.servers] == ["nova.example"]
    assert (plan.tls, plan.insecure, plan.several) == (True, True, True)


def test_files_for_tls_are_read_once(conf: Conf, authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("client")
    ca, cert = authority.certificate.read_bytes(), pair.certificate.read_bytes()
    copy = tmp_path / "ca.pem"
    copy.write_bytes(ca)
    https = {"DEFAULT__nova_metadata_protocol": "https"}
    files = {
        "DEFAULT__auth_ca_cert": copy,
        "DEFAULT__nova_client_cert": pair.certificate,
        "DEFAULT__nova_client_priv_key": pair.key,
    }
    for options, *secrets in (
        (https | files, ca, cert + b"\n" + pair.key.read_bytes()),
        (files, b"", b""),
        (https, b"", b""),
    ):
        secrets_read = haproxy.make_setup(conf(**options), Registry()).plan().secrets
        assert [secrets_read.ca, secrets_read.cert] == secrets
    loaded = conf(**https | files)
    os.unlink(copy)
    with pytest.raises(StartError, match="certificates for Nova cannot be loaded"):
        haproxy.make_setup(loaded, Registry())


def plain(conf: cfg.ConfigOpts, *, version: int = 4, **identity: str) -> bool:
    fields = {"instance_id": INSTANCE, "project_id": PROJECT} | identity
    guest = Identity(**fields, port_id="port", port_name="tap1", incarnation=1)
    return haproxy.make_setup(conf, Registry()).entries.plain(guest, version)


def test_requests_with_limits_or_tokens_or_without_a_project_are_the_daemons(conf: Conf) -> None:
    group = "metadata_rate_limiting__"
    limited = {f"{group}rate_limit_enabled": True, f"{group}ip_versions": 4}
    of_one = {"store__http_tokens_of": f"{INSTANCE}:required"}
    rows: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
        ({}, {}, True),
        ({}, {"project_id": ""}, False),
        (limited, {"version": 4}, False),
        (limited, {"version": 6}, True),
        ({"store__http_tokens": "optional"}, {}, True),
        ({"store__http_tokens": "off"}, {}, True),
        ({"store__http_tokens": "required"}, {}, False),
        (of_one, {}, False),
        (of_one, {"instance_id": INSTANCE.upper()}, False),
        (of_one, {"instance_id": OTHER_INSTANCE}, True),
    ]
    for options, guest, expected in rows:
        assert plain(conf(**options), **guest) is expected, (options, guest)


def test_entries_are_signed_as_nova_expects(conf: Conf) -> None:
    registry = Registry()
    registry.set_port(port(13))
    registry.learn(HERE, address(), 0)
    ((_endpoint, entries),) = haproxy.make_setup(conf(), registry).entries.batch_of([HERE])
    signature = hmac.new(b"a secret", INSTANCE.encode(), hashlib.sha256).hexdigest()
    assert [entry.split("|")[4:] for entry in entries.values()] == [[PROJECT, INSTANCE, signature]]
