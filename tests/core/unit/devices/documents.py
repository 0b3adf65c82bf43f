"""Documents of devices from tests/data/devices."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[3] / "data" / "devices"
GOOD = sorted(path.stem for path in DATA.glob("*.json") if not path.name.startswith("refused-"))
REFUSED = sorted(path.stem for path in DATA.glob("refused-*.json"))


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return document


def nic(**members: Any) -> dict[str, Any]:
    """A valid NIC, with members changed; None takes one out."""
    given = {"type": "nic", "bus": "pci", "mac": "fa:16:3e:00:00:01", "tags": ["lan"], **members}
    return {name: value for name, value in given.items() if value is not None}


def disk(**members: Any) -> dict[str, Any]:
    given = {"type": "disk", "bus": "pci", "serial": "s1", "tags": ["db"], **members}
    return {name: value for name, value in given.items() if value is not None}
