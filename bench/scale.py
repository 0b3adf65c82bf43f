"""Scale: the cost of many ports, from the start of the daemon to the change of one port.

Run as root, after ``tools/setup.sh``::

    .venv/bin/python -m bench.scale [--json FILE] [--ports 10,500,5000] [--only PART]

A real Open vSwitch with that many guests' ports (dummies, which the daemon cannot distinguish from
other ports), and dfmeta-agent as it is installed. All values are measured from outside, except the
stalls, the flows and the flow-mods, which come from the daemon's metrics. Everything is measured
three times: with the default configuration, with IPv4 alone (``[df_metadata] ip6`` empty), and
with ``identity_scheme = meta_ip``. Ratios are multiples: of the default to IPv4 alone, and of Meta
IPs to the default.

*cold*: from the daemon's start to readiness, with none of its flows on the switch.
*warm*: the same with all flows on the switch, and for each port one known address of each version.
*check*: 65 seconds in which nothing happens except two comparisons of all flows.
*plug*, *unplug*, *change* (of vm-uuid, of a port with a known address): the daemon's CPU time for
one change, minus its CPU time when idle, and the time from OVSDB's commit to the last flow, the
median of several changes; for *plug*, the time begins when ovs-vswitchd has written the port's
number into OVSDB.
*Subports*: the number of ports is that of tagged subports, 200 of each parent's port; only then are
the following values measured. *declared*: the time from the last list in OVSDB until the daemon has
sent all flows. *entry*: a change of the instance of one entry of a list of 200.

*switch alone*: the time from the commit of such a change until ovs-vswitchd has applied it, without
a daemon; during this time ovs-vswitchd answers no controller.

A stall is the longest time that the hub was blocked: the upper bound of a bucket.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.packet_path import machine
from bench.processes import thread_seconds, whole
from tests.harness.agent import Agent, Options
from tests.harness.crowd import Crowd
from tests.harness.guest import uuid_of
from tests.harness.ovs import BRIDGE, UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for

COUNTS = (10, 500, 5000)
CHANGES = 30
CHECK_SECONDS = 65.0
IDLE_SECONDS = 8.0
FOLLOWS = 0.4
IPV4_SOURCE, IPV6_SOURCE = "10.0.0.5", "fe80::5"
"""Addresses of each guest."""
READY_TIMEOUT = 240.0
ASKED_AT_ONCE = 100
SPARE = 100_000
"""First number of the ports that are plugged and unplugged during the run."""
ALONE = 7
DEFAULT, IPV4_ALONE, META_IP, SUBPORTS = "default", "IPv4 alone", "Meta IP", "Subports"
PARTS: Mapping[str, Options] = {
    DEFAULT: {},
    IPV4_ALONE: {"df_metadata": {"ip6": ""}},
    META_IP: {"df_metadata": {"identity_scheme": "meta_ip"}},
    SUBPORTS: {},
}
"""What is measured, with the options of the daemon."""
TRUNK = 200
"""Subports of one parent's port."""
COMPARED = ((DEFAULT, IPV4_ALONE), (META_IP, DEFAULT))


