"""Options that differ from the daemon's should be named by doctor."""

import http.client
import json
from pathlib import Path

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.poll import wait_for
from tests.host.e2e import test_doctor_options
from tests.host.e2e.support import META_DATA
from tests.host.e2e.test_doctor_options import ABOUT, GO_BY, reload, wrongs
from tests.host.e2e.ward import examine, only, status_of

served = test_doctor_options.served


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
