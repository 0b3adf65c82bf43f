"""The status page in a real browser: a reader finds the guest that fails."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.harness.agent import ADMIN_PORT, Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.support import asks_own, project_ids, put, put_nova
from tests.soak.e2e.browser import DESKTOP, PHONE, Browser

PAGE = f"http://127.0.0.1:{ADMIN_PORT}/"
GUESTS = "#guests tbody tr"
SECRET_PATH = "/openstack/latest/secret-name?secret-token=1"


@pytest.fixture
def browser(host: OpenvSwitch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(host.namespace, tmp_path_factory.mktemp("pictures")) as one:
        yield one


def three(make_guest: MakeGuest, nova: RecordingNova, agent: Agent) -> tuple[Guest, Guest, Guest]:
    """Three guests; Nova refuses the second."""
    guests = []
    for number, name in enumerate(("alpha", "beta", "gamma"), 5):
        guest = make_guest(name, ids=project_ids(name), address=f"10.0.0.{number}/24")
        put_nova(nova, guest)
        guests.append(guest)
    for guest in guests:
        asks_own(guest)
    nova.fault(status=403)
    assert guests[1].curl(SECRET_PATH).status == 403
    nova.mend()
    assert agent.admin("/").status == 200
    return guests[0], guests[1], guests[2]


def test_a_browser_without_javascript_finds_the_guest_that_fails(
    nova_agent: Agent, nova: RecordingNova, make_guest: MakeGuest, browser: Browser
) -> None:
    alpha, beta, gamma = three(make_guest, nova, nova_agent)
    seen = browser.open(f"{PAGE}?refresh=1", GUESTS, window=PHONE)
    assert seen.title.startswith("1 guest fails")
    assert len(seen.texts) == 3
    first = seen.texts[0]
    for words in ("failing", beta.instance_id, beta.port, beta.ip, "403 to openstack"):
        assert words in first
    assert "metadata_proxy_shared_secret differs" in first
    assert "secret-name" not in first
    for guest, text in zip((alpha, gamma), seen.texts[1:], strict=True):
        assert guest.instance_id in text
        assert "served" in text
    # On a telephone nothing has to be pushed aside to be read.
    assert max(seen.widths) == PHONE[0]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= PHONE[0] for box in seen.boxes)

    # It loads itself anew: nobody does it here.
    asks_own(beta)
    later = browser.changed(GUESTS)
    for _ in range(4):
        # What was on its way when the guest asked shows what was before.
        if "failing" in later.texts[0]:
            later = browser.changed(GUESTS)
    assert "failing" not in "".join(later.texts)
    assert "failed earlier" in later.texts[0]
    assert "2 2xx" in re.sub(r"\s+", " ", later.texts[0])
    assert set(later.requests) == {f"{PAGE}?refresh=1"}
    assert len(later.requests) > 1
    assert later.complaints == ()

    wide = browser.open(f"{PAGE}?refresh=0&state=failed+earlier", GUESTS, window=DESKTOP, dark=True)
    assert [beta.instance_id in text for text in wide.texts] == [True]
    assert max(wide.widths) == DESKTOP[0]
    assert (wide.requests, wide.complaints) == ((f"{PAGE}?refresh=0&state=failed+earlier",), ())


def test_a_filter_that_is_being_typed_is_kept_and_the_result_loads_itself_anew(
    make_agent: MakeAgent, make_guest: MakeGuest, browser: Browser
) -> None:
    agent = make_agent()
    known, unknown = make_guest("known"), make_guest("unknown")
    hostname = put(agent, known)
    asks_own(known)
    assert unknown.curl("/latest/meta-data/").status == 404
    # By what a guest does to itself, it is served as before.
    assert known.curl(f"/{'x' * 9000}").status == 414
    seen = browser.open(f"{PAGE}?refresh=5", GUESTS, window=DESKTOP)
    assert seen.title.startswith("1 guest fails")
    assert unknown.instance_id in seen.texts[0]
    assert f"dfmeta store put {unknown.instance_id} --hostname" in seen.texts[0]
    assert "caused by the guest itself" in seen.texts[1]
    assert hostname in seen.texts[1]
    assert seen.values == ()
    browser.click("#filter", GUESTS)
    half = browser.fill("input[name=port]", hostname[:4], GUESTS, pause=6)
    assert half.values == (hostname[:4],)
    assert len(half.texts) == 2
    filtered = browser.click("form button", GUESTS)
    assert [hostname in text for text in filtered.texts] == [True]
    assert filtered.requests[-1] == f"{PAGE}?port={hostname[:4]}&state=&refresh=10"
    assert filtered.complaints == ()
    put(agent, unknown)
    asks_own(unknown)
    seen = browser.open(PAGE, ".tiles dd", window=PHONE)
    assert seen.title.startswith("Ready, no guest fails")
    assert seen.texts[:5] == ("2", "2", "0", "0", "0")
