"""``dfmeta doctor`` on the daemon's process, its files, its meters and the system around it."""

from __future__ import annotations

import os
import re
import resource
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.agent import program
from tests.harness.fixtures import MakeAgent
from tests.harness.guest import METADATA_IP
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import support
from tests.host.e2e.support import children
from tests.host.e2e.ward import Line, Ward, examine, only, shared_ward, status_of

ward = shared_ward


def test_a_full_disk_and_a_route_of_the_host_are_named(ward: Ward) -> None:
    state = ward.agent.state_path
    fill = f"mount -t tmpfs -o size=256k,mode=0700 none {state} && "
    fill += f'cat /dev/zero > {state}/full 2>/dev/null; exec "$@"'
    ward.host.namespace.ip("link add up0 type veth peer name up1", "link set up0 up")
    ward.host.namespace.ip(f"route add {METADATA_IP} dev up0")
    try:
        # A mount namespace of its own: nobody else sees it, and nothing stays.
        found = examine(ward.agent, ward.folder, "unshare", "--mount", "sh", "-c", fill, "sh")
    finally:
        ward.host.namespace.ip("link del up0")
    line = only(found, "disk", "wrong")
    assert f"the disk of {state} has room for 0 MiB more" in line["text"]
    assert f"df -h {state}" in line["remedy"]
    line = only(found, "cloud", "wrong")
    assert f"a route to {METADATA_IP} leads through up0" in line["text"]
    assert "host_ip to another address" in line["remedy"]


@pytest.fixture
def other_packages(tmp_path: Path) -> str:
    """The PYTHONPATH of a host with another dfmeta and packages that it was not tried with."""
    info = tmp_path / "dfmeta-9.9.9.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", "Name: dfmeta", "Version: 9.9.9", "Requires-Dist: click>=99"]
    info.joinpath("METADATA").write_text("\n".join([*lines, "Requires-Dist: gone-for-good", ""]))
    return f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"


def test_a_worker_that_is_gone_few_files_and_other_packages_are_named(
    make_agent: MakeAgent, tmp_path: Path, other_packages: str
) -> None:
    agent = make_agent({"df_metadata": {"proxy_workers": 2}})
    # The daemon serves with the first of them, while the other one may still begin.
    wait_for(lambda: status_of(examine(agent, tmp_path), "workers") == {"ok"}, "both workers")
    workers = [
        one
        for one in children(agent.pid)
        if b"dfmeta.cmd.worker" in Path(f"/proc/{one}/cmdline").read_bytes()
    ]
    assert len(workers) == 2
    _soft, hard = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (300, hard))
    agent.signal(signal.SIGSTOP)
    os.kill(workers[0], signal.SIGKILL)
    try:
        # The daemon, which would collect it, is stopped.
        wait_for(lambda: support.status_of(workers[0])["State"][0] == "Z", "the worker's end")
        found = examine(agent, tmp_path / "root", env={"PYTHONPATH": other_packages})
    finally:
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (hard, hard))
        agent.signal(signal.SIGCONT)
    assert "1 of 2 workers are alive" in only(found, "workers", "wrong")["text"]
    line = only(found, "open-files", "wrong")
    assert "dfmeta-agent may open 300 files" in line["text"]
    assert "LimitNOFILE=8448" in line["remedy"]
    line = only(found, "packages", "wrong")
    assert "required: >=99" in line["text"]
    assert "gone-for-good (none)" in line["text"]


def test_a_daemon_without_its_rights_is_named(ward: Ward) -> None:
    agent, host = ward.agent, ward.host
    lacking = "-net_admin,-dac_override"
    command = ["setpriv", f"--bounding-set={lacking}", f"--inh-caps={lacking}", "--"]
    command += [*program("dfmeta-agent"), "--config-file", str(agent.config_file)]
    before = host.mgmt_socket().stat()
    host.namespace.ip("link set tap-metadata down")
    with ExitStack() as stack:
        with agent.stderr.open("ab") as stderr:
            process = host.namespace.spawn(command, stdout=stderr, stderr=stderr)
        stack.callback(process.wait)
        stack.callback(process.kill)
        os.chown(host.mgmt_socket(), 12345, 12345)
        host.mgmt_socket().chmod(0o700)
        stack.callback(host.mgmt_socket().chmod, before.st_mode & 0o777)
        stack.callback(os.chown, host.mgmt_socket(), before.st_uid, before.st_gid)
        seen: list[Line] = []

        def visible() -> bool:
            seen[:] = ward.lines()
            return "wrong" in status_of(seen, "permissions")

        wait_for(visible, "doctor to see the daemon")
    line = only(seen, "permissions", "wrong")
    assert f"(pid {process.pid}) lacks CAP_NET_ADMIN" in line["text"]
    line = only(seen, "sockets", "wrong")
    assert f"may not connect to {host.mgmt_socket()}" in line["text"]


def take_meter(host: OpenvSwitch, meter: int) -> None:
    flow = next(flow for flow in host.flows() if f"meter:{meter}," in flow)
    # Its flow goes with it (OpenFlow 1.3.5, 5.7.1), and is put back without.
    host.ofctl("del-meter", BRIDGE, f"meter={meter}")
    counted = r"(duration|n_packets|n_bytes)=[^,]+, ?|send_flow_rem |meter:[0-9]+,"
    host.ofctl("add-flow", BRIDGE, re.sub(counted, "", flow).replace(" actions", ",actions"))


def test_meters_that_another_program_has_changed_or_deleted_are_named(ward: Ward) -> None:
    ward.agent.start()
    text = only(examine(ward.agent, ward.folder), "meters", "ok")["text"]
    assert "all guests' SYNs are limited; 0 first SYNs dropped" in text
    ward.agent.stop()
    in_use = re.search(r"meter:(\d+)", "\n".join(ward.host.flows()))
    assert in_use is not None
    bands = "pktps,burst,band=type=drop,rate=7,burst_size=7"
    ward.host.ofctl("mod-meter", BRIDGE, f"meter={in_use[1]},{bands}")
    assert "another program has changed dfmeta's meters: " in ward.wrong("meters")["text"]
    take_meter(ward.host, int(in_use[1]))
    line = ward.wrong("meters")
    assert "not limited" in line["text"]
    assert "dfmeta-agent" in line["remedy"]
