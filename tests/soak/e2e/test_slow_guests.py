"""One guest at its limit changes nothing for the others."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dfmeta.http.limits import Limits
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.greedy import Greedy, Kind
from tests.harness.guest import Guest, Sample
from tests.harness.poll import wait_for
from tests.host.e2e.support import META_DATA, asks_own, descriptors, put, resident, served, uuid_in

pytestmark = pytest.mark.early

WITHOUT_END = 100_000
INTERVAL = 0.02
"""Seconds between two requests of each of two others: one each 10 ms."""
ASKED = 50
"""Requests that each of the others makes at least, or nothing would be shown."""
WANTED = 100
MEBIBYTE = 1024
"""In KiB."""
SLACK = 16 * MEBIBYTE
KEPT = 8
"""Descriptors that the daemon may open meanwhile and keep, such as another one of its database."""
MAC = "fa:16:3e:00:00:66"
LARGE = 16 * MEBIBYTE * 1024
"""The largest user-data that the store takes, in bytes."""
AT_ONCE = 4
"""Requests of the greedy guest that are answered at a time: the work is in each large answer."""
GIVEN_UP = 3 * AT_ONCE
LARGE_PATH = "/openstack/latest/user_data"


class Scene:
    """The greedy guest, and two others that ask all the time: one of them has its addresses."""

    def __init__(self, agent: Agent, make_guest: MakeGuest) -> None:
        self.agent = agent
        self.greedy = make_guest("greedy", mac=MAC)
        self.others = [make_guest("twin", mac=MAC), make_guest("other", address="10.0.0.6/24")]
        for guest in (self.greedy, *self.others):
            put(agent, guest)
            asks_own(guest)
        self.memory = resident(agent)
        self.descriptors = self.held()

    @contextmanager
    def others_notice_nothing(self) -> Iterator[None]:
        """Every request of the others meanwhile is answered with their own document."""
        batches = [
            guest.start_many(WITHOUT_END, path=META_DATA, interval=INTERVAL)
            for guest in self.others
        ]
        try:
            yield
            lasts = [guest.http_many(ASKED, path=META_DATA) for guest in self.others]
        except BaseException:
            for batch in batches:
                batch.stop()
            raise
        for guest, batch, last in zip(self.others, batches, lasts, strict=True):
            samples = [*batch.finish(), *last]
            assert wrong(guest, samples) == Counter()
            assert len(samples) > len(last) == ASKED
            slowest = max(sample.seconds for sample in samples)
            sys.stdout.write(f"{guest.name}: {len(samples)}, slowest {1000 * slowest:.0f} ms\n")

    def hit(self, limit: str) -> float:
        """How often that limit was reached."""
        return self.agent.metric("dfmeta_limits_hit_total", limit=limit)

    def closed(self, reason: str) -> float:
        """How many connections were closed for that reason."""
        return self.agent.metric("dfmeta_closed_connections_total", reason=reason)

    def held(self) -> int:
        """Descriptors of the daemon, with no guest's connection open."""
        wait_for(lambda: not self.agent.metric("dfmeta_open_connections"), "an empty room")
        return descriptors(self.agent)

    def assert_bounded(self, *, memory: int = SLACK) -> None:
        """No more of the daemon is taken than one guest may have, and what the others need."""
        room = Limits().connections_per_port + Limits().waiting_per_port
        assert descriptors(self.agent) <= self.descriptors + room + len(self.others) + KEPT
        assert resident(self.agent) <= self.memory + memory

    def assert_given_back(self, *, memory: int = SLACK) -> None:
        """The greedy guest is served again, and what it had taken is there again."""
        wait_for(lambda: served(self.greedy), "the greedy guest to be served again")
        asks_own(self.greedy)
        wait_for(lambda: self.held() <= self.descriptors + KEPT, "the descriptors to be back")
        grown = (resident(self.agent) - self.memory) / MEBIBYTE
        sys.stdout.write(f"memory: {grown:+.1f} MiB\n")
        assert grown * MEBIBYTE <= memory


def wrong(guest: Guest, samples: list[Sample]) -> Counter[str]:
    """What has gone wrong, by kind."""
    kinds: Counter[str] = Counter()
    for sample in samples:
        if sample.status != 200:
            kinds[sample.error or str(sample.status)] += 1
        elif uuid_in(sample.body) != guest.instance_id:
            kinds["ANOTHER'S"] += 1
    return kinds


@pytest.mark.parametrize(
    ("kind", "limit", "seconds"),
    [
        # The others as well have to send theirs within it, on a machine that is busy.
        ("silent", "header_timeout", 1),
        ("head", "header_timeout", 1),
        ("body", "body_timeout", 0.2),
    ],
)
def test_a_slow_guest_delays_itself_alone(
    make_agent: MakeAgent, make_guest: MakeGuest, kind: Kind, limit: str, seconds: float
) -> None:
    at_once = Limits().connections_per_port
    agent = make_agent({"guest_limits": {limit: seconds, "waiting_per_port": at_once}})
    scene = Scene(agent, make_guest)
    with Greedy(scene.greedy, kind, wanted=WANTED) as greedy:
        with scene.others_notice_nothing():
            wait_for(lambda: scene.hit(limit) >= 2 * at_once, "connections to be given up")
            scene.assert_bounded()
        assert scene.hit("connections_per_port") > 0
        assert scene.hit("waiting_per_port") > 0
        assert scene.closed("too_many") > 0
        # Its own connections are still there, and are what it waits for.
        greedy.rest()
        wait_for(lambda: served(scene.greedy), "what is open to be given up as well")
        assert greedy.finish().ended > 0
    scene.assert_given_back()


def test_an_unread_large_document_is_kept_a_few_times_and_briefly(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    # Time for more requests to come than may be answered at once, on a machine that is busy.
    agent = make_agent({"guest_limits": {"send_timeout": 1.5, "requests_per_port": AT_ONCE}})
    scene = Scene(agent, make_guest)
    user_data = agent.folder / "user-data"
    user_data.write_bytes(b"#" * LARGE)
    put(agent, scene.greedy, "--user-data", str(user_data))
    # A request's document, its answer as it leaves, and what malloc makes of both.
    kept = 3 * AT_ONCE * LARGE // 1024
    with Greedy(scene.greedy, "unread", wanted=WANTED, path=LARGE_PATH) as greedy:
        with scene.others_notice_nothing():
            wait_for(lambda: scene.closed("not_read") >= GIVEN_UP, "answers to be given up")
            sys.stdout.write(f"{resident(agent) - scene.memory} of {kept} KiB\n")
            scene.assert_bounded(memory=kept)
        assert scene.hit("send_timeout") >= GIVEN_UP
        assert scene.hit("requests_per_port") > 0
        greedy.rest()
        wait_for(lambda: served(scene.greedy), "the answers that are open to be given up")
        assert greedy.finish().ended > 0
    # malloc(3) gives back only what is at the end; the rest is there for the next ones.
    scene.assert_given_back(memory=kept)
