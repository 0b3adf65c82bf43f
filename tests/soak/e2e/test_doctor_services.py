"""Faults of the host's services that ``dfmeta doctor`` should name."""

import os
from contextlib import ExitStack

from tests.harness.agent import program
from tests.harness.guest import METADATA_IP
from tests.harness.poll import wait_for
from tests.host.e2e import test_doctor_services
from tests.host.e2e.ward import Line, Ward, examine, only, status_of

ward = test_doctor_services.ward


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
