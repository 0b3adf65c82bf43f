"""``dfmeta doctor`` on the daemon's process, its files, its meters and the system around it."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.agent import program
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import METADATA_IP
from tests.harness.nova import SECRET
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import support
from tests.host.e2e.support import children
from tests.host.e2e.ward import Line, Ward, examine, nova_options, only, shared_ward, status_of

ward = shared_ward


def test_a_full_disk(ward: Ward) -> None:
    state = ward.agent.state_path
    fill = f"mount -t tmpfs -o size=256k,mode=0700 none {state} && "
    fill += f'cat /dev/zero > {state}/full 2>/dev/null; exec "$@"'
    # A mount namespace of its own: nobody else sees it, and nothing stays.
    found = examine(ward.agent, ward.folder, "unshare", "--mount", "sh", "-c", fill, "sh")
    line = only(found, "disk", "wrong")
    assert f"the disk of {state} has room for 0 MiB more" in line["text"]
    assert f"df -h {state}" in line["remedy"]


def test_a_configuration_with_a_secret_that_others_may_read(ward: Ward) -> None:
    more, file = ward.agent.folder / "more.conf", ward.agent.config_file
    found = ward.lines(nova_options("9"))
    assert "1 files with secrets are closed" in only(found, "secret-files", "ok")["text"]
    ward.agent.configure({"DEFAULT": {"metadata_proxy_shared_secret": SECRET}})
    file.chmod(0o644)
    line = ward.wrong("secret-files")
    assert f"{file} (metadata_proxy_shared_secret, mode 0644)" in line["text"]
    assert str(more) not in line["text"]
    ward.agent.configure({"DEFAULT": {"metadata_proxy_shared_secret": None}})


def test_systemd_networkd_and_a_cloud_of_the_hosts_own(ward: Ward, tmp_path: Path) -> None:
    comm = tmp_path / "proc/7/comm"
    vendor = tmp_path / "sys/class/dmi/id/sys_vendor"
    for path, text in ((comm, "systemd-network\n"), (vendor, "OpenStack Foundation\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    found = ward.lines(root=tmp_path)
    line = only(found, "networkd", "wrong")
    assert "ManageForeignRoutingPolicyRules, ManageForeignRoutes" in line["text"]
    assert "the machine is OpenStack's" in only(found, "cloud", "wrong")["text"]
    # The remedy's first command, with the folder in its place.
    command = line["remedy"].split("`")[1].replace("/etc/", f"{tmp_path}/etc/")
    ward.host.namespace.run(["sh", "-c", command])
    other = {"df_metadata": {"host_ip": "169.254.169.253"}}
    found = ward.lines(other, root=tmp_path)
    assert only(found, "networkd", "ok")
    assert only(found, "cloud", "ok")


def test_a_route_of_the_hosts_own_to_the_address(ward: Ward) -> None:
    ward.host.namespace.ip("link add up0 type veth peer name up1")
    ward.host.namespace.ip("link set up0 up")
    try:
        ward.host.namespace.ip("route add 169.254.0.0/16 dev up0")
        assert only(ward.lines(), "cloud", "ok")
        ward.host.namespace.ip(f"route add {METADATA_IP} dev up0")
        line = ward.wrong("cloud")
        assert f"a route to {METADATA_IP} leads through up0" in line["text"]
        assert "host_ip to another address" in line["remedy"]
    finally:
        ward.host.namespace.ip("link del up0")


def test_another_dfmeta_and_packages_that_it_was_not_tried_with(
    host: OpenvSwitch, make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = make_agent()
    info = tmp_path / "dfmeta-9.9.9.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", "Name: dfmeta", "Version: 9.9.9", "Requires-Dist: click>=99"]
    info.joinpath("METADATA").write_text("\n".join([*lines, "Requires-Dist: gone-for-good", ""]))
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    found = examine(agent, tmp_path / "root", env={"PYTHONPATH": path})
    line = only(found, "version", "wrong")
    assert "dfmeta 9.9.9 is installed, but dfmeta-agent" in line["text"]
    assert "systemctl restart dfmeta-agent" in line["remedy"]
    line = only(found, "packages", "wrong")
    assert "required: >=99" in line["text"]
    assert "gone-for-good (none)" in line["text"]


# The process


def test_workers_that_are_gone_and_files_that_may_not_be_opened(
    make_agent: MakeAgent, make_guest: MakeGuest, tmp_path: Path
) -> None:
    make_guest()
    agent = make_agent({"df_metadata": {"proxy_workers": 2}})
    # The daemon serves with the first of them, while the other one may still begin.
    wait_for(lambda: status_of(examine(agent, tmp_path), "workers") == {"ok"}, "both workers")
    assert only(examine(agent, tmp_path), "workers", "ok")["text"] == "all 2 workers are alive"
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
        found = examine(agent, tmp_path)
    finally:
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (hard, hard))
        agent.signal(signal.SIGCONT)
    assert "1 of 2 workers are alive" in only(found, "workers", "wrong")["text"]
    line = only(found, "open-files", "wrong")
    assert "dfmeta-agent may open 300 files" in line["text"]
    assert "LimitNOFILE=8448" in line["remedy"]
    wait_for(lambda: status_of(examine(agent, tmp_path), "workers") == {"ok"}, "another one")


def test_a_daemon_without_its_rights(ward: Ward) -> None:
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
    assert "systemctl edit dfmeta-agent" in line["remedy"]
    line = only(seen, "sockets", "wrong")
    assert f"may not connect to {host.mgmt_socket()}" in line["text"]
    assert f"ls -l {host.mgmt_socket()}" in line["remedy"]


Change = Callable[[OpenvSwitch, int], None]


def change_rate(host: OpenvSwitch, meter: int) -> None:
    host.ofctl("mod-meter", BRIDGE, f"meter={meter},pktps,burst,band=type=drop,rate=7,burst_size=7")


def take_meter(host: OpenvSwitch, meter: int) -> None:
    flow = next(flow for flow in host.flows() if f"meter:{meter}," in flow)
    # Its flow goes with it (OpenFlow 1.3.5, 5.7.1), and is put back without.
    host.ofctl("del-meter", BRIDGE, f"meter={meter}")
    counted = r"(duration|n_packets|n_bytes)=[^,]+, ?|send_flow_rem |meter:[0-9]+,"
    host.ofctl("add-flow", BRIDGE, re.sub(counted, "", flow).replace(" actions", ",actions"))


@pytest.mark.parametrize(
    ("change", "text"),
    [(change_rate, "another program has changed dfmeta's meters: "), (take_meter, "not limited")],
    ids=["changed", "gone"],
)
def test_meters_that_somebody_else_has_touched(ward: Ward, change: Change, text: str) -> None:
    ward.agent.start()
    found = examine(ward.agent, ward.folder)
    assert (
        "all guests' SYNs are limited; 0 first SYNs dropped" in only(found, "meters", "ok")["text"]
    )
    ward.agent.stop()
    in_use = re.search(r"meter:(\d+)", "\n".join(ward.host.flows()))
    assert in_use is not None
    change(ward.host, int(in_use[1]))
    line = ward.wrong("meters")
    assert text in line["text"]
    assert "dfmeta-agent" in line["remedy"]
