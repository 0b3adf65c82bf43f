"""Every client should trust the system's authorities and no library's own list of them."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.harness.certificates import Authority
from tests.harness.other_store import OtherStore, reply

LISTS = (
    "HTTPLIB2_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
CLIENTS = {
    "the command line": """
from dfmeta.store.api.client import StoreClient
StoreClient(url).ping()
""",
    "a look-up upstream": """
import time
from dfmeta.http.client import HttpClient, UrlRequest
HttpClient().handle_request(UrlRequest(f"{url}/x", deadline=time.monotonic() + 30))
""",
    "the keys of an issuer": """
from dfmeta.store.auth.oidc import fetch_json
fetch_json(f"{url}/x", timeout=30)
""",
    "Nova's client": """
import eventlet
eventlet.monkey_patch()
import socket
from eventlet.green import ssl
from dfmeta.proxy.backends.nova_requests import NovaSettings, nova_context
settings = NovaSettings((), b"", protocol="https")
connect(socket, nova_context(settings, create=ssl.create_default_context))
""",
    "the doctor as Nova's client": """
import socket
from dfmeta.proxy.backends.nova_requests import NovaSettings, nova_context
connect(socket, nova_context(NovaSettings((), b"", protocol="https")))
""",
    "Neutron's client": """
import dfmeta.conf
from dfmeta.conf.neutron import session
conf = dfmeta.conf.load([sys.argv[2]], prog="test")
session(conf).get(f"{url}/x", authenticated=False)
""",
}
PROGRAM = """
import sys
import urllib.parse
url = sys.argv[1]

def connect(socket, context):
    parts = urllib.parse.urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as sock:
        context.wrap_socket(sock, server_hostname=parts.hostname).close()
"""
NEUTRON = """\
[neutron]
auth_type = password
auth_url = http://localhost:1
username = a
password = b
"""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Iterator[OtherStore]:
    """Answers everything, with a certificate of that authority."""
    with OtherStore(lambda _: reply({}), tls=authority.issue("localhost")) as other_store:
        yield other_store


def ask(
    client: str, server: OtherStore, folder: Path, **environment: object
) -> subprocess.CompletedProcess[str]:
    """Have a client ask the server, where the environment names these authorities and no others."""
    (folder / "dfmeta.conf").write_text(NEUTRON)
    (folder / "none").mkdir(exist_ok=True)
    system: Mapping[str, object] = {
        "SSL_CERT_FILE": folder / "none",
        "SSL_CERT_DIR": folder / "none",
    }
    named = {name: str(value) for name, value in {**system, **environment}.items()}
    rest = {name: value for name, value in os.environ.items() if name not in LISTS}
    return subprocess.run(
        [
            *(sys.executable, "-c", PROGRAM + CLIENTS[client]),
            *(server.url, str(folder / "dfmeta.conf")),
        ],
        env={**rest, **named, "PYTHONWARNINGS": "ignore"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_authorities_of_the_system_are_trusted(
    client: str, server: OtherStore, authority: Authority, tmp_path: Path
) -> None:
    done = ask(client, server, tmp_path, SSL_CERT_FILE=authority.certificate)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("client", CLIENTS)
def test_authorities_of_libraries_are_not_trusted(
    client: str, server: OtherStore, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "certifi.py").write_text(
        f"def where():\n    return {str(authority.certificate)!r}\n\n\n"
        "def contents():\n    return open(where()).read()\n"
    )
    lists = dict.fromkeys(LISTS[:3], authority.certificate)
    done = ask(client, server, tmp_path, PYTHONPATH=tmp_path, **lists)
    assert done.returncode != 0
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr
    assert server.asked == []
