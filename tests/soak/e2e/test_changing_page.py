"""Every change of an option in doc/source/upgrade.rst should work as the page says."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.core.docs.typed import commands, page, untyped
from tests.harness.console import Block, Step, blocks
from tests.harness.guest import Guest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.host.e2e.shell import Shell
from tests.host.e2e.support import asks_own, put

UPGRADE, _, CHANGES = page("upgrade").partition("\nOptions that leave state on the host\n")
NEW = ("/srv/dfmeta", "/srv/store")
"""Folders that the page makes."""


class Host(Shell):
    """A host with a guest on br-int, and another bridge."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack, stack.enter_context(OpenvSwitch(bridges=(BRIDGE, "br-lan"))))
        (self.folder / "srv").mkdir()
        self.guest = stack.enter_context(Guest(self.switch))
        self.agent.start()
        put(self.agent, self.guest)
        asks_own(self.guest)
        self.served = 0

    def places(self) -> dict[str, str]:
        """As of any host, and the folders that the page makes."""
        return {**super().places(), **{place: f"{self.folder}{place}" for place in NEW}}

    def read(self, block: Block) -> None:
        """As any, with the new folders where they are."""
        text = block.text
        for place in NEW if block.kind == "ini" else ():
            text = text.replace(place, f"{self.folder}{place}")
        super().read(replace(block, text=text))

    def type(self, step: Step) -> str:
        """What a command prints; systemd's part is the test's own."""
        if not step.command.startswith("systemctl "):
            return self.run(step.command)
        _systemctl, verb, unit = step.command.split()
        assert unit == "dfmeta-agent"
        if verb in ("stop", "restart"):
            self.agent.stop()
        if verb in ("start", "restart"):
            self.agent.start()
            if "integration_bridge = br-lan" not in self.agent.config_file.read_text():
                asks_own(self.guest)
                self.served += 1
        return ""


@pytest.fixture
def operator() -> Iterator[Host]:
    with ExitStack() as stack:
        yield Host(stack)


def test_every_change_works_as_the_page_says(operator: Host) -> None:
    for block in blocks(CHANGES):
        operator.read(block)
    assert untyped("upgrade", [*operator.typed, *commands(UPGRADE)]) == []
    assert operator.served == 8
    folders = [operator.folder / place.lstrip("/") for place in NEW]
    assert [(folder / "store.db").exists() for folder in folders] == [False, True]
    assert not operator.agent.state_path.exists()
