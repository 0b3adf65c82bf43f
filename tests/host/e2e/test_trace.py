"""``dfmeta trace``: where a SYN ends, in words, on hosts where it ends there."""

from pathlib import Path

import pytest

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.host.e2e.test_doctor import pretend_nft

pytestmark = pytest.mark.early

LEADS = (
    "The path leads to the proxy and back. The flows were traced on the switch, and the host "
    "answered a SYN of dfmeta-agent's own."
)


@pytest.fixture(autouse=True)
def _filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with an empty packet filter, whatever the test machine has."""
    pretend_nft(tmp_path, {"nftables": []})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def test_a_known_address_leads_to_the_proxy_and_back(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    assert guest.curl("/").status == 404
    done = agent.ctl("trace", guest.port, "--family", "4")
    text = done.stdout
    assert done.stderr == ""
    head, *steps, end = text.splitlines()
    assert head == (
        f"{guest.port} (ofport {guest.ofport}), instance {guest.instance_id}, "
        f"{guest.ip} {guest.mac}, key 128.0.0.{guest.ofport}"
    )
    found = [step.split(":")[0].split(maxsplit=1) for step in steps if "proxy  " not in step]
    assert found == [
        ["there", "classification"],
        ["there", "metadata service"],
        ["host", "ok"],
        ["back", "classification"],
        ["back", "metadata service reply"],
        ["probe", "a SYN from br-int to 169.254.169.254"],
    ]
    assert f"output:{guest.ofport}" in steps[-2]
    # Where the way leads, and what its guest gets there, are two things.
    assert "proxy  the guest gets an answer, and fails: 404 (no record) since" in text
    assert end == LEADS
