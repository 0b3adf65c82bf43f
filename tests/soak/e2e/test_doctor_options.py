"""``dfmeta doctor``, ``flows`` and ``trace`` where the files have other values than the daemon."""

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import META_DATA, NOVA_OPTIONS, project_ids, put_nova
from tests.host.e2e.ward import examine, only, status_of

ABOUT = "the daemon runs with other values than the files for"
GO_BY = "the other lines use the daemon's values"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Agent, Guest, RecordingNova]]:
    """A guest that Nova answers."""
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        nova = stack.enter_context(RecordingNova(host.namespace))
        guest = stack.enter_context(Guest(host, "web", ids=project_ids("web")))
        put_nova(nova, guest)
        agent = stack.enter_context(Agent(host, NOVA_OPTIONS))
        agent.start()
        yield agent, guest, nova


def wrongs(agent: Agent, root: Path) -> dict[str, str]:
    """Check → text, of all that is wrong."""
    found = examine(agent, root)
    return {line["check"]: line["text"] for line in found if line["status"] == "wrong"}


def reload(agent: Agent) -> None:
    before = agent.log().count("Reloaded")
    agent.signal(signal.SIGHUP)
    wait_for(lambda: agent.log().count("Reloaded") > before, "the reload")


def test_a_secret_in_the_file_is_the_daemons_after_a_reload(
    served: tuple[Agent, Guest, RecordingNova], tmp_path: Path
) -> None:
    agent, guest, _ = served
    assert only(examine(agent, tmp_path), "nova", "ok")
    agent.configure({"DEFAULT": {"metadata_proxy_shared_secret": "mistyped"}})
    reload(agent)
    assert guest.curl(META_DATA).status == 403
    found = examine(agent, tmp_path)
    assert "metadata_proxy_shared_secret here differs" in only(found, "nova", "wrong")["text"]
    assert only(found, "configuration", "ok")["text"] == (
        "all names in the files are options, and the running daemon has the same values"
    )
    agent.configure({"DEFAULT": {"metadata_proxy_shared_secret": SECRET}})
    assert guest.curl(META_DATA).status == 403
    found = examine(agent, tmp_path)
    line = only(found, "configuration", "wrong")
    name = "[DEFAULT] metadata_proxy_shared_secret"
    assert line["text"] == f"{ABOUT} {name}; {GO_BY}"
    assert "`systemctl reload dfmeta-agent`" in line["remedy"]
    assert only(found, "nova", "unknown")["text"] == (
        "Nova's metadata API at 127.0.0.1:8775 accepts dfmeta's signature, "
        f"with {name} of the files; the daemon has another value"
    )
    reload(agent)
    assert guest.curl(META_DATA).status == 200
    assert wrongs(agent, tmp_path) == {}


def test_options_that_need_a_restart_are_one_line_and_change_no_flow(
    served: tuple[Agent, Guest, RecordingNova], tmp_path: Path
) -> None:
    agent, guest, _ = served
    moved = {"port": 18081, "admin_listen": "127.0.0.1:9699"}
    agent.configure({"df_metadata": {**moved, "hold_timeout": 7}})
    reload(agent)
    agent.configure({"df_metadata": {"hold_timeout": 6}})
    assert guest.curl(META_DATA).status == 200
    found = examine(agent, tmp_path)
    restart, again = [line for line in found if line["status"] == "wrong"]
    names = "[df_metadata] port, [df_metadata] admin_listen"
    assert restart["text"] == f"{ABOUT} {names}; {GO_BY}"
    assert again["text"] == f"{ABOUT} [df_metadata] hold_timeout; {GO_BY}"
    assert "`systemctl restart dfmeta-agent`" in restart["remedy"]
    assert "`systemctl reload dfmeta-agent`" in again["remedy"]
    assert status_of(found, "flows") == status_of(found, "listener") == {"ok"}
    assert "169.254.169.254:18080" in only(found, "listener", "ok")["text"]
    flows = agent.ctl("flows", "--format", "json")
    assert {row["state"] for row in json.loads(flows.stdout)} == {"ok"}
    note = f"other values than these files in {names}, [df_metadata] hold_timeout;"
    assert note in flows.stderr
    trace = agent.ctl("trace", guest.port)
    assert note in trace.stderr
    assert "169.254.169.254:18080" in trace.stdout
    agent.configure({"df_metadata": {"admin_listen": "127.0.0.1:9697"}})
    agent.stop()
    agent.start()
    assert guest.curl(META_DATA).status == 200
    assert wrongs(agent, tmp_path) == {}
    agent.configure({"df_metadata": {"port": None, "hold_timeout": None}})
    agent.stop()
    agent.start()


OTHER = """
import http.server, os, socketserver
os.setuid(65534)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": "UP", "digest": {}, "files": [], "options": []}')
socketserver.TCPServer.allow_reuse_address = True
socketserver.TCPServer(("127.0.0.1", 9697), Handler).serve_forever()
"""


def test_options_go_to_this_host_alone_and_come_from_the_daemon_alone(
    served: tuple[Agent, Guest, RecordingNova], tmp_path: Path
) -> None:
    agent, _, _ = served
    namespace = agent.host.namespace
    url = "http://127.0.0.1:9697/options"
    curl = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}"]
    assert namespace.run([*curl, url]).stdout == "200"
    assert namespace.run([*curl, "--interface", "127.0.0.2", url]).stdout == "403"
    assert SECRET not in namespace.run(["curl", "-s", url]).stdout
    agent.stop()
    other = namespace.spawn(["python3", "-c", OTHER])
    try:
        wait_for(lambda: _answers(agent), "the other program")
        found = examine(agent, tmp_path)
        lines = {line["status"]: line["text"] for line in found if line["check"] == "configuration"}
        assert "the program at 127.0.0.1:9697 belongs to user 65534" in lines["unknown"]
    finally:
        other.kill()
        other.wait()
    agent.start()


def _answers(agent: Agent) -> bool:
    try:
        return agent.admin("/healthz/readiness").status == 200
    except (OSError, http.client.HTTPException):
        return False
