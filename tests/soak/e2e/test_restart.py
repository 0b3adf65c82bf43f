"""A cleanup should be complete after a change of options."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.test_restart import furnish, outline


@dataclass(frozen=True)
class Cleaned:
    """A furnished host with a guest, which each cleanup leaves as it was."""

    host: OpenvSwitch
    before: dict[str, object]


@pytest.fixture(scope="module")
def cleaned_once() -> Iterator[Cleaned]:
    with OpenvSwitch() as host:
        furnish(host)
        with Guest(host, "one", route="gateway"):
            yield Cleaned(host, outline(host))


@pytest.fixture
def cleaned(cleaned_once: Cleaned) -> Iterator[Cleaned]:
    """What arp_ignore was before is in the state alone, which some tests remove."""
    arp_ignore = "net/ipv4/conf/all/arp_ignore"
    before = cleaned_once.host.namespace.setting(arp_ignore)
    yield cleaned_once
    cleaned_once.host.namespace.setting(arp_ignore, before)


CHANGES: dict[str, object] = {
    "hook_priority": 400,
    "table_base": 120,
    "classification_table": 3,
    "metadata_interface": "tap-other",
    "route_table": 9,
    "port": 18081,
    "host_ip": "169.254.1.1",
    "ip": "169.254.1.2",
}
"""Options that say where dfmeta puts what is its own, and other values than their defaults."""


@pytest.mark.parametrize("started", [False, True], ids=["without state", "started with them"])
def test_cleanup_is_complete_after_a_change_of_options(cleaned: Cleaned, *, started: bool) -> None:
    """Without the state, unless that is what knows of two values."""
    host, before = cleaned.host, cleaned.before
    with Agent(host) as agent:
        agent.start()
        agent.stop()
        agent.configure({"df_metadata": CHANGES})
        if started:
            agent.start()
            agent.stop()
        else:
            (agent.state_path / "state.json").unlink()
        agent.clean_up()
        # Without the state the value of arp_ignore from before is not known.
        kept = set() if started else {"sysctls"}
        after = outline(host)
        assert {name for name, value in before.items() if after[name] != value} <= kept
