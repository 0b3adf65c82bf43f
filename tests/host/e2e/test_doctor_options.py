"""``dfmeta doctor``, ``flows`` and ``trace`` where the files have other values than the daemon."""

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
from tests.host.e2e.ward import examine, only

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
