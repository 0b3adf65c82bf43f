"""Nova behind TLS: a guest gets its metadata when each side knows the other, else none."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness.agent import Agent
from tests.harness.certificates import Authority, Pair
from tests.harness.engine import BEHAVIOUR
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import NOVA_OPTIONS, asks_own, project_ids, put_nova

HOLD_TIMEOUT = 1.5
EMPTY_REPLY = 52
"""curl's exit status for a connection that was closed without an answer."""
USER_DATA = b"\x1f\x8b\x08\x00 not text \r\n\x00\xff" * 100
ABSENT = "127.0.0.1:9"
"""A second host, which is never there: with it, why the first one failed is logged."""
AUTHORITY = "Set auth_ca_cert to the authority that signed Nova's certificate"
CLIENT = "Set nova_client_cert and nova_client_priv_key"


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Novas that speak TLS, and the authority of each."""

    authority: Authority
    stranger: Authority
    client: Pair
    nova: RecordingNova
    """127.0.0.1:8775, also known as localhost; wants a certificate."""
    novas: tuple[RecordingNova, ...]


host = shared.host


@pytest.fixture(scope="module")
def cloud(host: OpenvSwitch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    folder = tmp_path_factory.mktemp("certificates")
    authority, stranger = Authority(folder), Authority(folder, "stranger")
    good = authority.issue("localhost", "127.0.0.1", "::1")

    def nova(port: int, pair: Pair, address: str = "127.0.0.1") -> RecordingNova:
        return RecordingNova(
            host.namespace,
            host=address,
            port=port,
            certificate=pair,
            client_authority=authority.certificate,
        )

    with (
        nova(8775, good) as first,
        nova(8776, authority.issue("localhost", "127.0.0.1", expired=True)) as expired,
        nova(8777, authority.issue("nova.example.org")) as misnamed,
        nova(8778, good, "::1") as ipv6,
        RecordingNova(host.namespace, host="::1", port=8779) as plain_ipv6,
    ):
        yield Cloud(
            authority=authority,
            stranger=stranger,
            client=authority.issue("compute-1"),
            nova=first,
            novas=(first, expired, misnamed, ipv6, plain_ipv6),
        )


def options(cloud: Cloud, **changes: object) -> dict[str, dict[str, object]]:
    nova = {
        "metadata_proxy_shared_secret": SECRET,
        "nova_metadata_host": "127.0.0.1",
        "nova_metadata_port": 8775,
        "nova_metadata_protocol": "https",
        "nova_metadata_insecure": False,
        "auth_ca_cert": cloud.authority.certificate,
        "nova_client_cert": cloud.client.certificate,
        "nova_client_priv_key": cloud.client.key,
    }
    return {"DEFAULT": {**nova, **changes}}


@pytest.fixture(scope="module")
def agent(host: OpenvSwitch, cloud: Cloud) -> Iterator[Agent]:
    held = {"df_metadata": {**NOVA_OPTIONS["df_metadata"], "hold_timeout": HOLD_TIMEOUT}}
    with Agent(host, {**options(cloud), **held}) as daemon:
        yield daemon.start()
        daemon.stop()


Configure = Callable[..., None]


@pytest.fixture
def configure(agent: Agent, cloud: Cloud) -> Configure:
    """Change Nova's options from what they should be, and have the daemon read them."""

    def configure(**changes: Any) -> None:
        agent.configure(options(cloud, **changes))
        before = agent.log().count("Reloaded")
        agent.signal(signal.SIGHUP)
        wait_for(lambda: agent.log().count("Reloaded") > before, "the reload")

    configure()
    return configure


@pytest.fixture
def guest(cloud: Cloud, agent: Agent, make_guest: MakeGuest) -> Guest:
    guest = make_guest("one", ids=project_ids("one"))
    for nova in cloud.novas:
        nova.mend()
        put_nova(nova, guest, user_data=USER_DATA)
        nova.clear()
    return guest


def test_guest_is_served_through_tls(configure: Configure, cloud: Cloud, guest: Guest) -> None:
    asks_own(guest)
    assert guest.curl("/openstack/latest/user_data").body == USER_DATA
    assert guest.curl("/openstack/latest/password", data=b"\x00secret").status == 200
    assert cloud.nova.password(guest.instance_id) == b"\x00secret"


def stranger(cloud: Cloud) -> dict[str, object]:
    """Return a client's certificate of another authority."""
    pair = cloud.stranger.issue("compute-1")
    return {"nova_client_cert": pair.certificate, "nova_client_priv_key": pair.key}


def unchanged(_cloud: Cloud) -> dict[str, object]:
    """Return no change of the options."""
    return {}


NAMED = "Set nova_metadata_host to a name that Nova's certificate is for"
DISTRUST: list[tuple[str, Callable[[Cloud], dict[str, object]], str, str]] = [
    (
        "127.0.0.1",
        lambda _cloud: {"nova_client_cert": None, "nova_client_priv_key": None},
        *("CERTIFICATE_REQUIRED", CLIENT),
    ),
    ("127.0.0.1", stranger, "UNKNOWN_CA", CLIENT),
    (
        "127.0.0.1",
        lambda cloud: {"auth_ca_cert": cloud.stranger.certificate},
        *("CERTIFICATE_VERIFY_FAILED", AUTHORITY),
    ),
    ("127.0.0.1:8776", unchanged, "certificate has expired", "Renew Nova's certificate"),
    ("127.0.0.1:8777", unchanged, "IP address mismatch", NAMED),
    ("localhost:8777", unchanged, "Hostname mismatch", NAMED),
    ("[::1]:8779", unchanged, "WRONG_VERSION_NUMBER", "set nova_metadata_protocol = http"),
]
"""Nova's host, changes of the options, the cause in the log, and its remedy."""


def test_without_trust_no_guest_gets_metadata_and_the_log_has_the_remedy(
    configure: Configure, agent: Agent, cloud: Cloud, guest: Guest
) -> None:
    for where, changes, cause, remedy in DISTRUST:
        before = len(agent.log())
        configure(nova_metadata_host=f"{where},{ABSENT}", **changes(cloud))
        closed = guest.curl("/openstack/latest/meta_data.json")
        assert (closed.status, closed.body, closed.exit_code) == (0, b"", EMPTY_REPLY), cause
        lines = [line for line in agent.log()[before:].splitlines() if cause in line]
        named = any(where.partition(":87")[0] in line and remedy in line for line in lines)
        assert named or cause in BEHAVIOUR.unnamed, lines
        assert not any(nova.requests() for nova in cloud.novas), cause
    assert SECRET not in agent.log()
    assert "Traceback" not in agent.log()
    configure()
    asks_own(guest)
