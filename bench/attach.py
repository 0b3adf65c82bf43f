"""Attachments of containers: times of the API and of the plugin, beside the CNI project's plugins.

Run as root, after ``tools/setup.sh --bench``::

    .venv/bin/python -m bench.attach [--quick] [--json FILE]

*API*: a real Open vSwitch, dfmeta-agent as it is installed, and a namespace as a VM with a trunk.
Each addition is a request from its first byte until the answer, which says that the data plane
stands; *at once* are that many requests on as many threads.
*Plugins*: the whole process, from its start until its end. dfmeta-cni runs in a VM with an Open
vSwitch of its own, and a stand-in answers its requests, so that its time is its own; *bridge* with
*host-local* is the usual plugin of a host. *Python* is the interpreter with an empty program.
*Neutron*: with ``--neutron``, after ``tools/setup.sh --neutron``, the API with the driver neutron
instead: Neutron's own server, which answers one request after the other, and its own agent.
*Neutron alone* are the requests that an attachment needs, a port and its place in the trunk,
without dfmeta.

Nothing here is asserted; the numbers depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.packet_path import machine
from bench.programs import UNPACKED
from bench.tables import Table, number, print_tables
from tests.harness.agent import Agent, Options
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.netns import Namespace
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.vm_api import allowed
from tests.host.e2e.cni_vm import Vm, path
from tests.host.e2e.neutron_vm import World, world_with
from tests.host.neutron.api import PROJECT

PLUGINS = UNPACKED / "usr/lib/cni"
SINGLE, AT_ONCE = 100, 100
FIRST_VID = 3000
"""First VLAN id of Neutron alone, far from those that the engine gives."""
WIDE = 40
"""Requests of a VM at a time, more than ``connections_per_port``: the others wait for a place."""
INSTANCE = uuid_of("instance bench")
OPTIONS: Options = {
    "attachments": {"enabled": True, "allow": INSTANCE, "rate": 1000, "rest": 0, "quota": 1000},
    "attachment_network:pods": {"subnet": "10.20.0.0/20", "gateway": "10.20.0.1", "local_vlan": 7},
}
BRIDGE = {
    "cniVersion": "1.0.0",
    "name": "peer",
    "type": "bridge",
    "bridge": "peer0",
    "isGateway": True,
    "ipam": {"type": "host-local", "subnet": "10.30.0.0/16"},
}
Times = list[float]


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="measure a tenth, as a first impression"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument(
        "--neutron", action="store_true", help="measure the API with Neutron, and nothing else"
    )
    options = parser.parse_args()
    if not options.neutron and not (PLUGINS / "bridge").exists():
        raise SystemExit(f"{PLUGINS} does not exist: run tools/setup.sh --bench")
    part = 10 if options.quick else 1
    report: dict[str, Any] = {"machine": machine()}
    if options.neutron:
        report["neutron"] = _neutron(SINGLE // part, AT_ONCE // part)
    else:
        report["api"] = _api(SINGLE // part, AT_ONCE // part)
        report["plugins"] = _plugins(SINGLE // part)
    print_tables(_tables(report), Console(width=110))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


def _tables(report: dict[str, Any]) -> Iterator[Table]:
    columns = ("", "p50, ms", "p99, ms")
    for title, name in (("The API", "api"), ("With Neutron", "neutron"), ("Plugins", "plugins")):
        if name not in report:
            continue
        rows = [
            (what, number(result["p50"] * 1e3), number(result["p99"] * 1e3))
            for what, result in report[name].items()
            if "p50" in result
        ]
        yield Table(title=title, columns=columns, rows=rows)
    totals = [
        (what, number(result["total"]))
        for what, result in (report.get("api") or report["neutron"]).items()
        if "total" in result
    ]
    yield Table(title="At once", columns=("", "seconds until the last"), rows=totals)


def _of(times: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98], "count": len(times)}


def _timed(act: Callable[[], object]) -> float:
    begun = time.monotonic()
    act()
    return time.monotonic() - begun


def _api(single: int, at_once: int) -> dict[str, dict[str, float]]:
    ids = Ids(iface_id=uuid_of("port bench"), vm_uuid=INSTANCE)
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        agent = stack.enter_context(Agent(host, OPTIONS))
        agent.start()
        vm = stack.enter_context(Guest(host, "bench", address="10.0.0.5/24", ids=ids))
        agent.ctl("trunk", "enable", vm.port)
        wait_for(lambda: _ready(vm), "the VM to be ready")
        responses = _requests(vm, single, at_once)
        agent.stop()
    return responses


def _neutron(single: int, at_once: int) -> dict[str, dict[str, float]]:
    with world_with(rate=1000, quota=1000) as world:
        return {**_requests(world.vm, single, at_once), **_alone(world, single, at_once)}


def _alone(world: World, single: int, at_once: int) -> dict[str, dict[str, float]]:
    """Ask Neutron for the same ports: one by one, and all in two requests."""
    vids, made = itertools.count(FIRST_VID), list[str]()

    def add(count: int) -> None:
        port = {"network_id": world.network, "project_id": PROJECT}
        reply = world.server.ask("POST", "ports", {"ports": [port] * count})
        ids = [port["id"] for port in reply.document["ports"]]
        made.extend(ids)
        _of_trunk(world, "add_subports", [_subport(port_id, next(vids)) for port_id in ids])

    def delete() -> None:
        port_id = made.pop()
        _of_trunk(world, "remove_subports", [{"port_id": port_id}])
        world.server.ask("DELETE", f"ports/{port_id}")

    alone = [_timed(partial(add, 1)) for _ in range(single)]
    gone = [_timed(delete) for _ in range(single)]
    return {
        "Neutron alone, add": _of(alone),
        "Neutron alone, delete": _of(gone),
        f"Neutron alone, add {at_once} in two requests": {"total": _timed(partial(add, at_once))},
    }


def _of_trunk(world: World, change: str, subports: list[dict[str, Any]]) -> None:
    reply = world.server.ask("PUT", f"trunks/{world.trunk}/{change}", {"sub_ports": subports})
    if reply.status != 200:
        raise SystemExit(f"{change} was answered with {reply.status}: {reply.document}")


def _subport(port_id: str, vid: int) -> dict[str, Any]:
    return {"port_id": port_id, "segmentation_type": "vlan", "segmentation_id": vid}


def _requests(vm: Guest, single: int, at_once: int) -> dict[str, dict[str, float]]:
    with ExitStack() as stack:
        add = [_timed(partial(_ask, vm, "PUT", f"one{n}", 201)) for n in range(single)]
        delete = [_timed(partial(_ask, vm, "DELETE", f"one{n}", 204)) for n in range(single)]
        pool = stack.enter_context(ThreadPoolExecutor(WIDE))
        total = _timed(
            lambda: list(pool.map(lambda n: _ask(vm, "PUT", f"many{n}", 201), range(at_once)))
        )
        gone = _timed(
            lambda: list(pool.map(lambda n: _ask(vm, "DELETE", f"many{n}", 204), range(at_once)))
        )
    return {
        "add": _of(add),
        "delete": _of(delete),
        f"add {at_once}, {WIDE} at a time": {"total": total},
        f"delete {at_once}, {WIDE} at a time": {"total": gone},
    }


def _ready(vm: Guest) -> bool:
    with contextlib.suppress(AssertionError, OSError), allowed(vm.namespace) as connection:
        return bool(json.loads(connection.ask("GET", "/status").body)["ready"])
    return False


def _ask(vm: Guest, method: str, container: str, status: int) -> None:
    """Make or delete one attachment as the plugin does: a connection with a token of its own."""
    body = {"network": "pods"} if method == "PUT" else None
    gone = "" if body else "?link=gone"
    with allowed(vm.namespace) as connection:
        reply = connection.ask(method, f"/attachments/{container}/eth0{gone}", body)
    if reply.status != status:
        raise SystemExit(f"{method} was answered with {reply.status}: {reply.text}")


def _plugins(count: int) -> dict[str, dict[str, float]]:
    measured: dict[str, Times] = {}
    with ExitStack() as stack:
        vm = stack.enter_context(Vm())
        containers = [stack.enter_context(Namespace(f"pod{n}")) for n in range(count)]
        for verb in ("ADD", "DEL"):
            measured[f"dfmeta-cni {verb}"] = [
                _timed(partial(_call, vm, verb, f"c{n}", path(namespace)))
                for n, namespace in enumerate(containers)
            ]
        measured["dfmeta-cni STATUS"] = [_timed(partial(_call, vm, "STATUS")) for _ in range(count)]
        empty = [sys.executable, "-I", "-S", "-c", "pass"]
        measured["Python"] = [_timed(lambda: vm.inside.run(empty)) for _ in range(count)]
        for verb in ("ADD", "DEL"):
            measured[f"bridge, host-local {verb}"] = [
                _timed(partial(_reference, vm, verb, f"r{n}", namespace))
                for n, namespace in enumerate(containers)
            ]
    return {what: _of(times) for what, times in measured.items()}


def _call(vm: Vm, verb: str, *words: str) -> None:
    status, document = vm.call(verb, *words)
    if status:
        raise SystemExit(f"dfmeta-cni failed: {document}")


def _reference(vm: Vm, verb: str, container: str, namespace: Namespace) -> None:
    """Call the peer in the VM's namespace; its addresses are files that go with the run."""
    config = {**BRIDGE, "ipam": {**BRIDGE["ipam"], "dataDir": str(vm.switch.rundir / "peer")}}
    vm.inside.run(
        [str(PLUGINS / "bridge")],
        stdin=json.dumps(config),
        env={
            **vm.environment(verb, container, path(namespace), "eth1"),
            "CNI_PATH": str(PLUGINS),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        },
    )


if __name__ == "__main__":
    main()
