"""The pages on installing and upgrading are typed, the latter on a host of the first hour."""

from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path

import pytest

from tests.core.docs.typed import commands, page, untyped
from tests.harness.console import blocks
from tests.harness.guest import Guest
from tests.harness.netns import CommandError
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.shell import Shell
from tests.host.e2e.support import asks_own, put
from tests.soak.e2e import test_first_hour as first
from tests.soak.e2e.test_first_hour import PAGE, Host

DEBIAN, _, INSTALL = page("install").partition("\nA virtual environment\n")
UPGRADE, _, CHANGES = page("upgrade").partition("\nOptions that leave state on the host\n")
operator = first.operator


def test_a_host_of_the_first_hour_goes_to_another_release_and_back(operator: Host) -> None:
    operator.names["VERSION"] = "0.1.0"
    for block in takewhile(lambda block: block.caption != "web1.xml", blocks(PAGE)):
        operator.read(block)
    guest = operator.stack.enter_context(Guest(operator.switch, "web1", route="gateway"))
    put(operator.agent, guest)
    link = operator.folder / "opt/dfmeta"
    assert link.readlink() == Path("dfmeta-0.1.0")
    operator.names |= {"VERSION": "0.2.0", "BEFORE": "0.1.0"}
    present, back = UPGRADE.split("\nRollback\n")
    operator.type_all(present)
    assert link.readlink() == Path("dfmeta-0.2.0")
    asks_own(guest)
    operator.type_all(back)
    assert link.readlink() == Path("dfmeta-0.1.0")
    asks_own(guest)
    assert (operator.folder / "var/backups/dfmeta-before.db").exists()
    assert untyped("upgrade", [*operator.typed, *commands(CHANGES)]) == []


def test_a_host_is_set_up_and_cleared_by_the_page_on_installing() -> None:
    with ExitStack() as stack:
        host = Shell(stack, stack.enter_context(OpenvSwitch()))
        host.names["VERSION"] = "0.1.0"
        host.type_all(INSTALL)
        # tests/soak/real/test_package.py types the part on the Debian package.
        assert untyped("install", [*host.typed, *commands(DEBIAN)]) == []
        assert list((host.folder / "opt").iterdir()) == []
        assert [path for path in (host.folder / "etc").rglob("*") if not path.is_dir()] == []
        assert not (host.folder / "etc/dfmeta").exists()
        assert [path for path in (host.folder / "usr").rglob("*") if not path.is_dir()] == []


def test_a_folder_in_the_place_of_the_link_is_refused() -> None:
    with ExitStack() as stack:
        host = Shell(stack, stack.enter_context(OpenvSwitch()))
        (host.folder / "opt/dfmeta").mkdir()
        host.names["VERSION"] = "0.1.0"
        (link,) = {
            command
            for command in commands(UPGRADE)
            if command.startswith("ln ") and "VERSION" in command
        }
        with pytest.raises(CommandError, match="cannot overwrite directory"):
            host.run(link)
        assert '"cannot overwrite directory"' in " ".join(UPGRADE.split())
