"""The distribution's own cloud-init, asked what a network configuration means."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.cloudinit import INTERPRETER
from tests.harness.ovs import UNPACKED

_PROGRAM = Path(__file__).with_name("netjson_program.py")
_MODULES = UNPACKED / "usr" / "lib" / "python3" / "dist-packages"


class CloudInit:
    """One process that answers all questions; a context manager that ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            # Nothing beside the program is to be found: the harness has a module cloudinit, too.
            [INTERPRETER, "-P", "-W", "ignore", "-B", str(_PROGRAM)],
            env={"PYTHONPATH": str(_MODULES), "LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def config(self, config: dict[str, Any]) -> Any:
        """What a configuration of version 1 or 2 comes to."""
        return self._ask({"config": config, "macs": None})

    def network_data(self, data: dict[str, Any], macs: dict[str, str]) -> Any:
        """What network_data.json comes to in a guest with those NICs, by their MACs."""
        return self._ask({"config": data, "macs": macs})

    def _ask(self, question: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "cloud-init has failed; stderr has how"
        return json.loads(answer)
