"""The admin API should be what its description says, for whatever can be made of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dfmeta.store.api import openapi
from dfmeta.store.auth.scopes import accepted
from tests.core.unit.store.api.server import ApiServer, Connection
from tests.harness.examples import examples

pytestmark = pytest.mark.early
EXAMPLES = examples(1)
"""Requests of each kind that are made up for each operation, besides those that follow from it."""
PHASES = "examples,fuzzing,stateful" if EXAMPLES == 1 else "examples,coverage,fuzzing,stateful"
"""The phase "coverage" makes hundreds of requests for each operation: not in a short run."""
TOKEN = "read,write"
KINDS = ["metadata", "userdata"]
CONFIG = """
[[operations]]
include-name = "POST /device-metadata/{id}/devices"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404"]
"""
"""A tag may be another device's of the record: no schema of one device can say that."""


def run_schemathesis(server: ApiServer, folder: Path, *options: str) -> str:
    """Run all of its checks; return what it prints, when it has found nothing."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run"),
        f"http://127.0.0.1:{server.port}/openapi.json",
        *("--checks", "all", "--mode", "all", "--max-examples", str(EXAMPLES)),
        *("--phases", PHASES),
        *("--generation-deterministic", "--no-color", *options),
    ]
    (folder / "schemathesis.toml").write_text(CONFIG)
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert server.complaints() == ""
    return ran.stdout


def example(name: str) -> str:
    """The value of a parameter that the description gives as an example."""
    text = json.dumps(openapi.description(secured=False)["paths"])
    found = {
        parameter["name"]: one["value"]
        for path in json.loads(text).values()
        for operation in path.values()
        for parameter in operation["parameters"]
        for one in parameter.get("examples", {}).values()
    }
    return str(found[name])


@pytest.fixture(params=[False, True], ids=["open", "secured"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(f"sqlite:///{tmp_path}/store.db", secured=request.param) as served:
        yield served


# An open API differs in answering 401 to none: tools/soak tries it as well.
@pytest.mark.parametrize("server", [True, False][: 1 + (EXAMPLES > 1)], indirect=True)
def test_schemathesis_finds_nothing(server: ApiServer, tmp_path: Path) -> None:
    header = {"Authorization": f"Bearer {TOKEN}"}
    with Connection(server.port, headers=header) as connection:
        for kind in KINDS:
            push = {"id": example("id"), "ipAddresses": [example("ip_address")], "metadata": {}}
            assert connection.ask("POST", f"/device-{kind}", push)[0] == 200
    printed = run_schemathesis(server, tmp_path, "--header", f"Authorization: Bearer {TOKEN}")
    assert "21 selected / 21 total" in printed
    made = re.search(r"([0-9]+) generated, ([0-9]+) passed", printed)
    assert made is not None
    assert int(made[1]) == int(made[2]) > (60 if EXAMPLES == 1 else 250)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in openapi.description(secured=True)["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_reference_is_to_something() -> None:
    description = openapi.description(secured=True)
    text = json.dumps(description)
    names = {one.split('"')[0] for one in text.split('{"$ref": "#/components/')[1:]}
    for name in names:
        section, one = name.split("/")
        assert one in description["components"][section]
    used = {name.split("/")[1] for name in names}
    assert used >= description["components"]["responses"].keys() - {"RequestTimeout"}


def test_names_of_operations_are_theirs_alone() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names)) == 22


@pytest.mark.parametrize("kind", KINDS)
def test_each_operation_names_its_scopes(kind: str) -> None:
    told = {
        (path, method): operation["description"]
        for path, method, operation in operations()
        if f"device-{kind}" in path
    }
    assert len(told) == (11 if kind == "metadata" else 7)
    for (path, method), text in told.items():
        operation = {"post": "upsert", "delete": "delete"}.get(method, "read")
        if path.endswith("/devices") and method == "delete":
            operation = "upsert"
        assert ", ".join(accepted(operation, kind)) in text, path  # type: ignore[arg-type]  # one of the literals


def test_it_says_whether_tokens_are_asked_for() -> None:
    assert openapi.description(secured=True)["security"] == [{"bearer": []}]
    assert openapi.description(secured=False)["security"] == []
