"""The distribution's own cloud-init, as an interpreter of network configurations."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.harness.closing import Closing
from tests.harness.cloudinit import INTERPRETER
from tests.harness.ovs import UNPACKED

_PROGRAM = Path(__file__).with_name("netjson_program.py")
_MODULES = UNPACKED / "usr" / "lib" / "python3" / "dist-packages"


class CloudInit(Closing):
    """A process that interprets configurations; a context manager that ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            # -P: without the program's directory, because the harness has a module cloudinit too.
            [*INTERPRETER, "-P", str(_PROGRAM)],
            env={"PYTHONPATH": str(_MODULES), "LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the program."""
        self._process.communicate()

    def config(self, config: dict[str, Any]) -> Any:
        """Return the meaning of a configuration of version 1 or 2."""
        return self._ask({"config": config, "macs": None})

    def network_data(self, data: dict[str, Any], macs: dict[str, str]) -> Any:
        """Return the meaning of network_data.json in a guest with NICs of these MACs."""
        return self._ask({"config": data, "macs": macs})

    def netplan(self, data: dict[str, Any], macs: dict[str, str]) -> dict[str, Any]:
        """Return the devices that cloud-init makes of network_data.json for netplan, by kind."""
        question = {"config": data, "macs": macs}
        return dict(yaml.safe_load(self._ask(question, netplan=True))["network"])

    def _ask(self, question: dict[str, Any], *, netplan: bool = False) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**question, "netplan": netplan}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "cloud-init has failed: see stderr"
        return json.loads(answer)
