"""No connection should be refused while no store runs."""

from collections.abc import Iterator

import pytest

from tests.harness.activator import Activator
from tests.harness.agent import ADMIN_PORT
from tests.harness.central import GUEST_PORT, Central
from tests.harness.guest import uuid_of
from tests.harness.netns import Namespace
from tests.host.e2e import test_activation
from tests.host.e2e.support import read_all
from tests.host.e2e.test_activation import READINESS

activator, agent = test_activation.activator, test_activation.agent

STORE = (
    ("dfmeta-store-guests", ("::", GUEST_PORT)),
    ("dfmeta-store-admin", ("127.0.0.1", ADMIN_PORT)),
)


@pytest.fixture
def central() -> Iterator[Central]:
    with (
        Namespace("store") as namespace,
        Central(namespace=namespace) as store,
        Activator(namespace, STORE) as activator,
    ):
        store.activator = activator
        yield store


def test_no_connection_is_refused_while_no_store_runs(central: Central) -> None:
    central.start()
    central.push(uuid_of("one"), "one", "127.0.0.1")
    request = b"GET /latest/meta-data/hostname HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n"
    for end in (central.stop, central.kill):
        end()
        with (
            central.namespace.connect("127.0.0.1", GUEST_PORT) as waiting,
            central.namespace.connect("127.0.0.1", ADMIN_PORT) as operator,
        ):
            waiting.sendall(request)
            operator.sendall(READINESS)
            central.start()
            assert read_all(waiting).endswith(b"one")
            assert read_all(operator).startswith(b"HTTP/1.1 ")
