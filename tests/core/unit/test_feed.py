"""What a registry's followers are told, and when a guest may go on."""

from collections.abc import Sequence

import eventlet

from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint, PortId
from dfmeta.proxy.feed import BATCH, Feed
from tests.core.unit.support import let_hub_run, port

News = tuple[bool, list[Endpoint]]
ONE, TWO = Endpoint(13), Endpoint(14)


class Follower:
    def __init__(self, *, takes: bool = True, follows: bool = True) -> None:
        self.news: list[News] = []
        self.takes = takes
        self.follows = follows

    @property
    def position(self) -> int:
        return len(self.news)

    def tell(self, news: News) -> None:
        self.news.append(news)

    def has(self, position: int) -> bool:
        return self.takes and position <= len(self.news)


class World:
    def __init__(self, *followers: Follower) -> None:
        self.registry = Registry()
        self.followers = list(followers)
        self.feed: Feed[Follower] = Feed(self.registry, self._say, lambda: self.followers)
        self.registry.set_port(port(13))

    def _say(self, endpoints: Sequence[Endpoint], new: bool) -> News:
        return new, list(endpoints)


def test_settling_tells_every_follower_once_of_each_endpoint_in_its_order() -> None:
    world = World(Follower(), Follower())
    world.registry.set_port(port(14))
    world.registry.set_port(port(13, project="another"))
    assert world.feed.inform() == []
    assert [one.news for one in world.followers] == [[(False, [ONE, TWO])]] * 2
    assert world.feed.inform() == []
    assert [len(one.news) for one in world.followers] == [1, 1]


def test_a_follower_that_does_not_take_its_news_is_named() -> None:
    good, late = Follower(), Follower(takes=False)
    world = World(good, late)
    assert world.feed.inform() == [late]
    assert good.news == late.news


def test_a_follower_that_serves_no_guest_yet_is_not_waited_for() -> None:
    world = World(Follower(takes=False, follows=False))
    assert world.feed.inform() == []
    assert world.followers[0].news == [(False, [ONE])]


def test_news_goes_out_by_itself_until_the_end() -> None:
    world, ended = World(Follower()), [False]
    thread = eventlet.spawn(world.feed.run, lambda: ended[0])
    let_hub_run()
    assert world.followers[0].news == [(False, [ONE])]
    world.registry.remove_port(PortId("row-of-tap1"))
    ended[0] = True
    thread.wait()
    assert world.followers[0].news == [(False, [ONE])] * 2


def test_a_new_follower_is_told_of_all_in_batches() -> None:
    world = World()
    for number in range(14, 13 + BATCH + 5):
        world.registry.set_port(port(number, name=f"tap-{number}"))
    new = Follower()
    world.feed.introduce(new)
    assert [(fresh, len(batch)) for fresh, batch in new.news] == [(True, BATCH), (True, 5)]
    assert {one for _fresh, batch in new.news for one in batch} == {*world.registry.endpoints()}
