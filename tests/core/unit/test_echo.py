"""A worker's answer should wait for an echo of the daemon to a question asked after the request."""

import eventlet
from eventlet.event import Event

from dfmeta.proxy.engines.workers.calls import Echo
from dfmeta.runtime import clock
from tests.core.unit.support import let_hub_run

AMPLE = 5.0


class Daemon:
    """Echoes a question when the test says so."""

    def __init__(self) -> None:
        self.questions: list[Event] = []
        self.echo = Echo(self._ask)

    def _ask(self) -> bool:
        self.questions.append(Event())
        return bool(self.questions[-1].wait())

    def asked(self) -> int:
        """How many questions have arrived."""
        let_hub_run()
        return len(self.questions)


def test_requests_of_one_moment_share_a_question_and_later_ones_the_next() -> None:
    daemon = Daemon()
    first = [daemon.echo() for _ in range(3)]
    assert daemon.asked() == 1
    later = [daemon.echo() for _ in range(3)]
    assert daemon.asked() == 1
    until = clock.now() + AMPLE
    waiting = [eventlet.spawn(wait, until) for wait in first + later]
    daemon.questions[0].send(True)
    assert daemon.asked() == 2
    assert [thread.dead for thread in waiting] == [True] * 3 + [False] * 3
    daemon.questions[1].send(True)
    assert [thread.wait() for thread in waiting] == [True] * 6
    assert daemon.asked() == 2, "no question without a request"
    echoed = daemon.echo()
    assert daemon.asked() == 3
    daemon.questions[2].send(True)
    let_hub_run()
    assert echoed(0.0), "an echo that has come is not waited for"


def test_daemon_that_does_not_echo_is_waited_for_until_the_deadline() -> None:
    daemon, begun = Daemon(), clock.now()
    assert not daemon.echo()(begun + AMPLE)
    assert clock.now() - begun >= AMPLE


def test_end_of_the_daemon_is_no_echo() -> None:
    daemon = Daemon()
    echoed = daemon.echo()
    assert daemon.asked() == 1
    daemon.questions[0].send(False)
    assert not echoed(clock.now() + AMPLE)
