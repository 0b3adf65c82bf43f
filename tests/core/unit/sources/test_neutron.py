"""Neutron should be asked in few calls, with tokens that are renewed, and its failures told."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import eventlet
import pytest
from oslo_config import cfg

import dfmeta.conf
from dfmeta.conf import neutron as neutron_options
from dfmeta.errors import ConfigError, SourceError
from dfmeta.model import Port
from dfmeta.neutron.client import AT_ONCE, LIST_FROM, NeutronApi, Row
from dfmeta.runtime import clock
from dfmeta.sources.neutron import NeutronSource
from dfmeta.sources.source import Ownership, PortQuery
from tests.harness import neutron as harness
from tests.harness.neutron import Neutron
from tests.harness.other_store import NOT_FOUND, Asked, Last, OtherStore, reply

A = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"


def port_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def port(number: int) -> Port:
    return Port(name=f"tap{number}", row=str(number), ofport=number, iface_id=port_id(number))


@pytest.fixture
def server() -> Iterator[Neutron]:
    with Neutron() as started:
        yield started


MakeApi = Callable[..., NeutronApi]
Load = Callable[..., cfg.ConfigOpts]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Return the configuration for a Neutron at a URL."""

    def load(url: str, **more: object) -> cfg.ConfigOpts:
        values = harness.options(url, timeout=30, **more)
        lines = [f"{name} = {value}" for name, value in values.items()]
        file = tmp_path / "dfmeta.conf"
        file.write_text("\n".join(["[neutron]", *lines, ""]))
        return dfmeta.conf.load([str(file)], prog="test")

    return load


@pytest.fixture
def api(server: Neutron, load: Load) -> MakeApi:
    def make(**more: object) -> NeutronApi:
        conf = load(server.url, **more)
        where = {"interface": ["internal"], "region_name": conf.neutron.region_name}
        session = neutron_options.session(conf)
        return NeutronApi(session, host=harness.HOST, where=where)

    return make


def ask(source: NeutronSource, number: int = 1) -> Ownership:
    return source.find(PortQuery(port(number), clock.now()))


def test_instance_and_project_come_over_the_wire(server: Neutron, api: MakeApi) -> None:
    server.put(harness.port(port_id(1), A, "p"))
    server.put(harness.port(port_id(2), A, "q", host="elsewhere"))
    server.put(harness.port(port_id(3), "dhcp-x", "p", owner="network:dhcp"))
    source = NeutronSource(api(), timeout=60)
    assert ask(source) == Ownership(A, port_project="p")
    # Still bound to the source of its migration: asked for by its id.
    assert ask(source, 2) == Ownership(A, port_project="q")
    assert ask(source, 3) == ask(source, 4) == Ownership()
    assert "binding%3Ahost_id=compute-1" in server.requests()[0]
    assert "binding" not in server.requests()[-1]


def test_a_token_that_is_no_longer_good_is_renewed(server: Neutron, api: MakeApi) -> None:
    server.put(harness.port(port_id(1), A, "p"))
    source = NeutronSource(api(), timeout=60)
    assert ask(source).instance_id == A
    server.tokens.clear()
    assert ask(source).instance_id == A
    assert server.issued == 2


def test_a_failure_is_told_and_the_next_try_succeeds(server: Neutron, api: MakeApi) -> None:
    server.put(harness.port(port_id(1), A, "p"))
    source = NeutronSource(api(), timeout=60)
    for service, answer, cause in (
        ("keystone", reply({"error": "broken"}, status=500), "500"),
        ("neutron", reply({"error": "broken"}, status=500), "500"),
        ("neutron", Last(), "Unable to establish connection"),
        ("neutron", reply(b"<html>"), "not JSON"),
        ("neutron", reply([]), "no list"),
        ("neutron", reply({"ports": [1]}), "no list"),
    ):
        server.faults[service] = answer
        with pytest.raises(SourceError) as caught:
            ask(source)
        assert cause in str(caught.value)
        server.faults.clear()
        assert ask(source).instance_id == A


def test_bytes_behind_an_answer_are_no_answer_to_another_request(load: Load) -> None:
    def answer(request: Asked) -> bytes:
        late = NOT_FOUND if len(neutron.asked) > neutron.connections else b""
        return late + reply({"path": request.target})

    with OtherStore(answer) as neutron:
        session = neutron_options.session(load(neutron.url))
        for path in ("/subnets/a", "/subnets/b"):
            answer_to = session.get(neutron.url + path, authenticated=False)
            assert answer_to.json() == {"path": path}


def test_an_account_or_a_catalogue_that_does_not_fit_is_told(api: MakeApi) -> None:
    with pytest.raises(SourceError) as caught:
        ask(NeutronSource(api(password="wrong-one"), timeout=60))
    assert "401" in str(caught.value)
    assert "wrong-one" not in str(caught.value)
    with pytest.raises(SourceError, match="not found"):
        ask(NeutronSource(api(region_name="two"), timeout=60))
    with pytest.raises(ConfigError, match="certfile"):
        api(keyfile="/nowhere")
    # The next configuration is another.
    assert dfmeta.conf.load([], prog="test").neutron.timeout == 2


class Recording:
    def __init__(self, *here: int) -> None:
        self.here = here
        self.calls: list[str] = []
        self.pause = 0.0

    def on_host(self) -> list[Row]:
        self.calls.append("host")
        eventlet.sleep(self.pause)
        return [harness.port(port_id(number), A, "p") for number in self.here]

    def by_id(self, ids: Sequence[str]) -> list[Row]:
        self.calls.append(f"{len(ids)} ids")
        return [harness.port(port_id, A, "p") for port_id in ids]


def test_questions_at_once_share_a_call() -> None:
    ports = Recording(*range(300))
    source = NeutronSource(ports, timeout=5)
    pool = eventlet.GreenPool()
    answers = list(pool.imap(lambda number: ask(source, number), range(300 + AT_ONCE + 1)))
    assert {answer.instance_id for answer in answers} == {A}
    assert ports.calls == ["host", f"{AT_ONCE} ids", "1 ids"]
    assert {answer.instance_id for answer in pool.imap(lambda n: ask(source, n), range(3))} == {A}
    assert ports.calls[3:] == ["3 ids"]
    list(pool.imap(lambda number: ask(source, number), range(LIST_FROM)))
    assert ports.calls[4:] == ["host"]


def test_a_call_that_takes_too_long_is_told() -> None:
    ports = Recording(1)
    ports.pause = 5
    with pytest.raises(SourceError, match="no answer within"):
        ask(NeutronSource(ports, timeout=2))
    answer = NeutronSource(ports, timeout=1).find(
        PortQuery(Port(name="x", row="r", ofport=1, iface_id="container-7"), 0.0)
    )
    assert (answer, ports.calls) == (Ownership(), ["host"]), "no port of Neutron's"


def test_without_keystoneauth_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "keystoneauth1", None)
    with pytest.raises(ConfigError, match=r"pip install 'dfmeta\[neutron\]'"):
        neutron_options.session(cfg.ConfigOpts())
    assert neutron_options.sample_opts() == neutron_options.OPTS