def main() -> None:
    """Measure and print the values."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument(
        "--ports",
        default=",".join(map(str, COUNTS)),
        help="numbers of ports to measure, as a comma list",
    )
    parser.add_argument(
        "--changes", type=int, default=CHANGES, help="maximum number of changes of each kind"
    )
    parser.add_argument(
        "--short", action="store_true", help="skip the measurement over 65 seconds (check)"
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="measure this part alone (repeatable)"
    )
    options = parser.parse_args()
    chosen = options.only or list(PARTS)
    parts: dict[str, dict[int, dict[str, float]]] = {part: {} for part in chosen}
    for count in map(int, options.ports.split(",")):
        for part, measured in parts.items():
            print(part)
            figures = subports if part == SUBPORTS else measure
            measured[count] = figures(
                count, PARTS[part], check=not options.short, changes=options.changes
            )
            print_figures(count, measured[count])
    for part, other in COMPARED:
        if part in chosen and other in chosen:
            both = parts[part], parts[other]
            parts[f"{part} / {other}"] = {n: ratios(both[0][n], both[1][n]) for n in both[0]}
    for part, measured in parts.items():
        print(f"\n{part}")
        print_table(measured)
    if options.json:
        report = {"machine": machine(), **parts}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def measure(
    count: int, daemon: Options, *, check: bool = True, changes: int = CHANGES
) -> dict[str, float]:
    """Return all values for *count* ports, with these options of the daemon."""
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch(dummies=True))
        crowd = Crowd(host)
        with timed(figures, "plugged s"):
            crowd.plug(range(count))
            crowd.wait_plugged(count - 1)
        figures["switch alone ms"] = alone(crowd)
        agent = stack.enter_context(Agent(host, {"df_metadata": {"startup_timeout": 240}}))
        agent.configure(daemon)
        agent.admin_timeout = READY_TIMEOUT
        started(agent, figures, "cold")
        print_figures(count, figures)
        unknown = flows_of(crowd, 0)
        sources = [IPV4_SOURCE] if daemon == PARTS[IPV4_ALONE] else [IPV4_SOURCE, IPV6_SOURCE]
        introduced(agent, crowd, count, figures, sources=sources)
        agent.stop(timeout=20)
        started(agent, figures, "warm")
        print_figures(count, figures)
        if check:
            checked(agent, figures)
        watch = stack.enter_context(FlowEvents(host))
        counts = PortFlows(unknown=unknown, address=flows_of(crowd, 0) - unknown)
        changed(agent, crowd, watch, figures, known=count, changes=changes, flows=counts)
    return figures


def subports(
    count: int, daemon: Options, *, check: bool = True, changes: int = CHANGES
) -> dict[str, float]:
    """Return the values for *count* tagged subports, with these options of the daemon."""
    figures: dict[str, float] = {}
    trunks = {
        number: {vid: uuid_of(f"{number}.{vid}") for vid in range(1, 1 + min(TRUNK, left))}
        for number, left in enumerate(range(count, 0, -TRUNK))
    }
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch(dummies=True))
        crowd = Crowd(host)
        crowd.plug(trunks)
        crowd.wait_plugged(max(trunks))
        agent = stack.enter_context(Agent(host, {"df_metadata": {"startup_timeout": 240}}))
        agent.configure(daemon)
        agent.admin_timeout = READY_TIMEOUT
        agent.start()
        before = flow_mods(agent)
        flows = flows_of(crowd, 0)
        with timed(figures, "declared s"):
            for number, instances in trunks.items():
                crowd.declare(number, instances)
            wanted = before + flows * count
            wait_for(lambda: flow_mods(agent) >= wanted, "the flows", deadline=READY_TIMEOUT)
        figures["declared RSS MB"] = whole(agent.pid)
        agent.stop(timeout=20)
        host.ofctl("del-flows", BRIDGE)
        started(agent, figures, "cold")
        stalled = stalls(agent)
        with timed(figures, "addresses s"):
            everyone = [(number, vid) for number, vids in trunks.items() for vid in vids]
            for request, (number, vid) in enumerate(everyone, 1):
                for source in (IPV4_SOURCE, IPV6_SOURCE):
                    crowd.ask(number, vid=vid, source=source)
                # A dummy has a queue of 100 frames.
                if request % (ASKED_AT_ONCE // 4) == 0 or request == count:
                    wait_for(lambda request=request: sent_on(agent) >= 2 * request, "the addresses")
        figures["addresses stall ms"] = longest_since(stalled, agent)
        agent.stop(timeout=20)
        started(agent, figures, "warm")
        if check:
            checked(agent, figures)
        watch = stack.enter_context(FlowEvents(host))
        address = len(host.flows(match=f"in_port={crowd.ofport(0)},dl_vlan=1")) - flows

        def entry(turn: int) -> float:
            vid = turn + 1
            trunks[0][vid] = uuid_of(f"another at {vid}")
            watch.clear()
            began = time.monotonic()
            crowd.declare(0, trunks[0])
            return watch.last(crowd.ofport(0), "DELETED", address) - began

        between_checks(agent)
        stalled, turns = stalls(agent), min(changes, len(trunks[0]))
        repeated(agent, entry, figures, turns=turns, idle=cpu_share(agent))
        figures["changes stall ms"] = longest_since(stalled, agent)
    return figures


def alone(crowd: Crowd) -> float:
    """Return the milliseconds that ovs-vswitchd needs for a change of a port, without a daemon."""
    times = []
    for _turn in range(ALONE):
        began = time.monotonic()
        crowd.change(0)
        wait_for(crowd.is_configured, "ovs-vswitchd", interval=0.001)
        times.append(time.monotonic() - began)
    return round(1000 * statistics.median(times), 2)


def started(agent: Agent, figures: dict[str, float], name: str) -> None:
    """Start the daemon; measure the time to readiness, CPU time, memory, flow-mods and stalls."""
    began = time.monotonic()
    agent.start(wait=False)
    wait_for(agent.ready, "readiness", deadline=READY_TIMEOUT)
    figures[f"{name} ready s"] = round(time.monotonic() - began, 2)
    figures[f"{name} CPU s"] = round(thread_seconds(agent.pid), 2)
    figures[f"{name} RSS MB"] = whole(agent.pid)
    figures[f"{name} flows"] = agent.metric("dfmeta_flows")
    figures[f"{name} flow-mods"] = flow_mods(agent)
    longest = agent.metric("dfmeta_hub_longest_stall_seconds")
    figures[f"{name} stall ms"] = round(1000 * longest, 1)


def introduced(
    agent: Agent,
    crowd: Crowd,
    count: int,
    figures: dict[str, float],
    *,
    sources: Sequence[str],
) -> None:
    """Make these addresses of each port known to the daemon."""
    before = stalls(agent)
    with timed(figures, "addresses s"):
        for start in range(0, count, ASKED_AT_ONCE):
            end = min(count, start + ASKED_AT_ONCE)
            for number in range(start, end):
                for source in sources:
                    crowd.ask(number, source=source)
            wanted = end * len(sources)
            wait_for(lambda wanted=wanted: sent_on(agent) >= wanted, "the addresses")
    figures["addresses stall ms"] = longest_since(before, agent)
    figures["addresses RSS MB"] = whole(agent.pid)


def checked(agent: Agent, figures: dict[str, float]) -> None:
    """Measure a period with nothing but two full checks."""
    before, reconciles = stalls(agent), agent.metric("dfmeta_reconciles_total")
    cpu, began = thread_seconds(agent.pid), time.monotonic()
    wait_for(
        lambda: time.monotonic() >= began + CHECK_SECONDS, "the checks", deadline=CHECK_SECONDS + 9
    )
    took = time.monotonic() - began
    figures["check CPU %"] = round(100 * (thread_seconds(agent.pid) - cpu) / took, 2)
    figures["check stall ms"] = longest_since(before, agent)
    figures["checks"] = agent.metric("dfmeta_reconciles_total") - reconciles
    figures["check RSS MB"] = whole(agent.pid)


def changed(
    agent: Agent,
    crowd: Crowd,
    watch: FlowEvents,
    figures: dict[str, float],
    *,
    known: int,
    changes: int,
    flows: PortFlows,
) -> None:
    """Measure changes of one port, several of each kind."""
    numbers = range(SPARE, SPARE + changes)

    def plug(turn: int) -> float:
        crowd.plug([numbers[turn]])
        ofport = crowd.wait_plugged(numbers[turn])
        began = time.monotonic()
        return watch.last(ofport, "ADDED", flows.unknown) - began

    def unplug(turn: int) -> float:
        ofport = crowd.ofport(numbers[turn])
        watch.clear()
        began = time.monotonic()
        crowd.unplug([numbers[turn]])
        return watch.last(ofport, "DELETED", flows.unknown) - began

    def change(turn: int) -> float:
        ofport = crowd.ofport(turn)
        watch.clear()
        began = time.monotonic()
        crowd.change(turn)
        return watch.last(ofport, "DELETED", flows.address) - began

    between_checks(agent)
    idle = cpu_share(agent)
    before = stalls(agent)
    repeated(agent, plug, figures, turns=changes, idle=idle)
    repeated(agent, unplug, figures, turns=changes, idle=idle)
    # A port that has changed has no known address any more.
    repeated(agent, change, figures, turns=min(known, changes), idle=idle)
    figures["changes stall ms"] = longest_since(before, agent)


def repeated(
    agent: Agent,
    action: Callable[[int], float],
    figures: dict[str, float],
    *,
    turns: int,
    idle: float,
) -> None:
    """Repeat *action*; a repetition during a comparison of all flows does not count."""
    latencies: list[float] = []
    costs: list[float] = []
    mods = 0.0
    for turn in range(turns):
        reconciles, sent = checks(agent), flow_mods(agent)
        cpu, began = thread_seconds(agent.pid), time.monotonic()
        latency = action(turn)
        # The work after a change, such as saving the state, is part of its cost.
        end = time.monotonic() + FOLLOWS
        wait_for(
            lambda end=end: time.monotonic() >= end, "the work after the change", interval=0.05
        )
        cost = thread_seconds(agent.pid) - cpu - idle * (time.monotonic() - began)
        if checks(agent) == reconciles:
            latencies.append(latency)
            costs.append(cost)
            mods += flow_mods(agent) - sent
    name = action.__name__
    figures[f"{name} CPU ms"] = round(1000 * statistics.median(costs), 2)
    figures[f"{name} latency ms"] = round(1000 * statistics.median(latencies), 2)
    figures[f"{name} flow-mods"] = round(mods / len(latencies), 2)


@dataclass(frozen=True, kw_only=True)
class PortFlows:
    """Numbers of flows with the in_port of one port."""

    unknown: int
    """With no known address."""
    address: int
    """Those that its known addresses add."""


class FlowEvents:
    """The switch's own reports of added and deleted flows (``ovs-ofctl monitor``)."""

    def __init__(self, host: OpenvSwitch) -> None:
        self._host = host
        self._lines: list[tuple[float, str]] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> FlowEvents:
        program = str(UNPACKED / "usr/bin/ovs-ofctl")
        target = str(self._host.mgmt_socket(BRIDGE))
        self._process = subprocess.Popen(
            [
                program,
                f"--unixctl={self._host.rundir}/monitor.ctl",
                *("monitor", f"unix:{target}", "watch:!initial"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def clear(self) -> None:
        """Forget all events so far."""
        self._lines = []

    def of(self, ofport: int, kind: str) -> list[float]:
        """Return the times of events *kind* of flows with the in_port *ofport*."""
        pattern = re.compile(rf"\bin_port={ofport}\b")
        lines = list(self._lines)
        return [at for at, line in lines if f"event={kind}" in line and pattern.search(line)]

    def last(self, ofport: int, kind: str, count: int) -> float:
        """Wait for *count* events, and return the time of the last one."""
        wait_for(lambda: len(self.of(ofport, kind)) >= count, "the flows", interval=0.001)
        return self.of(ofport, kind)[count - 1]

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "event=" in line:
                self._lines.append((time.monotonic(), line))


@contextmanager
def timed(figures: dict[str, float], name: str) -> Iterator[None]:
    """Store the seconds that the block takes."""
    began = time.monotonic()
    yield
    figures[name] = round(time.monotonic() - began, 2)


def cpu_share(agent: Agent) -> float:
    """Return the CPU time of the idle daemon, as a share of one core."""
    cpu, began = thread_seconds(agent.pid), time.monotonic()
    wait_for(lambda: time.monotonic() >= began + IDLE_SECONDS, "idling", deadline=IDLE_SECONDS + 5)
    return (thread_seconds(agent.pid) - cpu) / (time.monotonic() - began)


def flows_of(crowd: Crowd, number: int) -> int:
    """Return the number of flows with the in_port of a port."""
    return len(crowd.host.flows(match=f"in_port={crowd.ofport(number)}"))


def flow_mods(agent: Agent) -> float:
    """Return the number of flow-mods that were sent so far."""
    return agent.metric("dfmeta_flow_mods_total")


def checks(agent: Agent) -> float:
    """Return the number of comparisons of all flows so far."""
    return agent.metric("dfmeta_reconciles_total")


def between_checks(agent: Agent) -> None:
    """Wait until a comparison of all flows has ended, so that none falls into the idle time."""
    reconciles = checks(agent)
    wait_for(lambda: checks(agent) > reconciles, "a full check", interval=0.5)


def sent_on(agent: Agent) -> float:
    """Return the number of first SYNs that were sent on so far: their flows are installed."""
    return agent.metric("dfmeta_first_syn_seconds_count")


def stalls(agent: Agent) -> dict[float, float]:
    """Return, for each bucket's bound, the number of the hub's samples with at most that delay."""
    prefix = "dfmeta_hub_stall_seconds_bucket"
    samples = agent.metrics().items()
    return {float(k.split('"')[1]): v for k, v in samples if k.startswith(prefix)}


def longest_since(before: Mapping[float, float], agent: Agent) -> float:
    """Return the upper bound of the bucket of the longest stall since *before*, in milliseconds."""
    now = stalls(agent)
    seen = {bound: value - before[bound] for bound, value in now.items()}
    return 1000 * min(bound for bound, value in seen.items() if value == seen[float("inf")])


def ratios(values: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """Return each value as a multiple of the other, without those whose other is 0."""
    return {name: round(values[name] / value, 3) for name, value in others.items() if value}


def print_figures(count: int, figures: Mapping[str, float]) -> None:
    """Print the values for *count* ports that are known so far."""
    print(f"{count} ports: {json.dumps(figures)}", flush=True)


def print_table(ports: Mapping[int, Mapping[str, float]]) -> None:
    """Print all values, one column for each number of ports."""
    print(f"{'':22}" + "".join(f"{count:>10}" for count in ports))
    names = list(dict.fromkeys(name for figures in ports.values() for name in figures))
    for name in names:
        values = [figures.get(name, float("nan")) for figures in ports.values()]
        print(f"{name:22}" + "".join(f"{value:>10g}" for value in values))


if __name__ == "__main__":
    main()
