"""How the harness treats a daemon, tried on one that only pretends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.harness import agent as subject
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for

pytestmark = pytest.mark.installed

PRETENDER = """
import http.server, json, signal, sys, threading
asked = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += self.path == "/healthz/readiness"
        status, body = (200, "{}") if asked > 3 else (503, '{"missing": ["all"]}')
        if self.path == "/metrics":
            body = '# TYPE a counter\\na_total{p="1",q="x y"} 2.0\\na_total{p="2"} 3\\nb 4e1\\n'
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())
    def log_message(self, *_):
        pass
print("arguments", sys.argv[1:], file=sys.stderr, flush=True)
if "--fail" in open(sys.argv[2]).read():
    sys.exit("dfmeta-agent: nothing works")
server = http.server.HTTPServer(("127.0.0.1", 9697), Handler)
stop = lambda *_: threading.Thread(target=server.shutdown).start()
stubborn = "stubborn" in open(sys.argv[2]).read()
signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else stop)
server.serve_forever()
"""


def answers(agent: Agent) -> bool:
    try:
        return agent.admin("/").status == 503
    except ConnectionRefusedError:
        return False


@pytest.fixture(autouse=True)
def _pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "pretender.py"
    script.write_text(PRETENDER)
    monkeypatch.setattr(subject, "program", lambda _: [sys.executable, "-IS", str(script)])


def test_a_daemon_is_waited_for_asked_and_stopped(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    agent = make_agent({"DEFAULT": {"debug": True}, "df_metadata": {"backend": None}})
    text = agent.config_file.read_text()
    assert f"ovsdb_connection = unix:{host.rundir}/db.sock\n" in text
    assert "[DEFAULT]\ndebug = True\n" in text
    assert "backend" not in text
    assert agent.metrics() == {'a_total{p="1",q="x y"}': 2.0, 'a_total{p="2"}': 3.0, "b": 40.0}
    assert agent.metric("a_total") == 5
    assert agent.metric("a_total", p="1") == 2
    assert agent.metric("a_total", p="1", q="x y") == 2
    assert agent.metric("c_total") == 0
    assert agent.pid in host.namespace.processes()
    agent.restart()
    agent.stop()
    assert agent.exit_status() == 0
    assert agent.log().count("arguments ['--config-file'") == 2


def test_a_daemon_that_ends_at_once_is_reported_with_its_log(make_agent: MakeAgent) -> None:
    with pytest.raises(RuntimeError, match=r"ended with 1:(.|\n)*nothing works"):
        make_agent({"DEFAULT": {"mode": "--fail"}})


def test_a_daemon_that_is_not_ready_is_reported_with_what_is_missing(host: OpenvSwitch) -> None:
    with Agent(host) as agent:
        agent.start(wait=False)
        wait_for(lambda: answers(agent), "the pretender to answer")
        with pytest.raises(RuntimeError, match=r'"missing": \["all"\]'):
            agent.wait_ready(0)


def test_a_daemon_that_does_not_stop_is_a_failure(make_agent: MakeAgent) -> None:
    agent = make_agent({"DEFAULT": {"mode": "stubborn"}})
    with pytest.raises(AssertionError, match=r"still runs [^\n]*:\n[0-9]+: \w+"):
        agent.stop(0.2)
    agent.kill()


def test_a_record_that_is_put_is_that_of_the_command(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    agent = make_agent(start=False)
    first, second = (f"00000000-0000-4000-8000-{number:012}" for number in range(2))
    agent.put(first, "web.example.org")
    agent.ctl("store", "put", second, "--hostname", "web.example.org")
    documents = [
        json.loads(agent.ctl("store", "get", one, "--format", "json").stdout)[0]
        for one in (first, second)
    ]
    for one, document in zip((first, second), documents, strict=True):
        assert document.pop("id") == one
        assert document.pop("created_at")
        assert document.pop("updated_at")
    assert documents[0] == documents[1]
