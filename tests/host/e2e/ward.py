"""What the tests of ``dfmeta doctor`` on services and on its own process share."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness.agent import Agent, Options, ini, program
from tests.harness.guest import Guest
from tests.harness.neutron import PASSWORD
from tests.harness.nova import SECRET
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.support import NOVA_OPTIONS, project_ids

Line = dict[str, Any]


class Ward:
    """A host whose daemon has been stopped in good order, and its doctor."""

    def __init__(self, host: OpenvSwitch, agent: Agent, folder: Path) -> None:
        self.host = host
        self.agent = agent
        self.folder = folder

    def lines(self, options: Options | None = None, *, root: Path | None = None) -> list[Line]:
        """All lines, with *options* for this once."""
        return examine(self.agent, root or self.folder, options=options)

    def wrong(self, check: str, options: Options | None = None) -> Line:
        """The one line of *check*, which is wrong."""
        return only(self.lines(options), check, "wrong")


@pytest.fixture(scope="module")
def shared_ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    """Provide the ward of a module, with a guest that has been served."""
    ids = project_ids("served")
    with OpenvSwitch() as host, Agent(host) as agent, Guest(host, "served", ids=ids):
        agent.start()
        agent.stop()
        yield Ward(host, agent, tmp_path_factory.mktemp("root"))


def examine(
    agent: Agent,
    root: Path,
    *prefix: str,
    options: Options | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Line]:
    """Every line of doctor's, with *options* in a file that comes after the daemon's own."""
    more = agent.folder / "more.conf"
    more.write_text(ini(options or {}))
    more.chmod(0o600)
    command = [*program("dfmeta"), "doctor", "--format", "json", "--root", str(root)]
    command += ["--config-file", str(agent.config_file), "--config-file", str(more)]
    done = agent.host.namespace.run([*prefix, *command], check=False, env=env)
    assert done.stderr == ""
    found: list[Line] = json.loads(done.stdout)
    assert done.returncode == int(any(line["status"] == "wrong" for line in found))
    assert all(bool(line["remedy"]) == (line["status"] == "wrong") for line in found)
    assert SECRET not in done.stdout
    assert PASSWORD not in done.stdout
    return found


def only(found: list[Line], check: str, status: str) -> Line:
    """The one line of that check."""
    (line,) = [line for line in found if line["check"] == check]
    assert line["status"] == status, line
    return line


def status_of(found: list[Line], check: str) -> set[str]:
    """How that check has ended, with all of its lines."""
    return {line["status"] for line in found if line["check"] == check}


def nova_options(*hosts: str, **more: object) -> dict[str, dict[str, object]]:
    """Options of a daemon with those hosts of Nova; a number is a port of this one."""
    default: dict[str, object] = dict(NOVA_OPTIONS["DEFAULT"])
    where = ",".join(f"127.0.0.1:{one}" if one.isdigit() else one for one in hosts)
    return {
        "DEFAULT": {**default, "nova_metadata_host": where, **more},
        "df_metadata": dict(NOVA_OPTIONS["df_metadata"]),
    }
