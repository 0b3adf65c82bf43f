"""The admin API should be what its description says, for every request that is made of it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dfmeta.store.api import openapi
from tests.harness.examples import examples
from tests.host.store.server import ApiServer, Connection

EXAMPLES = examples(1)
"""Requests of each kind that are made up for each operation, besides those that follow from it."""
TOKEN = "read,write"
CONFIG = """
[[operations]]
include-name = "POST /device-metadata/{id}/devices"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404"]
"""
"""A tag may be another device's of the record: no schema of one device can say that."""


def example(name: str) -> str:
    """The value of a parameter that the description gives as an example."""
    values = {
        parameter["name"]: example["value"]
        for path in openapi.description(secured=False)["paths"].values()
        for operation in path.values()
        for parameter in operation["parameters"]
        for example in parameter.get("examples", {}).values()
    }
    return str(values[name])


@pytest.mark.parametrize("secured", [False, True], ids=["open", "secured"])
def test_schemathesis_finds_no_difference(tmp_path: Path, secured: bool) -> None:
    with ApiServer(f"sqlite:///{tmp_path}/store.db", secured=secured) as server:
        header = {"Authorization": f"Bearer {TOKEN}"}
        with Connection(server.port, headers=header) as connection:
            for kind in ("metadata", "userdata"):
                push = {"id": example("id"), "ipAddresses": [example("ip_address")], "metadata": {}}
                assert connection.ask("POST", f"/device-{kind}", push)[0] == 200
        (tmp_path / "schemathesis.toml").write_text(CONFIG)
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run"),
            f"http://127.0.0.1:{server.port}/openapi.json",
            *("--checks", "all", "--mode", "all", "--max-examples", str(EXAMPLES)),
            *("--phases", "examples,coverage,fuzzing,stateful"),
            *("--generation-deterministic", "--no-color"),
            *("--header", f"Authorization: Bearer {TOKEN}"),
        ]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert server.complaints() == ""
    assert "21 selected / 21 total" in ran.stdout
    made = re.search(r"([0-9]+) generated, ([0-9]+) passed", ran.stdout)
    assert made is not None
    assert int(made[1]) == int(made[2]) > 250
