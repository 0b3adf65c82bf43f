"""Ports that come and go by the dozen, and daemons that are killed, beside guests at work."""

import random
import sys
import time
from collections import Counter
from itertools import count

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, Sample, uuid_of
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import DEADLINE, wait_for
from tests.host.e2e.support import ADDRESS_FLOWS, FIXED_FLOWS, PORT_FLOWS, failures

PATH = "/latest/meta-data/hostname"
RATE = 50
"""Ports plugged, and as many unplugged, a second."""
PER_ROUND = 25
STAYING = 50
MAC = "fa:16:3e:11:11:11"
SECONDS = 5
KILLS = 3
MANY = 1_000_000
"""More requests than are sent until the end."""
INTERVAL = 0.03
"""Seconds between two requests of each of three guests: one each 10 ms."""
AFTER = 20
"""Requests of a guest after the last start."""


def quantile(samples: list[Sample], part: float) -> float:
    """Milliseconds within which *part* of them were answered."""
    times = sorted(sample.seconds for sample in samples)
    return 1000 * times[min(int(len(times) * part), len(times) - 1)]


def plug_and_unplug(host: OpenvSwitch, seconds: int) -> int:
    """Plug and unplug at RATE for a while, or as fast as the machine can; how many were plugged."""
    names: list[str] = []
    numbers = count()
    began = time.monotonic()
    for turn in range(seconds * RATE // PER_ROUND):
        commands: list[str] = []
        for number in (next(numbers) for _ in range(PER_ROUND)):
            name = f"churn{number}"
            names.append(name)
            ids = f'iface-id={uuid_of(name)},attached-mac="{MAC}",vm-uuid={uuid_of(name)}'
            commands += ["--", "add-port", "br-int", name, "--", "set", "Interface", name]
            commands += ["type=internal", f"external_ids={{{ids}}}"]
        for name in names[: max(0, len(names) - STAYING)]:
            commands += ["--", "del-port", "br-int", name]
        names = names[-STAYING:]
        host.vsctl(*commands[1:], wait=False)
        due = began + (turn + 1) * PER_ROUND / RATE
        wait_for(lambda due=due: time.monotonic() >= due, "the next round")
    host.vsctl(*[word for name in names for word in ("--", "del-port", "br-int", name)][1:])
    return next(numbers)


def test_fifty_ports_a_second_cost_busy_guests_nothing(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest, soak: int
) -> None:
    agent = make_agent()
    guests = [make_guest(f"busy-{number}") for number in range(3)]
    for guest in guests:
        agent.put(guest.instance_id, guest.name)
    for guest in guests:
        # All flows of a port come together.
        hook = f"in_port={guest.ofport},"
        wait_for(lambda hook=hook: hook in host.ofctl("dump-flows", "br-int"), "its flows")
    before = host.ofctl("dump-flows", "br-int").count("cookie=0x64666d65")
    batches = [
        guest.start_many(MANY, path=PATH, timeout=DEADLINE, interval=INTERVAL) for guest in guests
    ]
    plugged = plug_and_unplug(host, SECONDS * soak)
    # A busy machine may plug them before it has answered many.
    enough = SECONDS * soak
    wait_for(lambda: all(batch.answered > enough for batch in batches), "answers to each guest")
    samples = {guest: batch.finish() for guest, batch in zip(guests, batches, strict=True)}
    assert plugged == RATE * SECONDS * soak
    assert failures(samples) == Counter()
    for guest, sample in samples.items():
        p50, p99 = quantile(sample, 0.5), quantile(sample, 0.99)
        sys.stdout.write(f"{guest.name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms\n")
    # Each port that comes or goes puts a number in doubt; an echo confirms all that are.
    wait_for(lambda: agent.metric("dfmeta_ports", state="served") == len(guests), "the news")
    echoes = agent.metric("dfmeta_ovsdb_echoes_total")
    sys.stdout.write(f"{plugged} ports plugged and unplugged, {echoes:g} echoes to OVSDB\n")
    assert 0 < echoes < 2 * plugged
    # Nothing of the ports that came and went is left; each guest has the flows of its address more.
    expected = before + ADDRESS_FLOWS * len(guests)
    wait_for(
        lambda: host.ofctl("dump-flows", "br-int").count("cookie=0x64666d65") == expected,
        "the flows of the others to be gone",
    )


def test_a_daemon_killed_at_random_moments_always_comes_back_right(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest, soak: int
) -> None:
    agent = make_agent()
    guests = [make_guest(name, mac="fa:16:3e:00:00:07") for name in ("first", "second")]
    for guest in guests:
        agent.put(guest.instance_id, guest.name)
    moments = random.Random(1)
    for _round in range(KILLS * soak):
        batches = [guest.start_many(MANY, path=PATH, timeout=DEADLINE) for guest in guests]
        moment = time.monotonic() + moments.uniform(0, 0.8)
        wait_for(lambda moment=moment: time.monotonic() >= moment, "the moment")
        agent.kill()
        # Once more while it starts.
        agent.start(wait=False)
        moment = time.monotonic() + moments.uniform(0, 0.8)
        wait_for(lambda moment=moment: time.monotonic() >= moment, "the moment")
        agent.kill()
        agent.start()
        lasts = [guest.http_many(AFTER, path=PATH, timeout=DEADLINE) for guest in guests]
        samples = {
            guest: batch.finish() + last
            for guest, batch, last in zip(guests, batches, lasts, strict=True)
        }
        wrong = failures(samples)
        assert wrong.total() <= 2 * len(guests), wrong
        assert not any("refused" in kind or "ANOTHER" in kind for kind in wrong), wrong
    assert_flows_of(host, agent, guests)


def assert_flows_of(host: OpenvSwitch, agent: Agent, guests: list[Guest]) -> None:
    """Exactly the flows of those guests, with an address each, are there."""
    assert agent.ready()
    flows = host.ofctl("dump-flows", "br-int").count("cookie=0x64666d65")
    assert flows == FIXED_FLOWS + (PORT_FLOWS + ADDRESS_FLOWS) * len(guests)
